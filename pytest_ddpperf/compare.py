"""The second verb: hold what was measured against a baseline, metric by metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_ddpperf.allowance import NO_SPREAD, RESIDENT_FLOOR, floor_of, spread_between_runs, tolerance_of
from pytest_ddpperf.compare_counts import compare_counted, count_findings
from pytest_ddpperf.metrics import findings_of
from pytest_ddpperf.metrics.table import (
    BESIDE,
    BY_TURNS,
    CPU_TIME,
    FINAL_LOSS,
    GROWTH,
    RESIDENT,
    STEP_TIME,
    outliers_of,
)
from pytest_ddpperf.records import Measurement, Series
from pytest_ddpperf.results import BaselineRecord, Comparison, Found, Result
from pytest_ddpperf.stats import intervals
from pytest_ddpperf.stats.centers import Outliers
from pytest_ddpperf.stats.intervals import Change
from pytest_ddpperf.stats.verdict import decide, looks_better, looks_worse, mde, needed
from pytest_ddpperf.units import format_count, format_percent
from pytest_ddpperf.verdict import Verdict

NOT_WORSE = {Verdict.IMPROVED, Verdict.UNCHANGED, Verdict.INCONCLUSIVE}
FEW = 6  # launches; by the scatter of fewer, little can be foreseen
PRACTICABLE = 200
"""Launches for which somebody may still wait: some minutes of short steps."""


@dataclass(frozen=True)
class Rules:
    """What a comparison goes by.

    Attributes:
        tolerance: the worsening that is accepted, as a fraction (absolute for differences).
        alpha: two-sided significance level of each metric.
        affordable: launches that a suspect would be confirmed by, at most.
        last: whether there is no time for another look.
        proven: by how many launches an earlier look showed a metric to be no worse, which was measured on because it
            looked better.
        max_time_for: gives the setting that leaves time for so many launches more; None where nobody measures.
    """

    tolerance: float
    alpha: float
    affordable: int = 0
    last: bool = False
    proven: Mapping[str, int] = field(default_factory=dict)
    max_time_for: Callable[[int], float] | None = None


def compare(test: str, measurement: Measurement, found: Found, rules: Rules) -> Result:
    """The judgement on one measurement: each of its series against the baseline's, and the worst gated one for all.

    Args:
        test: pytest node id.
        measurement: what was measured.
        found: what the store knows for it. A foreign record is compared for display, never judged.
        rules: of the test.
    """
    comparisons = stand_in(
        [
            compare_counted(series, measurement, found)
            if series.scale == "exact"
            else compare_metric(series, measurement, found, rules)
            for series in measurement.series
        ],
        last=rules.last,
    )
    lost = lost_metrics(measurement, found)
    least = Verdict.INCOMPATIBLE if lost else Verdict.IMPROVED
    return Result(
        test=test,
        measurement=measurement,
        comparisons=comparisons,
        verdict=max(worst(comparisons, found), least, key=lambda verdict: verdict.severity),
        baseline=_shown(measurement, found),
        origin=found.origin,
        findings=(
            *measurement.findings,
            *findings_of(measurement),
            *lost,
            *count_findings(comparisons, measurement, found),
            *near_misses(found),
            *raised_tolerance(comparisons, found, rules.tolerance),
        ),
        differs=found.differs,
        counterpart=found.counterpart,
    )


def stand_in(comparisons: Sequence[Comparison], *, last: bool) -> tuple[Comparison, ...]:
    """The comparisons, of which the CPU time may only be worse in place of a step time that remains undecided.

    More work that makes no step longer is no regression: so it takes a step time that is at least not shorter, and
    counts at the last look alone, for until then the step time may be decided. Less work is no proof of shorter steps.

    Args:
        comparisons: of one measurement. Where the step time is not gated, they stay as they are.
        last: whether there is no time for another look.
    """
    step = next((one for one in comparisons if one.series.metric == STEP_TIME and one.gated), None)

    def standing_in(cpu: Comparison) -> Comparison:
        if step is None or not cpu.gated:
            return cpu
        longer = step.verdict is Verdict.INCONCLUSIVE and step.change is not None and step.change >= 0
        if not longer or cpu.verdict is Verdict.IMPROVED:
            return replace(cpu, gated=False)
        if cpu.verdict is Verdict.REGRESSED and not last:
            return replace(cpu, verdict=Verdict.INCONCLUSIVE)
        return replace(cpu, note=cpu.note or "in place of the step time, which remains undecided")

    return tuple(standing_in(one) if one.series.metric == CPU_TIME else one for one in comparisons)


def _shown(measurement: Measurement, found: Found) -> BaselineRecord | None:
    """The record that a result is told beside: where nothing was timed, one of another machine is as good."""
    if found.counterpart is not None:
        return None
    own = found.record is not None and not found.differs
    return found.record if own or measurement.launches or found.counted is None else found.counted


def lost_metrics(measurement: Measurement, found: Found) -> tuple[str, ...]:
    """A sentence for each gated metric that the comparable baseline has and this measurement does not.

    What only stands in for another metric is not missed.
    """
    if found.record is None or found.differs:
        return ()
    there = {series.metric for series in measurement.series}
    looked_at = {series.scale == "exact" for series in measurement.series}  # a run may only count, or not count at all
    accepted = "" if found.counterpart else "; --ddpperf-save accepts that"
    return tuple(
        f"{found.base_words} has {series.metric}, this run does not: it is gated no more{accepted}"
        for series in found.record.series
        if series.gated
        and series.metric not in BESIDE
        and series.metric not in there
        and (series.scale == "exact") in looked_at
    )


def near_misses(found: Found) -> tuple[str, ...]:
    """A sentence where there is no baseline, but one of the same benchmark with other options."""
    if not found.alike:
        return ()
    there = "there is a baseline" if len(found.alike) == 1 else "there are baselines"
    names = ", ".join(f"`{name}`" for name in found.alike)
    return (f"{there} for {names}: options are part of a benchmark's identity",)


def worst(comparisons: Sequence[Comparison], found: Found) -> Verdict:
    """The worst verdict among the gated comparisons; without any, what is to be said of the baseline alone.

    Beside another revision, what got better and nowhere worse is improved: the question is what the change did, and
    what remains undecided in other metrics is told with it. So it is where there are counts alone, each of which is
    known exactly. Of times beside a baseline it takes all, for the word says that the whole baseline is stale.
    """
    gated = [comparison.verdict for comparison in comparisons if comparison.gated]
    if found.counterpart is not None and found.record is not None:
        gated = [one for one in gated if one is not Verdict.NEW] or gated  # this side alone has it: told beside
    only_counts = all(comparison.series.scale == "exact" for comparison in comparisons)
    better_alone = Verdict.IMPROVED in gated and set(gated) <= NOT_WORSE
    if better_alone and (only_counts or found.counterpart is not None):
        return Verdict.IMPROVED
    return max(gated, key=lambda verdict: verdict.severity, default=_without_judgement(found))


def compare_metric(series: Series, measurement: Measurement, found: Found, rules: Rules) -> Comparison:
    """The judgement on one metric: its verdict, and the note that explains it where the numbers alone do not."""
    base = _series_named(series.metric, found.record)
    if base is None or found.record is None:
        note = "" if found.record is None else f"not in {found.base_words}"
        return _unjudged(series, rules, _without_judgement(found) if found.differs else Verdict.NEW, note)
    obstacle = _obstacle(series, base, measurement, found)
    if obstacle is not None and _kind(series) != _kind(base):
        return _unjudged(series, rules, Verdict.INCOMPATIBLE, obstacle)
    change = _change(series, base, measurement, found)
    step = _series_named(STEP_TIME, found.record)
    accepted = tolerance_of(
        series, base.value, rules.tolerance, step.value if step is not None and step.gated else None
    )
    tolerance = max(accepted, floor_of(series, found.noise))
    levels = base.value, series.value
    if series.metric == RESIDENT and min(levels) == 0 and max(levels) <= RESIDENT_FLOOR:
        verdict, note = Verdict.UNCHANGED, ""
    elif change is None:
        verdict, note = Verdict.INCONCLUSIVE, f"no change can be told from a baseline of {base.value:g}"
    else:
        verdict = decide(change, better=series.better, tolerance=tolerance, alpha=rules.alpha, last=rules.last)
        beside = found.counterpart is not None
        note = _note(
            verdict, change, series, replace(rules, tolerance=tolerance), beside=beside, made=len(measurement.launches)
        )
        if verdict is Verdict.INCONCLUSIVE and series.metric in rules.proven:
            made = format_count(rules.proven[series.metric], "launch")
            verdict = Verdict.UNCHANGED
            note = f"shown to be within the tolerance by the first {made}; it looked better, and was measured on"
    judged = change if obstacle is None else None
    return Comparison(
        series=series,
        baseline=base.value,
        change=None if change is None else change.estimate,
        change_interval=None if change is None else change.interval,
        tolerance=tolerance,
        mde=None if judged is None else _mde(judged, rules, tolerance),
        verdict=verdict if obstacle is None else Verdict.INCOMPATIBLE,
        gated=series.gated,
        note=note if obstacle is None else obstacle,
        suspicious=judged is not None and looks_worse(judged, better=series.better, tolerance=tolerance),
        promising=judged is not None and looks_better(judged, better=series.better, tolerance=tolerance),
        df=math.inf if change is None else change.df,
        base_samples=base.samples,
    )


def _mde(change: Change, rules: Rules, tolerance: float) -> float | None:
    """What this run would have found: a suspect is confirmed by as many launches as there is time for."""
    best = intervals.with_launches(change, max(change.launches, rules.affordable))
    return mde(best, alpha=rules.alpha, tolerance=tolerance)


def raised_tolerance(comparisons: Sequence[Comparison], found: Found, tolerance: float) -> tuple[str, ...]:
    """A sentence where the noise floor took the place of the test's tolerance."""
    judged = [one for one in comparisons if one.gated and one.baseline is not None and one.series.scale != "exact"]
    if found.noise is None or found.differs or not any(floor_of(one.series, found.noise) > tolerance for one in judged):
        return ()
    floor = f"{format_percent(found.noise.floor)}: the noise floor {found.noise.origin}"
    return (f"tolerance {format_percent(tolerance)} raised to {floor}",)


def _change(series: Series, base: Series, measurement: Measurement, found: Found) -> Change | None:
    """The change from the base: by rounds where both sides were measured in the same ones."""
    if found.counterpart is not None and len(series.samples) == len(base.samples):
        both: Outliers | None = None if outliers_of(series) is None else "both"  # either side may be disturbed
        return intervals.paired(series.samples, base.samples, scale=series.scale, outliers=both)
    step = next((one.value for one in measurement.series if one.metric == STEP_TIME), None)
    own = found.counterpart is None
    spread = spread_between_runs(series, measurement.environment, step, found.noise) if own else NO_SPREAD
    return intervals.change(
        series.samples,
        base.samples,
        scale=series.scale,
        between_runs=spread.sd,
        between_df=spread.df,
        outliers=outliers_of(series),
    )


def _obstacle(series: Series, base: Series, measurement: Measurement, found: Found) -> str | None:
    """Why the baseline cannot judge this metric; None where it can."""
    if _kind(series) != _kind(base):
        return f"the baseline has this metric as {' '.join(_kind(base))}, not as {' '.join(_kind(series))}"
    if found.differs:
        return f"the baseline is not comparable: {', '.join(found.differs)}"
    if series.metric in BY_TURNS and found.record is not None and found.record.turns != measurement.turns:
        ways = "with nothing beside them", "in turns with those of other launches"
        if found.record.turns:
            ways = ways[::-1]
        return f"the baseline's steps were timed {ways[0]}, these {ways[1]}: save it anew, or see --ddpperf-turns"
    if series.metric == FINAL_LOSS and found.record is not None:
        then, now = (plan.warmup + plan.steps for plan in (found.record.plan, measurement.plan))
        if then != now:
            return f"the baseline's loss is that after {format_count(then, 'step')}, this one after {now}"
    return None


def _note(verdict: Verdict, change: Change, series: Series, rules: Rules, *, beside: bool, made: int) -> str:
    """What explains a verdict; ``made``: launches of this side, all of which most metrics have a sample of."""
    if verdict is Verdict.IMPROVED:
        return "" if beside else "better than the baseline by more than the tolerance: the baseline is stale"
    if verdict is Verdict.UNCHANGED:
        promising = beside and looks_better(change, better=series.better, tolerance=rules.tolerance)
        return "looks better, though not for certain" if promising and _all_better(change, series) else ""
    return _what_it_takes(change, series, rules, beside=beside, made=made) if verdict is Verdict.INCONCLUSIVE else ""


def _what_it_takes(change: Change, series: Series, rules: Rules, *, beside: bool, made: int) -> str:
    """What would decide a metric."""
    if change.standard_error is None:
        return "one launch on either side tells nothing about scatter; measure at least two"
    if len(series.samples) < made and series.metric != GROWTH:
        return f"more launches would not decide it: only the first {len(series.samples)} tell"
    launches = needed(change, better=series.better, tolerance=rules.tolerance, alpha=rules.alpha)
    if launches is not None and launches <= PRACTICABLE:
        told = ""
        if series.gated and rules.last and rules.max_time_for is not None:
            told = f" (max_time {math.ceil(rules.max_time_for(launches - len(series.samples)))} s)"
        few = f", as far as {len(series.samples)} can tell" if len(series.samples) < FEW else ""
        return f"about {format_count(launches, 'launch')}{told} would decide it{few}"
    fact, cure = "no practicable number of launches would decide it", "a quieter machine"
    if launches is None:
        fact, cure = "more launches would not decide it", "a baseline of more launches"
    cures = f"a wider tolerance or {cure}" if beside else f"a wider tolerance, {cure} or --ddpperf-against"
    return f"{fact}; {cures} might"


def _all_better(change: Change, series: Series) -> bool:
    """Whether the interval that is printed beside the change has nothing but improvements in it."""
    if change.interval is None:
        return False
    return change.interval.high < 0 if series.better == "lower" else change.interval.low > 0


def _unjudged(series: Series, rules: Rules, verdict: Verdict, note: str) -> Comparison:
    """A metric without anything to compare with."""
    tolerance = tolerance_of(series, series.value, rules.tolerance)
    return Comparison(series, None, None, None, tolerance, None, verdict, series.gated, note)


def _without_judgement(found: Found) -> Verdict:
    if found.differs:
        return Verdict.INCOMPATIBLE
    return Verdict.NEW if found.record is None else Verdict.UNCHANGED


def _series_named(metric: str, record: BaselineRecord | None) -> Series | None:
    if record is None:
        return None
    return next((series for series in record.series if series.metric == metric), None)


def _kind(series: Series) -> tuple[str, str, str]:
    """What two series must agree in to be compared at all."""
    return series.unit, f"{series.better} is better", series.scale
