"""Made-up launches, as a machine would give them whose noise is known: what is judged of them has a known answer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING

from benchmarks.quality.conditions import CONDITIONS, UNCHANGED, Condition
from benchmarks.quality.launches import WARMUP, Cell, Recorded
from benchmarks.quality.resampling import Sides
from pytest_ddpperf.records.measurement import Environment

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

CELL = Cell("12ms", 2)
ENVIRONMENT = Environment("cpu", "chip", 0, "chip", 8, 1, 1, "gloo", 2, "2.13", None)
STEP, STEPS = 0.0125, 80  # s; together the second that a launch times
START_UP = 0.3  # s
LAUNCH = START_UP + STEPS * STEP  # s
STEP_NOISE = 0.05  # of the steps in a launch, on the scale of logarithms
RUN_DEVIATION = 0.01  # likewise, of each run as a whole: what verdicts beside a stored baseline take for granted
DISTURBANCE = (0.10, 0.40)  # by how much a disturbed launch is slower, anything between with equal chances


@dataclass(frozen=True)
class Machine:
    """How launches lie apart; standard deviations are on the scale of logarithms, where 0.01 is 1 %.

    Attributes:
        scatter: standard deviation of a launch's level.
        disturbed: the share of launches that something else makes slower.
        of_rounds: standard deviation that both launches of a round have in common, side by side.
        of_runs: standard deviation of a run's level, where the sides are separate runs.
        of_steps: standard deviation of a step in its launch.
        of_cpu: standard deviation of the CPU time that a launch's steps take, whatever their own length comes to; None
            where nobody knows it, as on GPUs.
    """

    scatter: float
    disturbed: float = 0.0
    of_rounds: float = 0.0
    of_runs: float = RUN_DEVIATION
    of_steps: float = STEP_NOISE
    of_cpu: float | None = None

    def __str__(self) -> str:
        """In words, as the title of a table."""
        disturbed = f", {self.disturbed:.0%} of them made slower" if self.disturbed else ""
        rounds = f", rounds by {self.of_rounds:.0%} in common" if self.of_rounds else ""
        steps = f", steps by {self.of_steps:.0%}" if self.of_steps != STEP_NOISE else ""
        cpu = f", their CPU times by {self.of_cpu:.1%}" if self.of_cpu is not None else ""
        return f"launches scatter by {self.scatter:.0%}{disturbed}{rounds}{steps}{cpu}"


def separate_runs(machine: Machine, condition: Condition, launches: int, draw: np.random.Generator) -> Sides:
    """Two runs with so many launches each, every run with a deviation of its own: unchanged, then in ``condition``."""
    sides = (
        made_up(condition_of_run, draw.lognormal(0, machine.of_runs) * _levels(machine, launches, draw), machine, draw)
        for condition_of_run in (CONDITIONS[UNCHANGED], condition)
    )
    return Sides(*sides)


def run_of_rounds(machine: Machine, condition: Condition, rounds: int, draw: np.random.Generator) -> Sides:
    """One run with a launch of both sides in each round: unchanged, and in ``condition``."""
    common = draw.lognormal(0, machine.of_rounds, rounds)
    sides = (
        made_up(side, common * _levels(machine, rounds, draw), machine, draw)
        for side in (CONDITIONS[UNCHANGED], condition)
    )
    return Sides(*sides)


def made_up(condition: Condition, levels: Array, machine: Machine, draw: np.random.Generator) -> tuple[Recorded, ...]:
    """A launch for each level: its steps take that times ``STEP``, what the condition adds, and noise."""
    noise = draw.lognormal(0, machine.of_steps, (len(levels), STEPS))
    work = lengthened(condition, STEPS)
    steps = STEP * levels[:, None] * noise * work
    rows: list[list[float]] = steps.tolist()
    launches = tuple(recorded(i, condition.name, tuple(row)) for i, row in zip(count(), rows))
    if machine.of_cpu is None:
        return launches
    used = STEP * statistics.fmean(work) * draw.lognormal(0, machine.of_cpu, len(levels))
    return tuple(replace(one, cpu=(cpu,) * len(one.cpu)) for one, cpu in zip(launches, used.tolist(), strict=True))


def lengthened(condition: Condition, steps: int) -> list[float]:
    """How many times as long as an unchanged one each timed step is: work is counted from the first warm-up step on."""
    return [
        1 + condition.communication + (condition.work if number % condition.every == 0 else 0.0)
        for number in range(WARMUP + 1, WARMUP + steps + 1)
    ]


def recorded(
    number: int,
    condition: str,
    step_times: Sequence[float],
    *,
    started: float = 0.0,
    start_up: float = START_UP,
    pair: str | None = None,
) -> Recorded:
    """A launch with these steps, alike on both ranks, which use a steady amount of memory and end at one loss.

    What they use of the processor is not known, as on GPUs.

    Args:
        number: of its round.
        condition: by name.
        step_times: in seconds.
        started: seconds since the first launch.
        start_up: seconds that it takes besides its steps.
        pair: as of ``Recorded``.
    """
    times = tuple(step_times)
    seconds, cpu = start_up + math.fsum(times), (None, None)
    return Recorded(
        CELL, number, condition, started, seconds, times, (times[0],) * 2, (1e8, 1e8), (1.0, 1.0), cpu, pair
    )


def _levels(machine: Machine, launches: int, draw: np.random.Generator) -> Array:
    """By what factor all steps of a launch are longer, for so many launches."""
    slowed = draw.random(launches) < machine.disturbed
    disturbance = 1 + slowed * draw.uniform(*DISTURBANCE, launches)
    levels: Array = draw.lognormal(0, machine.scatter, launches) * disturbance
    return levels
