"""Blocks of timed steps. Importable without torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddpperf.instruments.clock import Clock
from pytest_ddpperf.training.steps import BLOCKS

MIN_PERIODS = 2  # of a block


def timed_block(run: Callable[[], Any], steps: int, clock: Clock) -> tuple[tuple[float, ...], Any]:
    """Calls ``run`` for each step; returns the seconds of each call, and the last result.

    The marks are consecutive, so the loop's own time is inside and the times add up to the block's.
    """
    loss = None
    mark = clock.mark
    clock.settle()
    marks = [mark()]
    for _ in range(steps):
        loss = run()
        marks.append(mark())
    return clock.seconds(marks), loss


@dataclass(frozen=True)
class Timed:
    """Timed steps: seconds of each, the last result, and CPU seconds of the process per step, in all and by block."""

    seconds: tuple[float, ...]
    loss: Any
    cpu: float
    cpu_blocks: tuple[float, ...] = ()


def turn_sizes(steps: int, period: int, blocks: int = BLOCKS) -> tuple[int, ...]:
    """The number of steps of each block that is timed in turns with other launches: whole periods.

    Long steps make fewer blocks than ``blocks``, down to one. No untimed step precedes a block: on every side the
    first step pays for caches that went cold while its ranks waited, and another step would cost time for nothing.
    """
    periods = steps // period
    number = min(blocks, max(1, periods // MIN_PERIODS))
    return tuple(period * (periods * (i + 1) // number - periods * i // number) for i in range(number))


def timed_blocks(run: Callable[[], Any], sizes: Sequence[int], clock: Clock, begin: Callable[[float], None]) -> Timed:
    """Times blocks of these sizes; ``begin(part of the blocks that has ended)`` returns when the next may begin."""
    seconds: list[float] = []
    cpu: list[float] = []
    loss = None
    for number, size in enumerate(sizes):
        begin(number / len(sizes))
        before = time.process_time()
        times, loss = timed_block(run, size, clock)
        cpu.append(time.process_time() - before)
        seconds += times
    cpu_blocks = tuple(used / size for used, size in zip(cpu, sizes, strict=True))
    return Timed(tuple(seconds), loss, math.fsum(cpu) / len(seconds), cpu_blocks)


def by_period(step_times: Sequence[float], period: int) -> tuple[float, ...]:
    """The mean of each period: work that one step of several does belongs to all of them, and nothing may hide it."""
    whole = max(1, len(step_times) // period) * period
    periods = [step_times[i : i + period] for i in range(0, min(whole, len(step_times)), period)]
    return tuple(math.fsum(times) / len(times) for times in periods)
