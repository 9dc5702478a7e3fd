"""Blocks of timed steps. Importable without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pytest_ddpperf.instruments.clock import Clock


def timed_block(run: Callable[[], Any], steps: int, clock: Clock) -> tuple[tuple[float, ...], Any]:
    """The seconds of each of ``steps`` calls of ``run``, and what the last one gave back.

    Consecutive marks, so that the loop's own time is inside and the times add up to the block's.
    """
    loss = None
    mark = clock.mark
    clock.settle()
    marks = [mark()]
    for _ in range(steps):
        loss = run()
        marks.append(mark())
    return clock.seconds(marks), loss


def by_period(step_times: Sequence[float], period: int) -> tuple[float, ...]:
    """Each period's mean: what happens in one step of several belongs to all of them, and no quantile may hide it."""
    whole = max(1, len(step_times) // period) * period
    periods = [step_times[i : i + period] for i in range(0, min(whole, len(step_times)), period)]
    return tuple(math.fsum(times) / len(times) for times in periods)
