"""The judgement on one metric: its change from the reference, and the verdict on it."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_ddpperf.judge.allowance import NO_SPREAD, drift_of, floor_of, spread_between_runs, tolerance_of
from pytest_ddpperf.judge.context import DecisionContext
from pytest_ddpperf.judge.decision import Evidence, decide_metric
from pytest_ddpperf.judge.detection import LAST_SUSPICIOUS, SUSPICIOUS, looks_better, looks_worse, mde
from pytest_ddpperf.judge.disturbance import excused_by
from pytest_ddpperf.judge.notes import note_on
from pytest_ddpperf.metrics.table import STEP_TIME, outliers_of
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import BaselineRecord, Comparison, PairedRevision, Reference, StoredBaseline
from pytest_ddpperf.stats import intervals
from pytest_ddpperf.stats.blocks import OWN_IN_TURNS, Expected, expected, paired_blocks
from pytest_ddpperf.stats.centers import Outliers
from pytest_ddpperf.stats.intervals import Change
from pytest_ddpperf.stats.spreads import joined, pooled

CERTAIN = 100.0  # degrees of freedom of a scatter that was measured thousands of times


def compare_metric(
    series: Series, measurement: Measurement, reference: Reference, context: DecisionContext
) -> Comparison:
    """The judgement on one metric: its verdict, and the note that explains it where the numbers alone do not."""
    base = _series_named(series.metric, reference.record)
    obstacle = None if base is None else _obstacle(series, base, measurement, reference)
    if base is None or (obstacle is not None and _kind(series) != _kind(base)):
        evidence = Evidence(series=series, base=base, differs=bool(reference.differs), obstacle=obstacle is not None)
        return Comparison(
            series=series,
            tolerance=tolerance_of(series, series.value, context.tolerance),
            verdict=decide_metric(evidence, context).verdict,
            gated=series.gated,
            note=obstacle or _not_in(reference),
        )
    change = _change(series, base, measurement, reference, context)
    excuse = _excuse(series, measurement, reference, change)
    evidence = Evidence(
        series=series,
        base=base,
        obstacle=obstacle is not None,
        negligible=_negligible(base.value, series.value, series.rules.negligible),
        change=change,
        tolerance=_tolerance(series, base, reference, context),
        excused=excuse is not None,
    )
    decision = decide_metric(evidence, context)
    own = replace(context, tolerance=evidence.tolerance)
    judged = change if obstacle is None else None
    level = _level_of_suspicion(reference, context)
    return Comparison(
        series=series,
        baseline=base.value,
        change=None if change is None else change.estimate,
        change_interval=None if change is None else change.interval,
        tolerance=evidence.tolerance,
        mde=None if judged is None else _mde(judged, own),
        verdict=decision.verdict,
        gated=series.gated,
        note=obstacle
        or (excuse if decision.ground == "excused" else None)
        or note_on(
            decision, evidence, own, paired=isinstance(reference, PairedRevision), launches=len(measurement.launches)
        ),
        suspicious=judged is not None
        and looks_worse(judged, better=series.better, tolerance=evidence.tolerance, level=level),
        promising=judged is not None and looks_better(judged, better=series.better, tolerance=evidence.tolerance),
        df=math.inf if change is None else change.df,
        base_samples=base.samples,
        margin=context.margin * evidence.tolerance,
    )


def _not_in(reference: Reference) -> Finding | None:
    """What is said of a metric that the reference does not have."""
    return None if reference.record is None else Finding("not_in_reference", {"reference": reference.words})


def _negligible(then: float, now: float, amount: float) -> bool:
    """Whether something appeared or went that is too little to mean anything."""
    return amount > 0 and min(then, now) == 0 and max(then, now) <= amount


def _tolerance(series: Series, base: Series, reference: Reference, context: DecisionContext) -> float:
    """The tolerance of a metric, no smaller than the noise that was learned for it."""
    step = _series_named(STEP_TIME, reference.record)
    step_time = step.value if step is not None and step.gated else None
    accepted = tolerance_of(series, base.value, context.tolerance, step_time)
    return max(accepted, floor_of(series, reference.noise if isinstance(reference, StoredBaseline) else None))


def _excuse(series: Series, measurement: Measurement, reference: Reference, change: Change | None) -> Finding | None:
    """Why a slowdown beside a stored baseline says nothing; None where nothing excuses it."""
    paired = isinstance(reference, PairedRevision)
    if paired or change is None or reference.record is None or not series.rules.interleaved:
        return None
    return excused_by(measurement, reference.record.lost, intervals.from_log(abs(change.shift)))


def _level_of_suspicion(reference: Reference, context: DecisionContext) -> float:
    """How often what is unchanged may look worse at this look."""
    return LAST_SUSPICIOUS if context.screened and isinstance(reference, StoredBaseline) else SUSPICIOUS


def _mde(change: Change, context: DecisionContext) -> float | None:
    """What this run would have found: a suspect is confirmed by as many launches as there is time for."""
    best = intervals.with_launches(change, context.affordable or change.launches)
    return mde(best, alpha=context.alpha, tolerance=context.tolerance)


def _change(
    series: Series, base: Series, measurement: Measurement, reference: Reference, context: DecisionContext
) -> Change | None:
    """The change from the reference: by rounds where both sides were measured in the same ones."""
    spread, drift = NO_SPREAD, 0.0
    match reference:
        case PairedRevision() if len(series.samples) == len(base.samples):
            both: Outliers | None = None if outliers_of(series) is None else "both"  # either side may be disturbed
            return intervals.paired(
                series.samples,
                base.samples,
                scale=series.scale,
                outliers=both,
                expected=_expected_of_pairs(series, base, turns=measurement.turns),
            )
        case StoredBaseline():
            step = next((one.value for one in measurement.series if one.metric == STEP_TIME), None)
            spread = spread_between_runs(series, measurement.environment, step, reference.noise)
            drift = drift_of(series)
        case PairedRevision():
            pass  # both ran in the same minutes: no run deviates as a whole
    return intervals.change(
        series.samples,
        base.samples,
        scale=series.scale,
        between_runs=spread.sd,
        between_df=spread.df,
        drift=drift,
        outliers=outliers_of(series),
        expected=_expected(series, base, context),
    )


def _expected(series: Series, base: Series, context: DecisionContext) -> Expected | None:
    """What launches of a separate run are expected to scatter by: also as those of the baseline do."""
    if series.rules.single_scatter is not None and len(series.samples) == 1:
        return Expected(series.rules.single_scatter**2, CERTAIN)
    if not series.within:
        return None
    if series.scale != "ratio":
        return expected(series.within, series.own)
    learned = pooled([base.samples])
    if context.scatter is not None and series.rules.shared_scatter:
        learned = joined([learned, context.scatter])
    return expected(series.within, series.own, learned)


def _expected_of_pairs(series: Series, base: Series, *, turns: bool) -> Expected | None:
    """What the differences of launches of a round are expected to scatter by.

    Where they took turns, by what each pair of blocks differs; what a launch adds of its own is then less.
    """
    if series.rules.single_scatter is not None and len(series.samples) == 1:
        return Expected(2 * series.rules.single_scatter**2, CERTAIN)
    if series.scale != "ratio":  # steps of diagnoses, which did not alternate with the other side's
        sides = [expected(side.within, side.own) for side in (series, base)]
        known = [side for side in sides if side is not None]
        few = len(known) < len(sides)
        return None if few else Expected(sum(side.variance for side in known), min(side.df for side in known))
    moved = paired_blocks(series.within, base.within)
    return expected(moved, min(series.own, OWN_IN_TURNS) if turns else math.sqrt(2) * series.own)


def _obstacle(series: Series, base: Series, measurement: Measurement, reference: Reference) -> Finding | None:
    """Why the reference cannot judge this metric; None where it can."""
    record = reference.record
    if _kind(series) != _kind(base):
        return Finding("other_kind", {"then": " ".join(_kind(base)), "now": " ".join(_kind(series))})
    if reference.differs:
        return Finding("incomparable", {"differs": reference.differs})
    if series.rules.interleaved and record is not None and record.turns != measurement.turns:
        return Finding("timed_otherwise", {"then_in_turns": record.turns})
    if series.rules.after_steps and record is not None:
        then, now = (plan.warmup + plan.steps for plan in (record.plan, measurement.plan))
        if then != now:
            return Finding("loss_of_other_step", {"then": then, "now": now})
    return None


def _series_named(metric: str, record: BaselineRecord | None) -> Series | None:
    if record is None:
        return None
    return next((series for series in record.series if series.metric == metric), None)


def _kind(series: Series) -> tuple[str, str, str]:
    """What two series must agree in to be compared at all."""
    return series.unit, f"{series.better} is better", series.scale
