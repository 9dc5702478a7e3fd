"""Blocks of timed steps. Importable without torch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_ddpperf.instruments.clock import Clock

BLOCKS = 5  # of a launch that takes turns
FEWEST_PERIODS = 3  # of a block: one more leads in to it


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
        numbers: of each, counted from 0 over all steps that ran, untimed ones between blocks too.
        loss: what the last one gave back.
        cpu: seconds that all threads of the process were at work on a core for a step, on average.
    """

    seconds: tuple[float, ...]
    numbers: tuple[int, ...]
    loss: Any
    cpu: float


@dataclass(frozen=True)
class Layout:
    """Timed steps in blocks of these ``sizes``, each after ``untimed`` steps that lead in."""

    sizes: tuple[int, ...]
    untimed: int = 0

    @property
    def longest(self) -> int:
        """Steps of the longest block."""
        return max(self.sizes)


def alternating(steps: int, period: int) -> Layout:
    """The blocks of steps that are timed in turns with another launch's: whole periods, few enough to lead in to.

    A block lasts a fifth of a launch's second; of long steps there are fewer blocks, down to one.
    """
    periods = steps // period
    number = min(BLOCKS, max(1, periods // FEWEST_PERIODS))
    return Layout(tuple(period * (periods * (i + 1) // number - periods * i // number) for i in range(number)), period)


def timed_blocks(run: Callable[[], Any], layout: Layout, clock: Clock, begin: Callable[[], None]) -> Timed:
    """Blocks of timed steps.

    Args:
        run: a step.
        layout: of the blocks.
        clock: that times them.
        begin: returns when a block may begin, on all ranks together.
    """
    seconds: list[float] = []
    numbers: list[int] = []
    ran, loss, cpu = 0, None, 0.0
    for size in layout.sizes:
        begin()
        for _ in range(layout.untimed):
            run()
        at_work = time.process_time()
        times, loss = timed_block(run, size, clock)
        cpu += time.process_time() - at_work
        seconds += times
        numbers += range(ran + layout.untimed, ran + layout.untimed + size)
        ran += layout.untimed + size
    return Timed(tuple(seconds), tuple(numbers), loss, cpu / len(seconds))


def by_period(step_times: Sequence[float], period: int) -> tuple[float, ...]:
    """Each period's mean: what happens in one step of several belongs to all of them, and nothing may hide it."""
    whole = max(1, len(step_times) // period) * period
    periods = [step_times[i : i + period] for i in range(0, min(whole, len(step_times)), period)]
    return tuple(math.fsum(times) / len(times) for times in periods)
