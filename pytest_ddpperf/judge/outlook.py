"""Predicts how many launches would decide a metric, if any number of launches would."""

from __future__ import annotations

import math
from dataclasses import replace

from pytest_ddpperf.judge.decision import DecisionContext, Evidence, decide
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import Change, with_launches

FEW = 6  # launches: the scatter of fewer launches predicts little
PRACTICABLE = 200  # launches for which somebody may still wait: some minutes of short steps
MAX_LAUNCHES = 100_000  # the most launches that are considered: nobody waits for so many


def what_it_takes(
    evidence: Evidence, change: Change, context: DecisionContext, *, paired: bool, launches: int
) -> Finding:
    """Returns a finding with the number of launches that would decide a metric; ``launches``: the number so far."""
    series, told = evidence.series, len(evidence.series.samples)
    if told < launches:
        return Finding("told_late", {"launches": told})
    if change.standard_error is None:
        return Finding("single_launch")
    wanted = enough(evidence, change, context, context.resolution_of(series))
    if wanted is None or wanted > PRACTICABLE:
        return Finding("no_launches_decide", {"any_number": wanted is None, "paired": paired})
    max_time = None
    if series.gated and context.last and context.max_time_for is not None:
        max_time = math.ceil(context.max_time_for(wanted - told))
    return Finding("launches_needed", {"launches": wanted, "max_time": max_time, "known": told if told < FEW else None})


def enough(evidence: Evidence, change: Change, context: DecisionContext, resolution: float | None) -> int | None:
    """Returns the approximate number of launches for a verdict, if estimate and scatter stay the same.

    This is a rough figure, because the estimate will change. More launches add degrees of freedom; a stored baseline's
    error stays. The result is at least one more than the present number, or None if ``MAX_LAUNCHES`` are not enough or
    the scatter is unknown. ``resolution``: the worsening that the verdict has to exclude.
    """
    proofs = replace(context.proofs.at_interim(1.0, last=True), proves=True)
    if change.standard_error is None:
        return None

    def decided(launches: int) -> bool:
        verdict = decide(
            with_launches(change, launches),
            better=evidence.series.better,
            tolerance=evidence.tolerance,
            alpha=context.alpha_of(evidence.series),
            margin=context.margin,
            resolution=resolution,
            last=True,
            proofs=proofs,
        )
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
