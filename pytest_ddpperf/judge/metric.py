"""The judgement on one metric: its change from the reference, the verdict on it, and a note that explains it."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_ddpperf.judge.allowance import (
    NO_SPREAD,
    corrected,
    disturbance,
    drift_of,
    excused_by,
    hidden_by,
    spread_between_runs,
    tolerance_of,
)
from pytest_ddpperf.judge.decision import Decision, DecisionContext, Evidence, decide_metric, needed
from pytest_ddpperf.judge.detection import (
    LAST_SUSPICIOUS,
    ONE_LOOK,
    SUSPICIOUS,
    highest,
    looks_better,
    looks_worse,
    mde,
)
from pytest_ddpperf.judge.scatter import expected_alone, expected_of_pairs, worse_in
from pytest_ddpperf.metrics.control import controlled, pace
from pytest_ddpperf.metrics.table import STEP_TIME, outlying_end
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Better, Control, Measurement, Series
from pytest_ddpperf.records.results import BaselineRecord, Comparison, PairedRevision, Reference, StoredBaseline
from pytest_ddpperf.records.verdict import OPEN, Verdict
from pytest_ddpperf.stats import intervals
from pytest_ddpperf.stats.intervals import Change

FEW = 6  # launches; by the scatter of fewer, little can be foreseen
PRACTICABLE = 200  # launches for which somebody may still wait: some minutes of short steps


def compare_metric(
    series: Series, measurement: Measurement, reference: Reference, context: DecisionContext
) -> Comparison:
    """The judgement on one metric: its verdict, and the note that explains it where the numbers alone do not."""
    if series.rules.diagnosed or not series.rules.weight:  # one look at it, or nothing that differs from look to look
        context = replace(context, proofs=ONE_LOOK)
    paired = isinstance(reference, PairedRevision)
    base = _series_named(series.metric, () if reference.record is None else reference.record.series)
    obstacle = _obstacle(series, base, measurement, reference)
    if base is None or _kind(series) != _kind(base):
        evidence = Evidence(series=series, base=base, differs=bool(reference.differs), obstacle=obstacle)
        decision = decide_metric(evidence, context)
        return Comparison(
            series=series,
            tolerance=tolerance_of(series, series.value, context.tolerance),
            verdict=decision.verdict,
            gated=series.gated,
            note=decision.note,
        )
    fresh = plain = _change(series, base, measurement, reference, context)
    change = plain if paired else _change(series, base, measurement, reference, context, disturbed=True)
    if measurement.fresh_from and len(series.samples) == len(measurement.launches):
        since = slice(measurement.fresh_from, None)
        partner = _part(base, since) if paired and len(base.samples) == len(series.samples) else base
        fresh = _change(_part(series, since), partner, measurement, reference, context)
    tolerance, values = _tolerance(series, base, measurement, reference, context), (base.value, series.value)
    evidence = Evidence(
        series=series,
        base=base,
        obstacle=obstacle,
        negligible=min(values) == 0 and max(values) <= series.rules.negligible > 0,
        change=change,
        fresh=fresh,
        tolerance=tolerance,
        excuse=_excuse(series, base, measurement, reference, fresh),
        doubt=_doubt(series, base, measurement, reference, tolerance),
    )
    decision = decide_metric(evidence, context)
    change = plain if decision.verdict is Verdict.REGRESSED else change  # what nothing excuses
    judged, note = (change if obstacle is None else None), decision.note
    quotient = _controlled(series, base, reference)
    if note is None and judged is not None and not evidence.negligible:
        note = _note(decision.verdict, evidence, judged, context, paired=paired, launches=len(measurement.launches))
    level = LAST_SUSPICIOUS if context.screened and not paired else SUSPICIOUS
    may_be = context.suspected is None or series.metric in context.suspected
    latest = fresh if obstacle is None and may_be else None
    suspicious = latest is not None and looks_worse(latest, better=series.better, tolerance=tolerance, level=level)
    worse = suspicious or decision.verdict is Verdict.REGRESSED
    proven = None if worse or decision.verdict is Verdict.OK else context.resolution_of(series)
    return Comparison(
        series=series,
        baseline=base.value,
        change=None if change is None else change.estimate,
        change_interval=None if change is None else intervals.interval_at(change, context.proofs.interval),
        standard_error=None if change is None else change.standard_error,
        tolerance=tolerance,
        mde=None if judged is None else _mde(judged, tolerance, series, context),
        verdict=decision.verdict,
        gated=series.gated,
        note=note,
        suspicious=suspicious,
        promising=judged is not None and looks_better(judged, better=series.better, tolerance=tolerance),
        enough=_enough(evidence, judged, context, proven) if judged and (worse or decision.verdict in OPEN) else None,
        df=math.inf if change is None else change.df,
        base_samples=base.samples,
        margin=context.margin * tolerance,
        bound=None if judged is None else _bound(judged, series, context, decision),
        controlled=change is not None and quotient,
        worse_in=worse_in(series, base, paired=paired, quotient=quotient) if judged else None,
        paired=paired,
    )


def _controlled(series: Series, base: Series, reference: Reference) -> bool:
    """Whether the change is that of quotients by the control step."""
    known = series.control is not None and base.control is not None
    return known and isinstance(reference, StoredBaseline)


def _part(series: Series, launches: slice) -> Series:
    """The series of some of its launches."""
    control = series.control
    if control is not None:
        control = Control(seconds=control.seconds[launches], within=control.within[launches])
    return replace(series, samples=series.samples[launches], within=series.within[launches], control=control)


def _bound(change: Change, series: Series, context: DecisionContext, decision: Decision) -> float | None:
    """The worsening that is ruled out, in the tolerance's terms: by the look that proved what is told."""
    if decision.note is not None and decision.note.code == "proven_earlier":
        return context.proven[series.metric][1]
    most = highest(change, series.better, context.proofs.level)
    return intervals.from_log(most) if most is not None and change.logarithmic else most


def _obstacle(series: Series, base: Series | None, measurement: Measurement, reference: Reference) -> Finding | None:
    """Why the reference cannot judge this metric; None where it can, and where there is no reference."""
    record = reference.record
    if base is None or record is None:
        return None if record is None else Finding("not_in_reference", {"paired": reference.paired})
    if _kind(series) != _kind(base):
        return Finding("other_kind", {"then": " ".join(_kind(base)), "now": " ".join(_kind(series))})
    if reference.differs:
        return Finding("incomparable", {"differs": reference.differs})
    return _made_otherwise(series, measurement, record)


def _made_otherwise(series: Series, measurement: Measurement, record: BaselineRecord) -> Finding | None:
    """What sets a comparable record of the metric apart from the measurement; None where nothing does."""
    if series.rules.interleaved and record.turns != measurement.turns:
        return Finding("timed_otherwise", {"then_in_turns": record.turns})
    if series.rules.partnered and record.over not in {None, measurement.over}:
        return Finding("other_base", {"then": record.over, "now": measurement.over})
    then, now = (plan.warmup + plan.steps for plan in (record.plan, measurement.plan))
    if series.rules.after_steps and then != now:
        return Finding("loss_of_other_step", {"then": then, "now": now})
    return None


def _kind(series: Series) -> tuple[str, str, str]:
    """What two series must agree in to be compared at all."""
    return series.unit, f"{series.better} is better", series.scale


def _tolerance(
    series: Series, base: Series, measurement: Measurement, reference: Reference, context: DecisionContext
) -> float:
    """The tolerance of a metric: what was learned of noise has no say in it."""
    step = _series_named(STEP_TIME, () if reference.record is None else reference.record.series)
    step_time = step.value if step is not None and (step.gated or not series.rules.stands_in) else None
    if step_time is not None and series.rules.stands_in:
        step_time *= 1 - measurement.lost  # steps wait for cores that others take, and more work waits more
    return tolerance_of(series, base.value, context.tolerance, step_time)


def _excuse(
    series: Series, base: Series, measurement: Measurement, reference: Reference, change: Change | None
) -> Finding | None:
    """Why a slowdown beside a stored baseline says nothing; None where nothing excuses it."""
    paired = isinstance(reference, PairedRevision)
    if paired or change is None or reference.record is None or not series.rules.interleaved:
        return None
    measurement = replace(measurement, launches=measurement.fresh, fresh_from=0)  # those that found it worse
    worsening, controlled = intervals.from_log(abs(change.shift)), _controlled(series, base, reference)
    return excused_by(measurement, reference.record.lost, worsening, controlled=controlled)


def _doubt(
    series: Series, base: Series, measurement: Measurement, reference: Reference, tolerance: float
) -> Finding | None:
    """Why a time beside a stored baseline cannot be good; None where nothing hides a slowdown."""
    record = reference.record
    if record is None or isinstance(reference, PairedRevision) or not series.rules.interleaved:
        return None
    controlled = _controlled(series, base, reference)
    if series.scale != "ratio" and not controlled:
        return None
    return hidden_by(measurement, record.lost, tolerance, controlled=controlled)


def _mde(change: Change, tolerance: float, series: Series, context: DecisionContext) -> float | None:
    """What this run would have found, with as many launches as there is time for."""
    best = intervals.with_launches(change, context.affordable or change.launches)
    return mde(best, alpha=context.alpha_of(series), tolerance=tolerance)


def _change(
    series: Series,
    base: Series,
    measurement: Measurement,
    reference: Reference,
    context: DecisionContext,
    *,
    disturbed: bool = False,  # whether others' part of the cores makes quotients doubtful, which it moves either way
) -> Change | None:
    """The change from the reference: by rounds where both sides were measured in the same ones."""
    runs: tuple[int, ...] = ()
    spread, drift, outliers = NO_SPREAD, 0.0, outlying_end(series.rules, series.better)
    independent, others = 1.0, 0.0
    if isinstance(reference, StoredBaseline):
        step = _series_named(STEP_TIME, measurement.series)
        step_time = None if step is None else step.value
        quotient = _controlled(series, base, reference)
        spread = spread_between_runs(series, measurement.environment, step_time, reference.noise, quotient=quotient)
        drift = drift_of(series)
        if reference.record is not None:
            runs = reference.record.sizes_of_runs(base)
            of_runs = float(len(runs)) if quotient else reference.record.days  # the drift is out of quotients
            independent = of_runs if runs else 1.0
            others = disturbance(measurement, reference.record.lost, controlled=True) if disturbed else 0.0
        if quotient:
            spread = corrected(spread, pace(series, base, runs), independent, others)
            series, base = controlled(series), controlled(base)
    elif len(series.samples) == len(base.samples):
        return intervals.paired(
            series.samples,
            base.samples,
            scale=series.scale,
            outliers=None if outliers is None else "both",  # either side may be disturbed
            expected=expected_of_pairs(series, base, turns=measurement.turns),
        )
    return intervals.change(
        series.samples,
        base.samples,
        scale=series.scale,
        between_runs=spread.sd,
        between_df=spread.df,
        drift=drift,
        outliers=outliers,
        expected=expected_alone(series, base, context.scatter, runs),
        base_runs=runs,
        independent=independent,
    )


def _note(
    verdict: Verdict, evidence: Evidence, change: Change, context: DecisionContext, *, paired: bool, launches: int
) -> Finding | None:
    """What explains a verdict by numbers; None where nothing has to be explained."""
    better = evidence.series.better
    match verdict:
        case Verdict.IMPROVED if not paired:
            return Finding("stale_baseline")
        case Verdict.UNCHANGED if (
            paired
            and looks_better(change, better=better, tolerance=evidence.tolerance)
            and _all_better(change, better, context.proofs.interval)
        ):
            return Finding("looks_better")
        case Verdict.INCONCLUSIVE:
            return _what_it_takes(evidence, change, context, paired=paired, launches=launches)
    return None


def _all_better(change: Change, better: Better, level: float) -> bool:
    """Whether the interval that is printed beside the change has nothing but improvements in it."""
    interval = intervals.interval_at(change, level)
    if interval is None:
        return False
    return interval.high < 0 if better == "lower" else interval.low > 0


def _what_it_takes(
    evidence: Evidence, change: Change, context: DecisionContext, *, paired: bool, launches: int
) -> Finding:
    """What would decide a metric; ``launches`` were made for the times."""
    series, told = evidence.series, len(evidence.series.samples)
    if told < launches:
        return Finding("told_late", {"launches": told})
    if change.standard_error is None:
        return Finding("single_launch")
    wanted = _enough(evidence, change, context, context.resolution_of(series))
    if wanted is None or wanted > PRACTICABLE:
        return Finding("no_launches_decide", {"any_number": wanted is None, "paired": paired})
    max_time = None
    if series.gated and context.last and context.max_time_for is not None:
        max_time = math.ceil(context.max_time_for(wanted - told))
    return Finding("launches_needed", {"launches": wanted, "max_time": max_time, "known": told if told < FEW else None})


def _enough(evidence: Evidence, change: Change, context: DecisionContext, resolution: float | None) -> int | None:
    """About how many launches would decide a metric; ``resolution``: the worsening that it is enough to rule out."""
    return needed(
        change,
        better=evidence.series.better,
        tolerance=evidence.tolerance,
        alpha=context.alpha_of(evidence.series),
        margin=context.margin,
        resolution=resolution,
        proofs=context.proofs.at(1.0, last=True),
    )


def _series_named(metric: str, among: tuple[Series, ...]) -> Series | None:
    return next((series for series in among if series.metric == metric), None)
