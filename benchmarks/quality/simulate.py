"""Made-up launches, as a machine would give them whose noise is known: what is judged of them has a known answer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality.campaign import Cell, Recorded, Sides
from benchmarks.quality.steps import CONDITIONS, UNCHANGED, WARMUP, Condition
from benchmarks.quality.verdicts import Environment, paired_steps

CELL = Cell("12ms", 2)
ENVIRONMENT = Environment(
    device="cpu",
    device_model="chip",
    device_count=0,
    cpu_model="chip",
    cores=8,
    threads=1,
    nodes=1,
    backend="gloo",
    world_size=2,
    torch="2.13",
    cuda=None,
)
STEP, STEPS = 0.0125, 80  # s; together the second that a launch times
START_UP = 0.27  # s; a round of two interleaved launches then takes 1.6 s, as those of perf_tests do
LAUNCH = START_UP + STEPS * STEP  # s
STEP_NOISE = 0.05  # of the steps in a launch, on the scale of logarithms
RUN_DEVIATION = 0.01  # likewise, of each run as a whole: what verdicts beside a stored baseline take for granted
CONTROL, CONTROLS = 0.006, 20  # s; control steps of a launch
OF_CPU = 0.75  # of the scatter of pairs: that of their CPU times
OF_TYPICAL = 1.045  # times the scatter of a mean of as many steps
OF_ROUNDS = 0.10  # what both launches of a round have in common
DISTURBANCE = (0.10, 0.40)  # by how much a disturbed launch is slower, anything between with equal chances


@dataclass(frozen=True)
class Machine:
    """How launches lie apart: standard deviations on the scale of logarithms, where 0.01 is 1 %."""

    scatter: float  # of a launch's level
    disturbed: float = 0.0  # the share of launches that something else makes slower
    of_rounds: float = 0.0  # what both launches of a round have in common, side by side
    of_runs: float = RUN_DEVIATION  # of a run's level, where the sides are separate runs
    of_steps: float = STEP_NOISE  # of a step in its launch
    of_cpu: float | None = None  # of a launch's CPU time; None where nobody knows that, as on GPUs
    power: float | None = None  # to which runs follow the control step; None where there is none
    beyond: float = 0.0  # of a run's level, beyond what the control step has as well

    def __str__(self) -> str:
        disturbed = f", {self.disturbed:.0%} of them made slower" if self.disturbed else ""
        rounds = f", rounds by {self.of_rounds:.0%} in common" if self.of_rounds else ""
        steps = f", steps by {self.of_steps:.0%}" if self.of_steps != STEP_NOISE else ""
        cpu = f", their CPU times by {self.of_cpu:.1%}" if self.of_cpu is not None else ""
        return f"launches scatter by {self.scatter:.0%}{disturbed}{rounds}{steps}{cpu}"


def separate_runs(machine: Machine, condition: Condition, launches: int, draw: np.random.Generator) -> Sides:
    """Two runs with so many launches each, every run with a deviation of its own: unchanged, then in ``condition``."""
    return Sides(*(run_alone(machine, run, launches, draw) for run in (CONDITIONS[UNCHANGED], condition)))


def run_alone(machine: Machine, condition: Condition, launches: int, draw: np.random.Generator) -> tuple[Recorded, ...]:
    """A run with so many launches and a deviation of its own, which the control step has too where there is one."""
    pace = draw.normal(0, machine.of_runs)
    level = math.exp(pace * (1.0 if machine.power is None else machine.power) + draw.normal(0, machine.beyond))
    made = _made_up(condition, level * _levels(machine, launches, draw), machine, draw)
    if machine.power is None:
        return made
    controls = CONTROL * math.exp(pace) * draw.lognormal(0, machine.of_steps, (launches, CONTROLS))
    return tuple(replace(launch, control=tuple(times)) for launch, times in zip(made, controls.tolist(), strict=True))


def of_pairs(scatter: float, own: float, *, cpu: bool = True) -> Machine:
    """A machine on which the quotients of two interleaved launches scatter by so much; ``own``: the launches' share.

    CPU times scatter by three quarters of it, as was seen (pairs by 4.1, 5.8 and 5.7 %, their CPU times by 3.0, 3.9 and
    4.5 %). What a typical step of many scatters by is 1.045 times what their mean does.
    """
    of_launch, of_blocks = math.sqrt(own / 2) * scatter, math.sqrt((1 - own) / 2) * scatter
    steps = of_blocks * math.sqrt(paired_steps(STEP, START_UP)) / OF_TYPICAL
    of_cpu = OF_CPU * scatter / math.sqrt(2) if cpu else None
    return Machine(of_launch, of_rounds=OF_ROUNDS, of_steps=steps, of_cpu=of_cpu)


def run_of_rounds(machine: Machine, condition: Condition, rounds: int, draw: np.random.Generator) -> Sides:
    """One run with a launch of both sides in each round: unchanged, and in ``condition``."""
    common = draw.lognormal(0, machine.of_rounds, rounds)
    sides = (
        _made_up(side, common * _levels(machine, rounds, draw), machine, draw)
        for side in (CONDITIONS[UNCHANGED], condition)
    )
    return Sides(*sides)


def _made_up(
    condition: Condition, levels: NDArray[np.float64], machine: Machine, draw: np.random.Generator
) -> tuple[Recorded, ...]:
    """A launch for each level: its steps take that times ``STEP``, what the condition adds, and noise."""
    noise = draw.lognormal(0, machine.of_steps, (len(levels), STEPS))
    work = lengthened(condition, STEPS)
    steps: list[list[float]] = (STEP * levels[:, None] * noise * work).tolist()
    launches = tuple(recorded(number, condition.name, times) for number, times in enumerate(steps))
    if machine.of_cpu is None:
        return launches
    used: list[float] = (STEP * statistics.fmean(work) * draw.lognormal(0, machine.of_cpu, len(levels))).tolist()
    return tuple(replace(launch, cpu=(cpu, cpu)) for launch, cpu in zip(launches, used, strict=True))


def _levels(machine: Machine, launches: int, draw: np.random.Generator) -> NDArray[np.float64]:
    """By what factor all steps of a launch are longer, for so many launches."""
    slowed = draw.random(launches) < machine.disturbed
    disturbance = 1 + slowed * draw.uniform(*DISTURBANCE, launches)
    levels: NDArray[np.float64] = draw.lognormal(0, machine.scatter, launches) * disturbance
    return levels


def lengthened(condition: Condition, steps: int) -> list[float]:
    """How many times as long as an unchanged one each timed step is: work is counted from the first warm-up step on."""
    return [
        1 + condition.communication + (condition.work if number % condition.every == 0 else 0.0)
        for number in range(WARMUP + 1, WARMUP + steps + 1)
    ]


def recorded(
    number: int, condition: str, step_times: Sequence[float], start_up: float = START_UP, **more: Any
) -> Recorded:
    """A launch with these steps on both ranks, a steady use of memory and one loss; CPU time unknown, as on GPUs."""
    times = tuple(step_times)
    launch = Recorded(
        CELL,
        number,
        condition,
        0.0,
        start_up + math.fsum(times),
        times,
        times[:1] * 2,
        (1e8, 1e8),
        (1.0, 1.0),
        (None, None),
    )
    return replace(launch, **more)
