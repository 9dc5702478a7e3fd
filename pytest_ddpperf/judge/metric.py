"""The comparison of one metric with the reference: its change, the verdict, and a note that explains the verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pytest_ddpperf.judge import changes, detection
from pytest_ddpperf.judge.decision import (
    Decision,
    DecisionContext,
    Evidence,
    StoredTimes,
    decide_metric,
    decide_stored_times,
    not_the_code,
)
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import BaselineRecord, Comparison, PairedRevision, Reference, StoredBaseline
from pytest_ddpperf.records.verdict import OPEN, Verdict
from pytest_ddpperf.stats import intervals
from pytest_ddpperf.stats.intervals import Change, with_launches

OTHER_CLOCK = 0.05  # by how much the logarithms of the GPUs' clocks may differ between compared runs
SHOWN = {"incomparable", "timed_otherwise"}  # obstacles with which the change from stored times is shown nevertheless


def reference_of(series: Series, reference: Reference) -> Reference:
    """Returns ``reference``; but for times, the baseline's commit if this run has measured that commit again."""
    pair = None if isinstance(reference, PairedRevision) else reference.pair
    return pair if pair is not None and pair.record is not None and series.drifts else reference


def compare_metric(
    series: Series, measurement: Measurement, reference: Reference, context: DecisionContext
) -> Comparison:
    """Compares one metric with the reference; returns change, verdict, and a note if it needs an explanation."""
    if series.rules.diagnosed or not series.rules.weight:  # a single look, or nothing that differs between looks
        context = replace(context, proofs=detection.ONE_LOOK)
    judging = reference_of(series, reference)
    paired = isinstance(judging, PairedRevision)
    base = _series_in(judging, series.metric)
    obstacle = _obstacle(series, base, measurement, judging)
    if base is None or _kind(series) != _kind(base):
        return _incomparable(series, base, judging, obstacle, context)
    tolerance, values = _tolerance(series, base, measurement, judging, context), (base.value, series.value)
    if series.drifts and isinstance(judging, StoredBaseline):
        stored = _stored_times(series, measurement, judging)
        evidence = Evidence(series=series, base=base, obstacle=obstacle, change=stored.change, tolerance=tolerance)
        return _beside_stored_times(evidence, base, stored, context)
    fresh = change = changes.change_from(series, base, measurement, paired=paired)
    if measurement.fresh_from and len(series.samples) == len(measurement.launches):
        since = slice(measurement.fresh_from, None)
        partner = changes.part_of(base, since) if paired and len(base.samples) == len(series.samples) else base
        fresh = changes.change_from(changes.part_of(series, since), partner, measurement, paired=paired)
    evidence = Evidence(
        series=series,
        base=base,
        obstacle=obstacle,
        negligible=min(values) == 0 and max(values) <= series.rules.negligible > 0,
        change=change,
        fresh=fresh,
        tolerance=tolerance,
        whole=changes.worsening_of_all_steps(series, base) if paired else None,
    )
    decision = decide_metric(evidence, context)
    if isinstance(reference, StoredBaseline) and paired and series.gated and not series.rules.alarm_only:
        decision = not_the_code(decision, evidence, _stored_times(series, measurement, reference), context)
    judged, note = (change if obstacle is None else None), decision.note
    if note is None and judged is not None and not evidence.negligible:
        stale, launches = isinstance(reference, StoredBaseline), len(measurement.launches)
        note = _note(decision.verdict, evidence, judged, context, stale=stale, paired=paired, launches=launches)
    may_be = context.suspected is None or series.metric in context.suspected
    latest = fresh if obstacle is None and may_be else None
    suspicious = latest is not None and detection.looks_worse(latest, better=series.better, tolerance=tolerance)
    worse = suspicious or decision.verdict is Verdict.REGRESSED
    best = None if judged is None else with_launches(judged, context.affordable or judged.launches)
    proven = None if worse or decision.verdict is Verdict.OK else context.resolution_of(series)
    bound, bound_alpha = (None, None) if judged is None else _bound(judged, series, context, decision)
    return Comparison(
        series=series,
        baseline=base.value,
        **_figures(change, context.proofs.interval),
        tolerance=tolerance,
        mde=None if best is None else detection.mde(best, alpha=context.alpha_of(series), tolerance=tolerance),
        verdict=decision.verdict,
        gated=series.gated,
        note=note,
        suspicious=suspicious,
        promising=judged is not None and detection.looks_better(judged, better=series.better, tolerance=tolerance),
        enough=changes.enough(evidence, judged, context, proven)
        if judged and (worse or decision.verdict in OPEN)
        else None,
        base_samples=base.samples,
        margin=context.margin * tolerance,
        bound=bound,
        interval_alpha=None if change is None else context.proofs.interval,
        bound_alpha=bound_alpha,
        worse_in=changes.worse_in(series, base, paired=paired) if judged else None,
        paired=paired,
    )


def _incomparable(
    series: Series, base: Series | None, reference: Reference, obstacle: Finding | None, context: DecisionContext
) -> Comparison:
    """Returns the comparison of a metric that the reference lacks, or has with another unit, direction or scale."""
    evidence = Evidence(series=series, base=base, differs=bool(reference.differs), obstacle=obstacle)
    decision = decide_metric(evidence, context)
    return Comparison(
        series=series,
        tolerance=changes.tolerance_of(series, series.value, context.accepted(paired=reference.paired)),
        verdict=decision.verdict,
        gated=series.gated,
        note=decision.note,
    )


def _beside_stored_times(evidence: Evidence, base: Series, stored: StoredTimes, context: DecisionContext) -> Comparison:
    """Returns the comparison of a machine-dependent metric if only stored values are known."""
    series, change = evidence.series, stored.change
    decision = decide_stored_times(evidence, stored, context)
    return Comparison(
        series=series,
        baseline=base.value,
        **_figures(change, 1 - intervals.CONFIDENCE),
        tolerance=evidence.tolerance,
        verdict=decision.verdict,
        gated=series.gated,
        note=decision.note,
        base_samples=base.samples,
        worse_in=None if change is None else changes.worse_in(series, base, paired=False),
    )


def _stored_times(series: Series, measurement: Measurement, stored: StoredBaseline) -> StoredTimes:
    """Returns the change of a machine-dependent metric from stored times, and any doubt about this change.

    The environments may differ. One of the two measurements may be interleaved, which makes steps a little longer.
    """
    record = stored.record
    base = _series_in(stored, series.metric)
    obstacle = _obstacle(series, base, measurement, stored)
    if record is None or base is None or (obstacle is not None and obstacle.code not in SHOWN):
        return StoredTimes(change=None)
    then, now = (each.environment.recorded.get("host") for each in (record, measurement))
    doubt = None
    if then != now or then is None:
        doubt = Finding("other_host", {"host": then or "unknown"})
    elif record.busy or measurement.busy:
        doubt = Finding(
            "busy",
            {"now": measurement.lost if measurement.busy else None, "then": record.lost if record.busy else None},
        )
    elif record.clock and measurement.clock and abs(math.log(measurement.clock / record.clock)) > OTHER_CLOCK:
        doubt = Finding("other_clock", {"then": record.clock, "now": measurement.clock})
    change = changes.change_from(series, base, measurement, paired=False)
    return StoredTimes(change=change, doubt=doubt)


def slower_than_stored(measurement: Measurement, stored: StoredBaseline, context: DecisionContext) -> Finding | None:
    """Returns a warning if this checkout and the baseline's commit are both slower than the baseline's stored times."""
    series = _series_named(STEP_TIME, measurement.series)
    base = None if stored.pair is None else _series_in(stored.pair, STEP_TIME)
    if series is None or base is None:
        return None
    told = _stored_times(series, measurement, stored)
    if told.change is None or told.doubt is not None:
        return None
    most = detection.limit(told.change, context.resolution or context.gross)
    own = changes.change_from(series, base, measurement, paired=True)
    explained = own is None or own.shift >= told.change.shift / 2  # the code explains at least half of it
    slower = detection.worsening(told.change, series.better) > most
    if not slower or explained or detection.is_gross(told.change, base, context.gross):
        return None
    return Finding("slower_than_stored", {"change": told.change.estimate, "differ": stored.recorded_differ})


def _bound(change: Change, series: Series, context: DecisionContext, decision: Decision) -> tuple[float | None, ...]:
    """Returns the upper bound of the worsening in the tolerance's unit, and its error (None if proven earlier)."""
    if decision.note is not None and decision.note.code == "proven_earlier":
        return context.proven[series.metric][1], None
    most = detection.upper_bound(change, series.better, context.proofs.level)
    return intervals.from_log(most) if most is not None and change.logarithmic else most, context.proofs.level


def _obstacle(series: Series, base: Series | None, measurement: Measurement, reference: Reference) -> Finding | None:
    """Returns a finding that says why this metric cannot be compared; None if it can, or without a reference."""
    record = reference.record
    if base is None or record is None:
        return None if record is None else Finding("not_in_reference", {"paired": reference.paired})
    if _kind(series) != _kind(base):
        return Finding("other_kind", {"then": " ".join(_kind(base)), "now": " ".join(_kind(series))})
    if reference.differs:
        return Finding("incomparable", {"differs": reference.differs})
    if record.typical and series.drifts:
        return Finding("other_step_time")
    return _made_otherwise(series, measurement, record)


def _made_otherwise(series: Series, measurement: Measurement, record: BaselineRecord) -> Finding | None:
    """Returns a finding if the baseline differs in interleaving, in the base of speedups, or in the number of steps."""
    if (series.rules.timed or series.rules.partnered) and record.turns != measurement.turns:
        return Finding("timed_otherwise", {"then_in_turns": record.turns})
    if series.rules.partnered and record.over not in {None, measurement.over}:
        return Finding("other_base", {"then": record.over, "now": measurement.over})
    then, now = (plan.warmup + plan.steps for plan in (record.plan, measurement.plan))
    if series.rules.after_steps and then != now:
        return Finding("loss_of_other_step", {"then": then, "now": now})
    return None


def _kind(series: Series) -> tuple[str, str, str]:
    """Returns the fields in which two series must agree to be compared."""
    return series.unit, f"{series.better} is better", series.scale


def _tolerance(
    series: Series, base: Series, measurement: Measurement, reference: Reference, context: DecisionContext
) -> float:
    step = _series_in(reference, STEP_TIME)
    step_time = step.value if step is not None and (step.gated or not series.rules.stands_in) else None
    if step_time is not None and series.rules.stands_in:
        step_time *= 1 - measurement.lost  # steps wait for cores that others take, and more work waits longer
    return changes.tolerance_of(series, base.value, context.accepted(paired=reference.paired), step_time)


def _figures(change: Change | None, alpha: float) -> dict[str, Any]:
    """Returns the fields of a comparison that depend on the change; ``alpha`` is the error level of its interval."""
    if change is None:
        return {}
    return {
        "change": change.estimate,
        "change_interval": intervals.interval_at(change, alpha),
        "standard_error": change.standard_error,
        "df": change.df,
    }


def _note(
    verdict: Verdict,
    evidence: Evidence,
    change: Change,
    context: DecisionContext,
    *,
    stale: bool,
    paired: bool,
    launches: int,
) -> Finding | None:
    """Returns a note that explains a verdict; ``stale``: whether an improvement makes the baseline out of date."""
    better = evidence.series.better
    match verdict:
        case Verdict.IMPROVED if stale:
            return Finding("stale_baseline")
        case Verdict.UNCHANGED if (
            paired
            and detection.looks_better(change, better=better, tolerance=evidence.tolerance)
            and (detection.upper_bound(change, better, context.proofs.interval / 2) or 0.0)
            < 0  # end of the shown interval
        ):
            return Finding("looks_better")
        case Verdict.INCONCLUSIVE:
            takes = changes.what_it_takes(evidence, change, context, paired=paired, launches=launches)
            rare = takes.code == "launches_needed" and _in_few_launches(evidence, change, context)
            return Finding("rare_long_steps", {"whole": evidence.whole}) if rare else takes
    return None


def _in_few_launches(evidence: Evidence, change: Change, context: DecisionContext) -> bool:
    """Returns whether a few slow launches alone make a metric worse, while its typical launch is not worse."""
    resolution, margin = context.resolution_of(evidence.series), context.margin * evidence.tolerance
    most = detection.limit(change, max(margin, resolution or 0.0))
    usual = detection.worsening(change, evidence.series.better) <= most
    return usual and detection.hides_long_steps(evidence.whole, resolution, margin)


def _series_in(reference: Reference, metric: str) -> Series | None:
    return None if reference.record is None else _series_named(metric, reference.record.series)


def _series_named(metric: str, among: tuple[Series, ...]) -> Series | None:
    return next((series for series in among if series.metric == metric), None)
