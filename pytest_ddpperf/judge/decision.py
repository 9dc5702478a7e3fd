"""Every verdict is made here: of a change, of a metric, of a count and of a benchmark. Nothing else makes one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_ddpperf.judge.context import DecisionContext
from pytest_ddpperf.judge.detection import EQUIVALENCE_MARGIN, UNPROVEN, level_of_look, limit, worsening
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.counts import Counts, count_row, on_ranks, parts_on_ranks
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Better, Series
from pytest_ddpperf.records.results import Comparison, PairedRevision, Reference
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import Change, half_width, with_launches

MAX_LAUNCHES = 100_000  # that are asked about: nobody waits for so many
NOT_WORSE = {Verdict.IMPROVED, Verdict.UNCHANGED, Verdict.INCONCLUSIVE}

Ground = Literal[
    "numbers", "no_reference", "incomparable", "negligible", "no_change", "unconfirmed", "excused", "proven"
]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the verdict on one metric rests on.

    Attributes:
        series: of the candidate.
        base: of the reference; None where it has no such metric.
        differs: whether the reference is of another environment or training.
        obstacle: whether something else stands against comparing the two.
        negligible: whether both values are too small to mean anything.
        change: from the reference to the candidate; None where none can be computed.
        tolerance: of this metric.
        excused: whether something besides the code may explain a worsening of this size.
    """

    series: Series
    base: Series | None
    differs: bool = False
    obstacle: bool = False
    negligible: bool = False
    change: Change | None = None
    tolerance: float = 0.0
    excused: bool = False


@dataclass(frozen=True)
class Decision:
    """A verdict and the ground that it rests on."""

    verdict: Verdict
    ground: Ground = "numbers"


def decide(
    change: Change,
    *,
    better: Better,
    tolerance: float,
    alpha: float,
    margin: float = EQUIVALENCE_MARGIN,
    last: bool = False,
) -> Verdict:
    """What a change says about the candidate.

    ``REGRESSED`` takes two keys: the change is for the worse with significance (the two-sided ``1 - alpha`` interval
    excludes no change), and its estimate is worse than the tolerance. ``IMPROVED`` is its mirror image. ``UNCHANGED``
    is a proof, not a lack of evidence: the one-sided 95 % bound of the worsening lies within the margin, and its
    estimate within the tolerance. (A red verdict has to stand in whole suites of tests, so it asks for more certainty
    than a green one.) Everything else is ``INCONCLUSIVE``.

    Args:
        change: from the reference to the candidate.
        better: the direction of an improvement.
        tolerance: the worsening that is accepted: a fraction for ratios, an amount for differences. On a logarithmic
            scale it means the same factor for both directions, so that a step time and the throughput made of it get
            the same verdict: 3 % worse is 1.03 times the time, or the throughput divided by 1.03.
        alpha: two-sided significance level, of all looks together.
        margin: the worsening that ``UNCHANGED`` rules out, times the tolerance; at least 1.
        last: whether there is no time for another look.
    """
    half = half_width(change, level_of_look(change, alpha, last=last))
    if half is None:
        return Verdict.INCONCLUSIVE
    worse, accepted = worsening(change, better), limit(change, tolerance)
    bound = worse + (half_width(change, 2 * UNPROVEN) or 0.0)
    if worse - half > 0 and worse > accepted:
        return Verdict.REGRESSED
    if worse + half < 0 and worse < -accepted:
        return Verdict.IMPROVED
    proven = bound <= limit(change, margin * tolerance) and worse <= accepted
    return Verdict.UNCHANGED if proven else Verdict.INCONCLUSIVE


def needed(
    change: Change, *, better: Better, tolerance: float, alpha: float, margin: float = EQUIVALENCE_MARGIN
) -> int | None:
    """About how many launches the candidate needs in all for a verdict, if estimate and scatter stay what they are.

    A rough figure, for the estimate will move. It goes by the degrees of freedom that so many launches will have. More
    launches do not shrink the baseline's own error or the spread between runs. At least one launch more than there are;
    None where ``MAX_LAUNCHES`` would not do, or the scatter is unknown.
    """
    if change.standard_error is None:
        return None

    def decided(launches: int) -> bool:
        later = with_launches(change, launches)
        verdict = decide(later, better=better, tolerance=tolerance, alpha=alpha, margin=margin, last=True)
        return verdict is not Verdict.INCONCLUSIVE

    low, high = change.launches, change.launches + 1
    while not decided(high):
        if high >= MAX_LAUNCHES:
            return None
        low, high = high, min(MAX_LAUNCHES, 2 * high)
    while high - low > 1:  # more launches hardly ever make a decided change undecided
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    return high


def decide_metric(evidence: Evidence, context: DecisionContext) -> Decision:
    """The verdict on one metric that is judged by its scatter."""
    metric, change = evidence.series.metric, evidence.change
    if evidence.differs or evidence.obstacle:
        return Decision(Verdict.INCOMPATIBLE, "incomparable")
    if evidence.base is None:
        return Decision(Verdict.NEW, "no_reference")
    if evidence.negligible:
        return Decision(Verdict.UNCHANGED, "negligible")
    if change is None:
        return Decision(Verdict.INCONCLUSIVE, "no_change")
    verdict = decide(
        change,
        better=evidence.series.better,
        tolerance=evidence.tolerance,
        alpha=context.alpha,
        margin=context.margin,
        last=context.last,
    )
    ground: Ground = "numbers"
    if verdict is Verdict.REGRESSED and context.suspected is not None and metric not in context.suspected:
        verdict, ground = Verdict.INCONCLUSIVE, "unconfirmed"
    elif verdict is Verdict.REGRESSED and evidence.excused:
        verdict, ground = Verdict.INCONCLUSIVE, "excused"
    if verdict is Verdict.INCONCLUSIVE and metric in context.proven:
        return Decision(Verdict.UNCHANGED, "proven")
    return Decision(verdict, ground)


def decide_count(metric: str, then: Counts, now: Counts) -> Verdict:
    """``regressed`` for more on any rank, and for as much of something else; ``improved`` for less; else ``unchanged``.

    The count ``metric`` is one that both sides have.
    """
    totals = _direction([(then.totals[metric], now.totals[metric]), *on_ranks(metric, then, now)])
    if totals is not Verdict.UNCHANGED or not count_row(metric).made_up:
        return totals
    before, after = then.details.get(metric, {}), now.details.get(metric, {})
    parts = [(before.get(name, 0.0), after.get(name, 0.0)) for name in {**before, **after}]
    on_others = [pair for pairs in parts_on_ranks(metric, then, now).values() for pair in pairs]
    return _direction([*parts, *on_others])


def decide_compared_count(metric: str, then: Counts | None, now: Counts | None, *, differs: bool) -> Verdict:
    """The verdict on a count beside a reference that may not have it or not be comparable."""
    if then is None or now is None or metric not in then.totals:
        return Verdict.NEW
    return Verdict.INCOMPATIBLE if differs else decide_count(metric, then, now)


def _direction(pairs: Iterable[tuple[float, float]]) -> Verdict:
    """Whether any became more; if none did, whether any became less."""
    differences = [after - before for before, after in pairs]
    if max(differences, default=0.0) > 0:
        return Verdict.REGRESSED
    return Verdict.IMPROVED if min(differences, default=0.0) < 0 else Verdict.UNCHANGED


def with_stand_in(comparisons: Sequence[Comparison], *, last: bool) -> tuple[Comparison, ...]:
    """The comparisons, of which the CPU time only counts in place of a step time that is undecided.

    More work that makes no step longer is no regression: so it takes a step time that is at least not shorter, and
    counts at the last look alone, for until then the step time may be decided. Less work is no proof of shorter steps.
    Where the step time is not gated, all stay as they are.
    """
    step = next((one for one in comparisons if one.series.metric == STEP_TIME and one.gated), None)

    def standing_in(cpu: Comparison) -> Comparison:
        if step is None or not cpu.gated or not cpu.series.rules.stands_in:
            return cpu
        longer = step.verdict is Verdict.INCONCLUSIVE and step.change is not None and step.change >= 0
        if not longer or cpu.verdict is Verdict.IMPROVED:
            return replace(cpu, gated=False)
        if cpu.verdict is Verdict.REGRESSED and not last:
            return replace(cpu, verdict=Verdict.INCONCLUSIVE)
        return replace(cpu, note=cpu.note or Finding("stands_in_for_step_time"))

    return tuple(map(standing_in, comparisons))


def decide_benchmark(comparisons: Sequence[Comparison], reference: Reference, *, lost: bool = False) -> Verdict:
    """The worst verdict among the gated comparisons; without any, what is to be said of the reference alone.

    Beside another revision, what got better and nowhere worse is improved: the question is what the change did, and
    what remains undecided in other metrics is told with it. So it is where there are counts alone, each of which is
    known exactly. Of times beside a baseline it takes all, for the word says that the whole baseline is stale.

    Args:
        comparisons: of all metrics.
        reference: what the benchmark is compared with.
        lost: whether the reference has gated metrics that the candidate has not.
    """
    gated = [comparison.verdict for comparison in comparisons if comparison.gated]
    paired = isinstance(reference, PairedRevision)
    if paired and reference.record is not None:
        gated = [one for one in gated if one is not Verdict.NEW] or gated  # the candidate alone has it: told beside
    only_counts = all(comparison.series.scale == "exact" for comparison in comparisons)
    better_alone = Verdict.IMPROVED in gated and set(gated) <= NOT_WORSE
    if better_alone and (only_counts or paired):
        verdict = Verdict.IMPROVED
    else:
        verdict = max(gated, key=lambda one: one.severity, default=_without_judgement(reference))
    return max(verdict, Verdict.INCOMPATIBLE if lost else Verdict.IMPROVED, key=lambda one: one.severity)


def decide_failure() -> Verdict:
    """The verdict on a benchmark that could not be measured."""
    return Verdict.BROKEN


def _without_judgement(reference: Reference) -> Verdict:
    """What the reference alone, or its lack, says about what it cannot judge."""
    if reference.differs:
        return Verdict.INCOMPATIBLE
    return Verdict.NEW if reference.record is None else Verdict.UNCHANGED
