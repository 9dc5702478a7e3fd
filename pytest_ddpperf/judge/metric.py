"""The comparison of one metric with the reference: its change, the verdict, and a note that explains the verdict."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from pytest_ddpperf.judge import changes, detection
from pytest_ddpperf.judge import decision as rules
from pytest_ddpperf.judge.decision import Decision, DecisionContext, Evidence
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import BaselineRecord, Comparison, PairedRevision, Reference, StoredBaseline
from pytest_ddpperf.records.verdict import OPEN, Verdict
from pytest_ddpperf.stats import intervals
from pytest_ddpperf.stats.intervals import Change, with_launches

OTHER_CLOCK = 0.05  # by how much the logarithms of the GPUs' clocks may differ between compared runs
SHOWN = {"incomparable", "timed_otherwise"}  # obstacles with which the change from stored times is shown nevertheless


def compare_metric(
    series: Series, measurement: Measurement, reference: Reference, context: DecisionContext
) -> Comparison:
    """Compares one metric with the reference; returns change, verdict, and a note if it needs an explanation."""
    if series.rules.diagnosed or not series.rules.weight:  # a single look, or nothing that differs between looks
        context = replace(context, proofs=detection.ONE_LOOK)
    judging, pair = reference, reference.pair if isinstance(reference, StoredBaseline) else None
    if pair is not None and pair.record is not None and series.drifts:  # the baseline's commit is measured again
        judging = pair
    paired = isinstance(judging, PairedRevision)
    base = _series_in(judging.record, series.metric)
    obstacle = _obstacle(series, base, measurement, judging)
    if base is None or _kind(series) != _kind(base):
        tolerance = changes.tolerance_of(series, series.value, context.accepted(paired=judging.paired))
        differs = bool(judging.differs)
        evidence = Evidence(series=series, base=base, differs=differs, obstacle=obstacle, tolerance=tolerance)
        return _compared(evidence, rules.decide_metric(evidence, context))
    tolerance, values = _tolerance(series, base, measurement, judging, context), (base.value, series.value)
    stored = _beside_stored(series, measurement, reference) if isinstance(reference, StoredBaseline) else None
    alone = _judged_alone(series, measurement)
    if series.drifts and stored is not None and not paired:
        evidence = replace(stored, tolerance=tolerance)
        return _by_stored_times(evidence, base, rules.decide_stored_times(evidence, context), gated=alone)
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
    decision = rules.decide_metric(evidence, context)
    if isinstance(reference, StoredBaseline) and stored is not None and stored.base is not None and paired and alone:
        sides = stored, _beside_stored(base, measurement, reference)
        slower = None if series.rules.alarm_only else rules.not_the_code(sides, context)
        if slower is not None and decision.verdict is not Verdict.REGRESSED:
            if fresh is None or not detection.looks_worse(fresh, better=series.better, tolerance=tolerance):
                return _by_stored_times(replace(stored, tolerance=tolerance), stored.base, slower, gated=True)
            decision = slower
    judged, note = (change if obstacle is None else None), decision.note
    if note is None and judged is not None and not evidence.negligible:
        made = {"paired": paired, "launches": len(measurement.launches)}
        note = _note(decision.verdict, evidence, judged, context, stale=stored is not None, **made)
    may_be = context.suspected is None or series.metric in context.suspected
    latest = fresh if obstacle is None and may_be else None
    suspicious = latest is not None and detection.looks_worse(latest, better=series.better, tolerance=tolerance)
    worse = suspicious or decision.verdict is Verdict.REGRESSED
    best = None if judged is None else with_launches(judged, context.affordable or judged.launches)
    proven = None if worse or decision.verdict is Verdict.OK else context.resolution_of(series)
    bound, bound_alpha = (None, None) if judged is None else _bound(judged, series, context, decision)
    return _compared(
        evidence,
        Decision(decision.verdict, note),
        baseline=base.value,
        **_figures(change, context.proofs.interval),
        mde=None if best is None else detection.mde(best, alpha=context.alpha_of(series), tolerance=tolerance),
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


def _compared(evidence: Evidence, decision: Decision, **more: Any) -> Comparison:
    return Comparison(
        series=evidence.series,
        tolerance=evidence.tolerance,
        verdict=decision.verdict,
        note=decision.note,
        **{"gated": evidence.series.gated, **more},
    )


def _judged_alone(series: Series, measurement: Measurement) -> bool:
    """Returns whether a metric can fail a test; False if, like throughput, it repeats a step time that can fail it."""
    step = _series_in(measurement, STEP_TIME)
    return series.gated and not (series.rules.repeats_step_time and step is not None and step.gated)


def _by_stored_times(evidence: Evidence, base: Series, decision: Decision, *, gated: bool) -> Comparison:
    """Returns the comparison of a machine-dependent metric with its stored values in ``base``."""
    change = evidence.change
    worse_in = None if change is None else changes.worse_in(evidence.series, base, paired=False)
    of_base = {"baseline": base.value, "base_samples": base.samples}
    figures = _figures(change, 1 - intervals.CONFIDENCE)
    return _compared(evidence, decision, gated=gated, worse_in=worse_in, **of_base, **figures)


def _beside_stored(series: Series, measurement: Measurement, stored: StoredBaseline) -> Evidence:
    """Returns a metric's change from its stored values, and a doubt if hosts or clocks differ or a machine was busy.

    The change is computed even if environments differ, or if launches were interleaved in only one measurement.
    """
    record, base = stored.record, _series_in(stored.record, series.metric)
    found = Evidence(series=series, base=base, obstacle=_obstacle(series, base, measurement, stored))
    if record is None or base is None or (found.obstacle is not None and found.obstacle.code not in SHOWN):
        return found
    then, now = (each.environment.recorded.get("host") for each in (record, measurement))
    doubt = None
    if then != now or then is None:
        doubt = Finding("other_host", {"host": then or "unknown"})
    elif record.busy or measurement.busy:
        lost = [each.lost if each.busy else None for each in (measurement, record)]
        doubt = Finding("busy", {"now": lost[0], "then": lost[1]})
    elif record.clock and measurement.clock and abs(math.log(measurement.clock / record.clock)) > OTHER_CLOCK:
        doubt = Finding("other_clock", {"then": record.clock, "now": measurement.clock})
    return replace(found, change=changes.change_from(series, base, measurement, paired=False), doubt=doubt)


def slower_than_stored(measurement: Measurement, stored: StoredBaseline, context: DecisionContext) -> Finding | None:
    """Returns a warning if this checkout and the baseline's commit are both slower than the baseline's stored times."""
    series = _series_in(measurement, STEP_TIME)
    base = None if stored.pair is None else _series_in(stored.pair.record, STEP_TIME)
    if series is None or base is None:
        return None
    told = _beside_stored(series, measurement, stored)
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
    """Returns a worsening's upper bound, and its error probability; None as the error of an earlier verdict's bound."""
    if decision.note is not None and decision.note.code == "proven_earlier":
        return context.proven[series.metric][1], None
    most = detection.upper_bound(change, series.better, context.proofs.level)
    return intervals.from_log(most) if most is not None and change.logarithmic else most, context.proofs.level


def _obstacle(series: Series, base: Series | None, measurement: Measurement, reference: Reference) -> Finding | None:
    """Returns a finding that says why a metric cannot be compared; None if it can be, or if there is no reference."""
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
    """Returns a finding if interleaving, the base of a speedup or the number of steps differs from the baseline's."""
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
    step = _series_in(reference.record, STEP_TIME)
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
    verdict: Verdict, evidence: Evidence, change: Change, context: DecisionContext, *, stale: bool, **made: Any
) -> Finding | None:
    """Returns a note that explains a verdict; ``stale``: whether an improvement makes the baseline out of date."""
    better, ends = evidence.series.better, context.proofs.interval  # of the interval that is shown
    if verdict is Verdict.IMPROVED and stale:
        return Finding("stale_baseline")
    if verdict is Verdict.UNCHANGED and made["paired"]:
        shown = (detection.upper_bound(change, better, ends / 2) or 0.0) < 0
        promising = shown and detection.looks_better(change, better=better, tolerance=evidence.tolerance)
        return Finding("looks_better") if promising else None
    if verdict is not Verdict.INCONCLUSIVE:
        return None
    takes = changes.what_it_takes(evidence, change, context, **made)
    if takes.code == "launches_needed" and context.hides_long_steps(evidence):
        most = detection.limit(change, context.may_hide(evidence))
        if detection.worsening(change, better) <= most:  # a few slow launches alone make it worse, not the typical one
            return Finding("rare_long_steps", {"whole": evidence.whole})
    return takes


def _series_in(whose: BaselineRecord | Measurement | None, metric: str) -> Series | None:
    return next((series for series in (() if whose is None else whose.series) if series.metric == metric), None)
