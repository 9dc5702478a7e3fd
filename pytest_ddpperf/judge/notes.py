"""What explains the verdict on a metric where its numbers alone do not, and what would decide it."""

from __future__ import annotations

import math

from pytest_ddpperf.judge.context import DecisionContext
from pytest_ddpperf.judge.decision import Decision, Evidence, needed
from pytest_ddpperf.judge.detection import looks_better
from pytest_ddpperf.records.measurement import Series
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import Change
from pytest_ddpperf.units import format_count

FEW = 6  # launches; by the scatter of fewer, little can be foreseen
UNCONFIRMED = "worse in these launches, but not suspicious in those before them, so nothing confirms it: run it again"
PRACTICABLE = 200
"""Launches for which somebody may still wait: some minutes of short steps."""


def note_on(decision: Decision, evidence: Evidence, context: DecisionContext, *, paired: bool, launches: int) -> str:
    """What explains a decision; empty where nothing has to be explained.

    Args:
        decision: on the metric.
        evidence: that it rests on.
        context: of the judgement, with the metric's own tolerance.
        paired: whether the reference was measured in the same rounds.
        launches: of the candidate, of which most metrics have a sample each.
    """
    series, change = evidence.series, evidence.change
    if decision.ground != "numbers" or change is None:
        return _ground_text(decision, evidence, context)
    match decision.verdict:
        case Verdict.IMPROVED if not paired:
            return "better than the baseline by more than the tolerance: the baseline is stale"
        case Verdict.UNCHANGED if paired and looks_better(change, better=series.better, tolerance=context.tolerance):
            return "looks better, though not for certain" if _all_better(change, series) else ""
        case Verdict.INCONCLUSIVE:
            return _what_it_takes(change, series, context, paired=paired, launches=launches)
    return ""


def _ground_text(decision: Decision, evidence: Evidence, context: DecisionContext) -> str:
    """What explains a decision that does not rest on the numbers."""
    match decision.ground:
        case "unconfirmed":
            return UNCONFIRMED
        case "no_change" if evidence.base is not None:
            return f"no change can be told from a baseline of {evidence.base.value:g}"
        case "proven":
            made = format_count(context.proven[evidence.series.metric], "launch")
            return f"shown by the first {made} not to be worse by the margin; it looked better, and was measured on"
    return ""


def _what_it_takes(change: Change, series: Series, context: DecisionContext, *, paired: bool, launches: int) -> str:
    """What would decide a metric."""
    if len(series.samples) < launches:
        return f"told by {format_count(len(series.samples), 'launch')} after the verdict"
    if change.standard_error is None:
        return "one launch on either side tells nothing about scatter; measure at least two"
    wanted = needed(
        change, better=series.better, tolerance=context.tolerance, alpha=context.alpha, margin=context.margin
    )
    if wanted is not None and wanted <= PRACTICABLE:
        setting = ""
        if series.gated and context.last and context.max_time_for is not None:
            setting = f" (max_time {math.ceil(context.max_time_for(wanted - len(series.samples)))} s)"
        few = f", as far as {len(series.samples)} can tell" if len(series.samples) < FEW else ""
        return f"about {format_count(wanted, 'launch')}{setting} would decide it{few}"
    fact, cure = "no practicable number of launches would decide it", "a quieter machine"
    if wanted is None:
        fact, cure = "more launches would not decide it", "a quieter machine, a baseline of more launches"
    cures = f"a wider tolerance or {cure}" if paired else f"a wider tolerance, {cure} or --ddpperf-against"
    return f"{fact}; {cures} might"


def _all_better(change: Change, series: Series) -> bool:
    """Whether the interval that is printed beside the change has nothing but improvements in it."""
    if change.interval is None:
        return False
    return change.interval.high < 0 if series.better == "lower" else change.interval.low > 0
