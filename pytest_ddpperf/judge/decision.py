"""The rules of every verdict: on a change, a metric, a count or a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_ddpperf.judge import detection
from pytest_ddpperf.judge.sequential import wants_launches
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records import counts
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Better, Series
from pytest_ddpperf.records.results import Comparison, Reference, Result
from pytest_ddpperf.records.verdict import GREEN, OPEN, Verdict
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.intervals import Change, half_width

NOT_WORSE = {Verdict.IMPROVED, Verdict.UNCHANGED, *OPEN}

TOLERANCE, PAIRED_TOLERANCE = 0.03, 0.015  # the accepted worsening if a test sets none, and the same for paired sides


@dataclass(frozen=True, kw_only=True, slots=True)
class DecisionContext:
    """The settings of an interim verdict (on the launches so far), and the progress of the measurement."""

    tolerance: float | None = None  # the worsening that the test accepts, as a fraction (absolute for differences)
    alpha: float  # two-sided significance level of the benchmark
    gross: float = Settings.gross  # the worsening beyond which stored times alone turn a test red
    weights: float = 1.0  # sum of the weights of all metrics that share ``alpha``
    # The error that this look may spend to prove that a metric is no worse.
    proofs: detection.Proofs = detection.ONE_LOOK
    margin: float = detection.EQUIVALENCE_MARGIN  # times the tolerance: the worsening that ``unchanged`` rules out
    resolution: float | None = None  # the worsening that ``ok`` rules out; None if nothing is ok
    affordable: int = 0  # launches that could prove a suspect worse in the time left; 0: only the present ones
    last: bool = False  # whether no time is left for more launches and another look
    # Metrics that were proven no worse and continued because they looked better: launches and bound at the proof.
    proven: Mapping[str, tuple[int, float | None]] = field(default_factory=dict)
    suspected: frozenset[str] | None = None  # metrics that looked worse: only they may be ``regressed``; None for all
    max_time_for: Callable[[int], float] | None = None  # the ``max_time`` that leaves time for so many more launches

    def accepted(self, *, paired: bool) -> float:
        """Returns the tolerance as a fraction; the default is smaller if both revisions run in the same rounds."""
        return (PAIRED_TOLERANCE if paired else TOLERANCE) if self.tolerance is None else self.tolerance

    def alpha_of(self, series: Series) -> float:
        """Returns the two-sided significance level of a metric."""
        weight = series.rules.weight or 1.0
        return self.alpha * weight / max(weight, self.weights)

    def resolution_of(self, series: Series) -> float | None:
        """Returns the worsening that the verdict ``ok`` rules out; None for losses, which never get this verdict."""
        return self.resolution if series.scale == "ratio" else None

    def may_hide(self, evidence: Evidence) -> float:
        """Returns the worsening that a metric may have if its verdict is ``ok`` or ``unchanged``."""
        return max(self.margin * evidence.tolerance, self.resolution_of(evidence.series) or 0.0)

    def hides_long_steps(self, evidence: Evidence) -> bool:
        """Returns whether the total time of all steps, including rare long ones, rules out ``ok`` and ``unchanged``."""
        return evidence.whole is not None and evidence.whole > self.may_hide(evidence)


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The figures on which the verdict on one metric is based."""

    series: Series  # of the candidate
    base: Series | None  # of the reference; None if it has no such metric
    differs: bool = False  # whether the reference is of another environment or training
    obstacle: Finding | None = None  # why both sides cannot be compared
    doubt: Finding | None = None  # why stored times decide nothing: another host or clock, or a busy machine
    negligible: bool = False  # whether both values are too small to mean anything
    change: Change | None = None  # from the reference to the candidate; None if none can be computed
    fresh: Change | None = None  # the same from only the launches after a suspicion; from all if nothing looked worse
    tolerance: float = 0.0  # of this metric
    whole: float | None = None  # the worsening of all steps together, without the worst round; None if not paired


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict on a metric; ``note`` explains the verdict if the numbers alone do not."""

    verdict: Verdict
    note: Finding | None = None


def decide(change: Change, evidence: Evidence, context: DecisionContext) -> Verdict:
    """Returns the verdict on a change from the reference to the candidate.

    ``REGRESSED`` needs two conditions: the change is a significant worsening (zero lies outside the two-sided
    ``1 - alpha`` interval), and the estimate exceeds the tolerance. On a logarithmic scale, the tolerance is a factor:
    3 % worse is 1.03 times the step time, or the throughput divided by 1.03. If the metric looked worse, new launches
    follow. If the reference is a stored baseline, the new launches alone have to meet both conditions. If launches are
    paired with reference launches, all launches together have to meet both conditions, and the new launches have to
    look worse (``looks_worse``). ``IMPROVED`` has the mirrored conditions, for all launches. ``UNCHANGED`` is a proof:
    the one-sided 95 % bound of the worsening is at most ``margin`` times the tolerance, and the estimate is at most the
    tolerance. ``OK`` is a weaker proof: the bound is at most ``resolution``, 10 % by default. Otherwise the verdict is
    ``INCONCLUSIVE``. If the total time of steps grew by more than ``resolution`` and by more than ``margin`` times the
    tolerance, the verdict is ``REGRESSED`` or ``INCONCLUSIVE``, because the estimate may miss rare long steps.
    """
    better, proofs, fresh = evidence.series.better, context.proofs, evidence.fresh
    alpha, resolution = context.alpha_of(evidence.series), context.resolution_of(evidence.series)
    accepted = detection.limit(change, evidence.tolerance)
    hard = change if change.paired_rounds else fresh or change
    worse_again = fresh is None or detection.looks_worse(fresh, better=better, tolerance=0.0)
    if worse_again and _worse_by_more(hard, better, accepted, alpha, last=context.last):
        return Verdict.REGRESSED
    if context.hides_long_steps(evidence):
        return Verdict.INCONCLUSIVE
    if _worse_by_more(change, "higher" if better == "lower" else "lower", accepted, alpha, last=context.last):
        return Verdict.IMPROVED
    worse, bound = detection.worsening(change, better), detection.upper_bound(change, better, proofs.level)
    if bound is None or not proofs.proves:
        return Verdict.INCONCLUSIVE
    if bound <= detection.limit(change, context.margin * evidence.tolerance) and worse <= accepted:
        return Verdict.UNCHANGED
    seen = resolution is not None and bound <= detection.limit(change, resolution)
    return Verdict.OK if seen else Verdict.INCONCLUSIVE


def _worse_by_more(change: Change, better: Better, accepted: float, alpha: float, *, last: bool) -> bool:
    """Returns whether a change is significant (by ``alpha``), and makes the metric worse by more than ``accepted``."""
    half = half_width(change, detection.level_of_look(change, alpha, last=last))
    return half is not None and detection.worsening(change, better) > max(half, accepted)


def decide_metric(evidence: Evidence, context: DecisionContext) -> Decision:
    """Returns the verdict on one metric: by its change, or ``new`` or ``incompatible`` if nothing can be compared."""
    note, metric, change = None, evidence.series.metric, evidence.change
    if evidence.base is None and not evidence.differs:
        return Decision(Verdict.NEW, evidence.obstacle)
    if evidence.base is None or evidence.obstacle is not None:
        return Decision(Verdict.INCOMPATIBLE, evidence.obstacle)
    if evidence.negligible:
        return Decision(Verdict.UNCHANGED)
    if change is None:
        return Decision(Verdict.INCONCLUSIVE, Finding("no_change_from", {"baseline": evidence.base.value}))
    verdict = decide(change, evidence, context)
    if verdict is Verdict.REGRESSED and context.suspected is not None and metric not in context.suspected:
        verdict, note = Verdict.INCONCLUSIVE, Finding("unconfirmed")
    if verdict in OPEN and metric in context.proven and not context.hides_long_steps(evidence):
        return Decision(Verdict.UNCHANGED, Finding("proven_earlier", {"launches": context.proven[metric][0]}))
    return Decision(verdict, note)


def decide_stored_times(evidence: Evidence, context: DecisionContext) -> Decision:
    """Returns the verdict on a machine-dependent metric by stored times alone, which show only gross slowdowns.

    ``REGRESSED``: the whole 99 % interval of the change is worse than ``context.gross``, a fraction. ``OK``: the
    estimate is within the tolerance. This method may miss slowdowns that are smaller than ``context.gross``.
    """
    base, change = evidence.base, evidence.change
    if evidence.doubt is not None and evidence.obstacle is None:
        return Decision(Verdict.INCONCLUSIVE, evidence.doubt)
    if base is None or change is None or evidence.obstacle is not None:
        return decide_metric(evidence, context)
    if detection.is_gross(change, base, context.gross):
        return Decision(Verdict.REGRESSED, Finding("gross"))
    if detection.worsening(change, evidence.series.better) <= detection.limit(change, evidence.tolerance):
        return Decision(Verdict.OK, Finding("stored_times"))
    return Decision(Verdict.INCONCLUSIVE, Finding("not_gross", {"gross": context.gross}))


def not_the_code(sides: Sequence[Evidence], context: DecisionContext) -> Decision | None:
    """Returns ``REGRESSED`` if both revisions (``sides``) are grossly slower than stored times; None otherwise."""
    gross = [
        side.change
        for side in sides
        if side.change is not None and side.base is not None and side.doubt is None
        if detection.is_gross(side.change, side.base, context.gross)
    ]
    if len(gross) < len(sides):
        return None
    return Decision(Verdict.REGRESSED, Finding("not_the_code", {"change": gross[0].estimate}))


def decide_count(metric: str, then: Counts, now: Counts) -> Verdict:
    """Returns ``regressed`` for more or other work on any rank, ``improved`` for less, ``unchanged`` otherwise.

    Changes up to ``CountRow.floor`` are ignored. So are changes that may come from counting other steps than before. If
    steps differ irregularly, a doubled count is ``inconclusive``. Counts of a step's work, such as the rows of a batch,
    follow another rule if the FLOPs of forward are unknown or change in the direction of the count. Less work is then
    ``regressed``, and more work ``incompatible``. An equal number of rows with another shape is ``incompatible``, too.
    """
    row = counts.count_row(metric)
    gone = row.needed and not now.totals[metric] and bool(counts.beyond_floor(metric, then, now))
    if gone or row.wanted_of:
        return Verdict.REGRESSED if gone or counts.is_lost(metric, then, now) else Verdict.UNCHANGED
    totals = _direction(counts.beyond_floor(metric, then, now))
    if totals is Verdict.UNCHANGED and metric in {**then.unstable, **now.unstable}:
        return Verdict.INCONCLUSIVE if now.totals[metric] >= 2 * then.totals[metric] > 0 else totals
    if row.of_work and counts.may_be_another_step(metric, then, now):
        return {Verdict.REGRESSED: Verdict.INCOMPATIBLE, Verdict.IMPROVED: Verdict.REGRESSED}.get(totals, totals)
    if row.of_work and row.guessed:
        return Verdict.INCOMPATIBLE if counts.has_other_shapes(metric, then, now) else Verdict.UNCHANGED
    if totals is not Verdict.UNCHANGED or not row.made_up:
        return totals
    return _direction(counts.changed_parts(metric, then, now))


def decide_compared_count(metric: str, then: Counts | None, now: Counts | None, *, differs: bool) -> Verdict:
    """Returns a count's verdict; ``new`` if a value is missing, ``incompatible`` if the environments differ."""
    if then is None or now is None or metric not in then.totals.keys() & now.totals.keys():
        return Verdict.NEW
    return Verdict.INCOMPATIBLE if differs else decide_count(metric, then, now)


def _direction(pairs: Iterable[tuple[float, float]]) -> Verdict:
    """Returns ``regressed`` if a value grew in any (before, now) pair, ``improved`` if one fell, or ``unchanged``."""
    signs = {after - before > 0 for before, after in pairs if after != before}
    return Verdict.REGRESSED if True in signs else Verdict.IMPROVED if signs else Verdict.UNCHANGED


def with_stand_in(comparisons: Sequence[Comparison], *, proves: bool, last: bool) -> tuple[Comparison, ...]:
    """Returns the comparisons, changed so that the CPU time can fail the test only if the step time is undecided.

    More CPU time is no regression if steps became shorter. ``proves``: whether this interim verdict may prove that
    metrics are no worse. If ``proves`` is false, a CPU time that got worse is ``inconclusive``. If the CPU time looks
    worse before the ``last`` verdict, an ``unchanged`` step time becomes ``inconclusive``.
    """
    step = next((each for each in comparisons if each.series.metric == STEP_TIME and each.gated), None)
    if step is None:
        return tuple(comparisons)
    works = [each for each in comparisons if each.gated and each.series.rules.stands_in]
    longer = step.change is not None and step.change >= 0
    more_work = longer and any(each.suspicious or each.verdict is Verdict.REGRESSED for each in works)
    held = more_work and not last and step.verdict is Verdict.UNCHANGED and step.note is None
    step = replace(step, verdict=Verdict.INCONCLUSIVE) if held else step
    stands_in = longer and step.verdict in OPEN

    def counting(each: Comparison) -> Comparison:
        if each not in works:
            return step if each.series.metric == STEP_TIME else each
        if not stands_in or each.verdict is Verdict.IMPROVED:
            return replace(each, gated=False)
        if each.verdict is Verdict.REGRESSED and (held or not proves):
            return replace(each, verdict=Verdict.INCONCLUSIVE)
        return replace(each, note=each.note or Finding("stands_in_for_step_time"))

    return tuple(map(counting, comparisons))


def decide_benchmark(
    comparisons: Sequence[Comparison], reference: Reference, *, lost: bool = False, untimed: bool = False
) -> Verdict:
    """Returns the worst verdict of the gated metrics, which can fail a test.

    Without gated metrics, the verdict is ``incompatible`` if the reference differs in environment or training, ``new``
    if no reference exists, and otherwise ``unchanged``. The verdict ``improved`` needs all gated metrics to improve. If
    the reference is another revision, or all metrics are counts, a single improved metric is enough. But then no metric
    may be worse, and no time undecided. ``lost``: whether the candidate lacks gated metrics of the reference.
    ``untimed``: whether no time was left to measure. If a time passes, undecided ``alarm_only`` metrics do not count.
    """
    of_gate, paired = [each for each in comparisons if each.gated], reference.paired
    timed = {each.verdict for each in of_gate if each.series.drifts and not each.series.rules.alarm_only}
    if timed & GREEN:
        of_gate = [each for each in of_gate if not (each.series.rules.alarm_only and each.verdict in OPEN)]
    gated = [each.verdict for each in of_gate]
    if paired and reference.record is not None:
        gated = [verdict for verdict in gated if verdict is not Verdict.NEW] or gated  # only the candidate has these
    only_counts = all(comparison.series.scale == "exact" for comparison in comparisons)
    of_reference = Verdict.NEW if reference.record is None else Verdict.UNCHANGED
    told = only_counts and paired and reference.counted_differs  # counts of another torch judge nothing
    verdicts = gated or [Verdict.INCOMPATIBLE if reference.differs or told else of_reference]
    better = (only_counts or paired) and Verdict.IMPROVED in gated and set(gated) <= NOT_WORSE
    if better and Verdict.INCONCLUSIVE not in timed:
        verdicts = [Verdict.IMPROVED]
    verdict = max([*verdicts, *([Verdict.INCOMPATIBLE] if lost else [])], key=lambda verdict: verdict.severity)
    return Verdict.INCONCLUSIVE if untimed and verdict in GREEN else verdict


def unconfirmed(result: Result) -> Result:
    """Returns the result with ``inconclusive``, not ``regressed``, for metrics that more launches have to confirm."""
    if result.verdict is Verdict.BROKEN:
        return result
    comparisons = tuple(
        replace(each, verdict=Verdict.INCONCLUSIVE, note=Finding("to_confirm"), suspicious=True)
        if each.verdict is Verdict.REGRESSED and wants_launches(each)
        else each
        for each in result.comparisons
    )
    return decided_anew(result, comparisons)


def decided_anew(result: Result, comparisons: tuple[Comparison, ...]) -> Result:
    """Returns the result with new ``comparisons`` and the verdict on them."""
    lost, untimed = _lost_metrics(result), result.measurement.untimed
    verdict = decide_benchmark(comparisons, result.reference, lost=lost, untimed=untimed)
    return replace(result, comparisons=comparisons, verdict=verdict)


def _lost_metrics(result: Result) -> bool:
    """Returns whether the candidate lacks metrics of the reference that can fail a test (gated metrics)."""
    return any(finding.code == "lost_metric" for finding in result.findings)


def failing_verdict(result: Result, failing: Collection[Verdict]) -> Verdict | None:
    """Returns the worst verdict in ``failing`` that a benchmark has; None if the benchmark has none of them.

    Besides the overall verdict, the benchmark has ``incompatible`` if a gated metric (which can fail a test) has this
    verdict. With a stored baseline, the rule applies to ``new``, too. A worse overall verdict could hide both.
    """
    lacking = {Verdict.INCOMPATIBLE} if result.reference.paired else {Verdict.INCOMPATIBLE, Verdict.NEW}
    gated = {comparison.verdict for comparison in result.comparisons if comparison.gated}
    verdicts = {result.verdict, *(gated & lacking)}
    if _lost_metrics(result):
        verdicts.add(Verdict.INCOMPATIBLE)
    return max(verdicts & set(failing), key=lambda verdict: verdict.severity, default=None)


def decide_unfit(*, fitted: bool, counted: Sequence[Comparison] = ()) -> Verdict:
    """Returns the verdict on a candidate that does not fit into memory; ``fitted``: whether the reference fits."""
    worse = fitted or any(each.gated and each.verdict is Verdict.REGRESSED for each in counted)
    return Verdict.REGRESSED if worse else Verdict.DOES_NOT_FIT


def decide_failure() -> Verdict:
    """Returns the verdict on a benchmark that could not be measured, or whose ranks no longer train one model."""
    return Verdict.BROKEN
