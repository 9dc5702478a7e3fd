"""What explains the verdict on a metric where its numbers alone do not, and what would decide it."""

from __future__ import annotations

import math

from pytest_ddpperf.judge.decision import looks_better, needed
from pytest_ddpperf.judge.rules import Rules
from pytest_ddpperf.records.measurement import Series
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import Change
from pytest_ddpperf.units import format_count

FEW = 6  # launches; by the scatter of fewer, little can be foreseen
UNCONFIRMED = "worse in these launches, but not suspicious in those before them, so nothing confirms it: run it again"
PRACTICABLE = 200
"""Launches for which somebody may still wait: some minutes of short steps."""


def note_on(verdict: Verdict, change: Change, series: Series, rules: Rules, *, beside: bool, made: int) -> str:
    """What explains a verdict; empty where nothing has to be explained.

    Args:
        verdict: on the metric.
        change: from the baseline, or the other revision.
        series: of this run.
        rules: of the test, with the metric's own tolerance.
        beside: whether the other side was measured in the same rounds.
        made: launches of this side, all of which most metrics have a sample of.
    """
    if verdict is Verdict.IMPROVED:
        return "" if beside else "better than the baseline by more than the tolerance: the baseline is stale"
    if verdict is Verdict.UNCHANGED:
        promising = beside and looks_better(change, better=series.better, tolerance=rules.tolerance)
        return "looks better, though not for certain" if promising and _all_better(change, series) else ""
    return _what_it_takes(change, series, rules, beside=beside, made=made) if verdict is Verdict.INCONCLUSIVE else ""


def _what_it_takes(change: Change, series: Series, rules: Rules, *, beside: bool, made: int) -> str:
    """What would decide a metric."""
    if len(series.samples) < made:
        return f"told by {format_count(len(series.samples), 'launch')} after the verdict"
    if change.standard_error is None:
        return "one launch on either side tells nothing about scatter; measure at least two"
    launches = needed(change, better=series.better, tolerance=rules.tolerance, alpha=rules.alpha, margin=rules.margin)
    if launches is not None and launches <= PRACTICABLE:
        told = ""
        if series.gated and rules.last and rules.max_time_for is not None:
            told = f" (max_time {math.ceil(rules.max_time_for(launches - len(series.samples)))} s)"
        few = f", as far as {len(series.samples)} can tell" if len(series.samples) < FEW else ""
        return f"about {format_count(launches, 'launch')}{told} would decide it{few}"
    fact, cure = "no practicable number of launches would decide it", "a quieter machine"
    if launches is None:
        fact, cure = "more launches would not decide it", "a quieter machine, a baseline of more launches"
    cures = f"a wider tolerance or {cure}" if beside else f"a wider tolerance, {cure} or --ddpperf-against"
    return f"{fact}; {cures} might"


def _all_better(change: Change, series: Series) -> bool:
    """Whether the interval that is printed beside the change has nothing but improvements in it."""
    if change.interval is None:
        return False
    return change.interval.high < 0 if series.better == "lower" else change.interval.low > 0
