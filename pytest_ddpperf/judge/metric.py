"""The judgement on one metric: its change from the baseline, and the verdict on it."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_ddpperf.judge.allowance import (
    NO_SPREAD,
    RESIDENT_FLOOR,
    drift_of,
    floor_of,
    spread_between_runs,
    tolerance_of,
)
from pytest_ddpperf.judge.decision import LAST_SUSPICIOUS, SUSPICIOUS, decide, looks_better, looks_worse, mde
from pytest_ddpperf.judge.disturbance import excused_by
from pytest_ddpperf.judge.notes import UNCONFIRMED, note_on
from pytest_ddpperf.judge.rules import Rules
from pytest_ddpperf.metrics.memory import GROWTH_SCATTER
from pytest_ddpperf.metrics.table import BY_TURNS, FINAL_LOSS, GROWTH, RESIDENT, STEP_TIME, TAIL, TIMED, outliers_of
from pytest_ddpperf.records.measurement import Measurement, Series
from pytest_ddpperf.records.results import BaselineRecord, Comparison, Found
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats import intervals
from pytest_ddpperf.stats.blocks import OWN_IN_TURNS, Expected, expected, paired_blocks
from pytest_ddpperf.stats.centers import Outliers
from pytest_ddpperf.stats.intervals import Change
from pytest_ddpperf.stats.spreads import joined, pooled
from pytest_ddpperf.units import format_count

CERTAIN = 100.0  # degrees of freedom of a scatter that was measured thousands of times


def compare_metric(series: Series, measurement: Measurement, found: Found, rules: Rules) -> Comparison:
    """The judgement on one metric: its verdict, and the note that explains it where the numbers alone do not."""
    base = _series_named(series.metric, found.record)
    if base is None or found.record is None:
        note = "" if found.record is None else f"not in {found.base_words}"
        return _unjudged(series, rules, without_judgement(found) if found.differs else Verdict.NEW, note)
    obstacle = _obstacle(series, base, measurement, found)
    if obstacle is not None and _kind(series) != _kind(base):
        return _unjudged(series, rules, Verdict.INCOMPATIBLE, obstacle)
    change = _change(series, base, measurement, found, rules)
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
        verdict = decide(
            change, better=series.better, tolerance=tolerance, alpha=rules.alpha, margin=rules.margin, last=rules.last
        )
        beside = found.counterpart is not None
        own = replace(rules, tolerance=tolerance)
        note = note_on(verdict, change, series, own, beside=beside, made=len(measurement.launches))
        if verdict is Verdict.REGRESSED and rules.suspected is not None and series.metric not in rules.suspected:
            verdict, note = Verdict.INCONCLUSIVE, UNCONFIRMED
        if verdict is Verdict.REGRESSED and not beside and series.metric in BY_TURNS:
            excuse = excused_by(measurement, found.record.lost, intervals.from_log(abs(change.shift)))
            verdict, note = (verdict, note) if excuse is None else (Verdict.INCONCLUSIVE, excuse)
        if verdict is Verdict.INCONCLUSIVE and series.metric in rules.proven:
            made = format_count(rules.proven[series.metric], "launch")
            verdict = Verdict.UNCHANGED
            note = f"shown by the first {made} not to be worse by the margin; it looked better, and was measured on"
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
        suspicious=judged is not None
        and looks_worse(judged, better=series.better, tolerance=tolerance, level=_suspicious(found, rules)),
        promising=judged is not None and looks_better(judged, better=series.better, tolerance=tolerance),
        df=math.inf if change is None else change.df,
        base_samples=base.samples,
        margin=rules.margin * tolerance,
    )


def _suspicious(found: Found, rules: Rules) -> float:
    """How often what is unchanged may look worse at this look."""
    return LAST_SUSPICIOUS if rules.screened and found.counterpart is None else SUSPICIOUS


def _mde(change: Change, rules: Rules, tolerance: float) -> float | None:
    """What this run would have found: a suspect is confirmed by as many launches as there is time for."""
    best = intervals.with_launches(change, rules.affordable or change.launches)
    return mde(best, alpha=rules.alpha, tolerance=tolerance)


def _change(series: Series, base: Series, measurement: Measurement, found: Found, rules: Rules) -> Change | None:
    """The change from the base: by rounds where both sides were measured in the same ones."""
    if found.counterpart is not None and len(series.samples) == len(base.samples):
        both: Outliers | None = None if outliers_of(series) is None else "both"  # either side may be disturbed
        return intervals.paired(
            series.samples,
            base.samples,
            scale=series.scale,
            outliers=both,
            expected=_expected_of_pairs(series, base, turns=measurement.turns),
        )
    step = next((one.value for one in measurement.series if one.metric == STEP_TIME), None)
    own = found.counterpart is None
    spread = spread_between_runs(series, measurement.environment, step, found.noise) if own else NO_SPREAD
    return intervals.change(
        series.samples,
        base.samples,
        scale=series.scale,
        between_runs=spread.sd,
        between_df=spread.df,
        drift=drift_of(series) if own else 0.0,
        outliers=outliers_of(series),
        expected=_expected(series, base, rules),
    )


def _expected(series: Series, base: Series, rules: Rules) -> Expected | None:
    """What launches of a separate run are expected to scatter by: also as those of the baseline do."""
    if series.metric == GROWTH and len(series.samples) == 1:
        return Expected(GROWTH_SCATTER**2, CERTAIN)
    if not series.within:
        return None
    if series.scale != "ratio":
        return expected(series.within, series.own)
    learned = pooled([base.samples])
    if rules.scatter is not None and series.metric in TIMED - {TAIL}:
        learned = joined([learned, rules.scatter])
    return expected(series.within, series.own, learned)


def _expected_of_pairs(series: Series, base: Series, *, turns: bool) -> Expected | None:
    """What the differences of launches of a round are expected to scatter by.

    Where they took turns, by what each pair of blocks differs; what a launch adds of its own is then less.
    """
    if series.metric == GROWTH and len(series.samples) == 1:
        return Expected(2 * GROWTH_SCATTER**2, CERTAIN)
    if series.scale != "ratio":  # steps of diagnoses, which did not alternate with the other side's
        both = [expected(side.within, side.own) for side in (series, base)]
        known = [one for one in both if one is not None]
        few = len(known) < len(both)
        return None if few else Expected(sum(one.variance for one in known), min(one.df for one in known))
    moved = paired_blocks(series.within, base.within)
    return expected(moved, min(series.own, OWN_IN_TURNS) if turns else math.sqrt(2) * series.own)


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


def _unjudged(series: Series, rules: Rules, verdict: Verdict, note: str) -> Comparison:
    """A metric without anything to compare with."""
    tolerance = tolerance_of(series, series.value, rules.tolerance)
    return Comparison(
        series=series,
        baseline=None,
        change=None,
        change_interval=None,
        tolerance=tolerance,
        mde=None,
        verdict=verdict,
        gated=series.gated,
        note=note,
    )


def without_judgement(found: Found) -> Verdict:
    """What the baseline alone, or its lack, says about what it cannot judge."""
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
