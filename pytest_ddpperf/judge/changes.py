"""The change of a metric from its reference: its scatter, its tolerance, and the launches that would decide it."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from pytest_ddpperf.judge.decision import DecisionContext, Evidence, decide
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats import intervals
from pytest_ddpperf.stats.intervals import Change, with_launches
from pytest_ddpperf.stats.launches import CERTAINTY, OWN_IN_TURNS, Expected, expected, paired_influences

CERTAIN = 100.0  # degrees of freedom of ``usual_scatter``, known from thousands of launches, for a single launch
FEW = 6  # launches: the scatter of fewer launches predicts little
PRACTICABLE = 200  # launches for which somebody may still wait: some minutes of short steps
MAX_LAUNCHES = 100_000  # the most launches that are considered: nobody waits for so many


def change_from(series: Series, base: Series, measurement: Measurement, *, paired: bool) -> Change | None:
    """Returns the change from ``base`` to ``series``, round by round if ``paired``; None if it cannot be computed."""
    if paired and len(series.samples) == len(base.samples):
        return intervals.paired(
            series.samples,
            base.samples,
            scale=series.scale,
            robust=series.rules.timed or series.rules.partnered,  # either side may be disturbed
            expected=_expected_of_pairs(series, base, turns=measurement.turns),
        )
    return intervals.change(series.samples, base.samples, scale=series.scale, expected=_expected_alone(series))


def part_of(series: Series, launches: slice) -> Series:
    """Returns the series restricted to the launches of a slice."""
    return replace(series, samples=series.samples[launches], within=series.within[launches])


def worsening_of_all_steps(series: Series, base: Series) -> float | None:
    """Returns the fraction by which the total time of steps grew, without the worst round; None if unknown."""
    new, old = series.samples, base.samples
    if not series.rules.timed or series.scale != "ratio" or len(new) != len(old) or min((*new, *old)) <= 0:
        return None
    seconds = [(1 / a, 1 / b) if series.better == "higher" else (a, b) for a, b in zip(new, old, strict=True)]
    kept = sorted(seconds, key=lambda pair: pair[0] / pair[1])[: max(1, len(seconds) - 1)]  # a pause slows one round
    return math.fsum(one for one, _ in kept) / math.fsum(other for _, other in kept) - 1


def worse_in(series: Series, base: Series, *, paired: bool) -> int | None:
    """Counts samples worse than ``base`` in the same round (``paired``) or than its median; None if unknown."""
    new, old = series.samples, base.samples
    if len(new) < 2 or not old:  # noqa: PLR2004
        return None
    others = old if paired and len(old) == len(new) else (statistics.median(old),) * len(new)
    sign = 1 if series.better == "lower" else -1
    return sum(sign * one > sign * other for one, other in zip(new, others, strict=True))


def tolerance_of(series: Series, baseline: float, tolerance: float, step: float | None = None) -> float:
    """Returns the accepted worsening of one metric: ``tolerance``, but at least the metric's ``min_tolerance``.

    For a metric that is compared as a ratio, the result is a fraction. For a metric that is compared as a difference,
    the result is the fraction times the baseline: with 3 %, a loss of 10 may grow by 0.3. A loss below 1 counts as 1.
    For bytes, ``min_tolerance`` is a number of bytes. CPU time and phases may grow by a fraction of the step time
    ``step``, because small changes of short times do not matter.
    """
    if series.scale == "difference" and series.unit == "B":
        return max(series.min_tolerance, tolerance * abs(baseline))
    accepted = max(tolerance, series.min_tolerance)
    if series.scale == "difference" and series.unit == "s":
        return accepted * (abs(baseline) if step is None else step)
    if series.rules.stands_in and step is not None and baseline > 0:
        return accepted * max(1.0, step / baseline)
    if series.rules.negligible and min(baseline, series.value) > 0:  # the same for less and for more
        return max(accepted, series.rules.negligible / min(baseline, series.value))
    return accepted * max(1.0, abs(baseline)) if series.scale == "difference" else accepted


def _expected_alone(series: Series) -> Expected | None:
    """Returns the expected scatter between the launches of one revision; None if it is unknown."""
    if series.rules.usual_scatter is not None and series.scale != "ratio" and len(series.samples) == 1:
        return Expected(series.rules.usual_scatter**2, CERTAIN)
    return expected(series.within, series.own) if series.within else None


def _expected_of_pairs(series: Series, base: Series, *, turns: bool) -> Expected | None:
    """Returns the expected scatter of the change between paired launches; ``turns``: whether these were interleaved."""
    usual, alone = series.rules.usual_scatter, len(series.samples) == 1
    if usual is not None and alone != (series.scale == "ratio"):
        return Expected(2 * usual**2, CERTAIN if alone else CERTAINTY)
    if series.scale != "ratio":  # diagnosed steps, which did not alternate with the other side's
        new, old = (expected(side.within, side.own) for side in (series, base))
        return None if new is None or old is None else Expected(new.variance + old.variance, min(new.df, old.df))
    moved = tuple(map(paired_influences, series.within, base.within))
    return expected(moved, min(series.own, OWN_IN_TURNS) if turns else math.sqrt(2) * series.own)


def what_it_takes(
    evidence: Evidence, change: Change, context: DecisionContext, *, paired: bool, launches: int
) -> Finding:
    """Returns a finding with the number of launches that would decide a metric; ``launches``: the number so far."""
    series, told = evidence.series, len(evidence.series.samples)
    if told < launches:
        return Finding("told_late", {"launches": told})
    if change.standard_error is None:
        return Finding("single_launch")
    wanted = enough(evidence, change, context, context.resolution_of(series))
    if wanted is None or wanted > PRACTICABLE:
        return Finding("no_launches_decide", {"any_number": wanted is None, "paired": paired})
    max_time = None
    if series.gated and context.last and context.max_time_for is not None:
        max_time = math.ceil(context.max_time_for(wanted - told))
    return Finding("launches_needed", {"launches": wanted, "max_time": max_time, "known": told if told < FEW else None})


def enough(evidence: Evidence, change: Change, context: DecisionContext, resolution: float | None) -> int | None:
    """Estimates how many launches would give a verdict, if the estimated change and its scatter stay the same.

    The result is rough, and larger than the present number of launches; None if ``MAX_LAUNCHES`` are not enough or the
    scatter is unknown. ``resolution``: the worsening that the verdict has to rule out.
    """
    if change.standard_error is None:
        return None
    proofs = replace(context.proofs.at_interim(1.0, last=True), proves=True)
    in_the_end = replace(context, resolution=resolution, last=True, proofs=proofs)
    alone = replace(evidence, fresh=None, whole=None)

    def decided(launches: int) -> bool:
        return decide(with_launches(change, launches), alone, in_the_end) is not Verdict.INCONCLUSIVE

    low, high = change.launches, change.launches + 1
    while not decided(high):
        if high >= MAX_LAUNCHES:
            return None
        low, high = high, min(MAX_LAUNCHES, 2 * high)
    while high - low > 1:  # more launches hardly ever make a decided change undecided
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    return high
