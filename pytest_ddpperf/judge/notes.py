"""What explains the verdict on a metric where its numbers alone do not, and what would decide it."""

from __future__ import annotations

import math

from pytest_ddpperf.judge.context import DecisionContext
from pytest_ddpperf.judge.decision import Decision, Evidence, needed
from pytest_ddpperf.judge.detection import looks_better
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Series
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import Change

FEW = 6  # launches; by the scatter of fewer, little can be foreseen
PRACTICABLE = 200
"""Launches for which somebody may still wait: some minutes of short steps."""


def note_on(
    decision: Decision, evidence: Evidence, context: DecisionContext, *, paired: bool, launches: int
) -> Finding | None:
    """What explains a decision; None where nothing has to be explained.

    Args:
        decision: on the metric.
        evidence: that it rests on.
        context: of the judgement, with the metric's own tolerance.
        paired: whether the reference was measured in the same rounds.
        launches: of the candidate, of which most metrics have a sample each.
    """
    series, change = evidence.series, evidence.change
    if decision.ground != "numbers" or change is None:
        return _ground(decision, evidence, context)
    match decision.verdict:
        case Verdict.IMPROVED if not paired:
            return Finding("stale_baseline")
        case Verdict.UNCHANGED if paired and looks_better(change, better=series.better, tolerance=context.tolerance):
            return Finding("looks_better") if _all_better(change, series) else None
        case Verdict.INCONCLUSIVE:
            return _what_it_takes(change, series, context, paired=paired, launches=launches)
    return None


def _ground(decision: Decision, evidence: Evidence, context: DecisionContext) -> Finding | None:
    """What explains a decision that does not rest on the numbers."""
    match decision.ground:
        case "unconfirmed":
            return Finding("unconfirmed")
        case "no_change" if evidence.base is not None:
            return Finding("no_change_from", {"baseline": evidence.base.value})
        case "proven":
            return Finding("proven_earlier", {"launches": context.proven[evidence.series.metric]})
    return None


def _what_it_takes(change: Change, series: Series, context: DecisionContext, *, paired: bool, launches: int) -> Finding:
    """What would decide a metric."""
    if len(series.samples) < launches:
        return Finding("told_late", {"launches": len(series.samples)})
    if change.standard_error is None:
        return Finding("single_launch")
    wanted = needed(
        change, better=series.better, tolerance=context.tolerance, alpha=context.alpha, margin=context.margin
    )
    if wanted is not None and wanted <= PRACTICABLE:
        max_time = None
        if series.gated and context.last and context.max_time_for is not None:
            max_time = math.ceil(context.max_time_for(wanted - len(series.samples)))
        known = len(series.samples) if len(series.samples) < FEW else None
        return Finding("launches_needed", {"launches": wanted, "max_time": max_time, "known": known})
    return Finding("no_launches_decide", {"any_number": wanted is None, "paired": paired})


def _all_better(change: Change, series: Series) -> bool:
    """Whether the interval that is printed beside the change has nothing but improvements in it."""
    if change.interval is None:
        return False
    return change.interval.high < 0 if series.better == "lower" else change.interval.low > 0
