"""Blocks of timed steps. Importable without torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddpperf.instruments.clock import Clock

BLOCKS = 45
"""Of a launch that takes turns: some 10 to 20 ms each.

What disturbs steps on a shared machine lasts for some tenths of a second, and is another thing in the next ones: it
hits both sides alike only where they alternate faster. benchmarks/turns.py prints by how much two sides of the same
code differ."""

FEWEST_PERIODS = 2  # of a block


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


@dataclass(frozen=True)
class Timed:
    """Timed steps.

    Attributes:
        seconds: of each.
        loss: what the last one gave back.
        cpu: seconds that all threads of the process were at work on a core for a step, on average.
        cpu_blocks: the same of each block.
    """

    seconds: tuple[float, ...]
    loss: Any
    cpu: float
    cpu_blocks: tuple[float, ...] = ()


def turn_sizes(steps: int, period: int, blocks: int = BLOCKS) -> tuple[int, ...]:
    """How many steps there are in each block that is timed in turns with other launches': whole periods.

    Of long steps there are fewer than ``blocks``, down to one. None leads in to a block: the first step pays for what
    its ranks have forgotten while they waited, on all sides, and a further one would be time that tells nothing.
    """
    periods = steps // period
    number = min(blocks, max(1, periods // FEWEST_PERIODS))
    return tuple(period * (periods * (i + 1) // number - periods * i // number) for i in range(number))


def timed_blocks(run: Callable[[], Any], sizes: Sequence[int], clock: Clock, begin: Callable[[float], None]) -> Timed:
    """Blocks of timed steps.

    Args:
        run: a step.
        sizes: how many steps there are in each block.
        clock: that times them.
        begin: returns when a block may begin, on all ranks together; told which part of the blocks has ended.
    """
    seconds: list[float] = []
    cpu: list[float] = []
    loss = None
    for number, size in enumerate(sizes):
        begin(number / len(sizes))
        at_work = time.process_time()
        times, loss = timed_block(run, size, clock)
        cpu.append(time.process_time() - at_work)
        seconds += times
    of_steps = tuple(one / size for one, size in zip(cpu, sizes, strict=True))
    return Timed(tuple(seconds), loss, math.fsum(cpu) / len(seconds), of_steps)


def by_period(step_times: Sequence[float], period: int) -> tuple[float, ...]:
    """Each period's mean: what happens in one step of several belongs to all of them, and nothing may hide it."""
    whole = max(1, len(step_times) // period) * period
    periods = [step_times[i : i + period] for i in range(0, min(whole, len(step_times)), period)]
    return tuple(math.fsum(times) / len(times) for times in periods)
