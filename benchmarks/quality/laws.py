"""Laws that launches of simulated benchmarks follow, none of which the rules assume.

A machine gives the steps of launches whose blocks alternate. ``Replayed`` ones are made of stretches of recorded pairs
of launches. ``Moody`` ones are made up: steps have heavy tails, the load of the machine goes on from block to block, it
pauses now and then or at regular times, and each launch adds something of its own by a skewed law. What a benchmark
deviates by is drawn anew for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.quality.verdicts import Launched, rank_launch
from pytest_ddpperf.training.timing import turn_sizes

Draw: TypeAlias = np.random.Generator
Array: TypeAlias = NDArray[np.float64]

RECORDED = Path(__file__).parents[1] / "results" / "recorded_pairs.npz"
"""Pairs of launches of two ranks whose blocks alternated, recorded in 2026: for each length of steps their ``steps``
(pair, side, step) and CPU times (pair, side) in units of 0.1 us, -1 if unknown, and the ``condition`` of the pair:
0 if both sides ran the same code, else what made the second one slower."""

WARMUP = 5  # steps of a launch that are not timed
TICK = 1e-7  # s
START_UP = 0.27  # s: what a launch takes besides its steps
SEEN = 40  # steps, by which the scatter of recorded pairs is told
OWN = (0.05, 0.4)  # of the variance of pairs: what launches add of their own, anything between
OF_CPU, TAILS = 0.75, 4.0  # of the scatter of pairs: that of CPU times, by Student's t, if none were recorded
STEPS = (0.004, 0.012, 0.03, 0.06)  # s, of made-up benchmarks
LONGEST = 4.0  # logarithm of how many times as long a made-up step may be by its tail alone


class Machine(Protocol):
    """How the launches of one benchmark scatter, and what its steps take."""

    step: float  # s

    def sides(self, number: int, steps: int) -> tuple[Array, Array]:
        """By what factor each step of each of so many launches in turns is longer, and each launch's CPU time."""


Law: TypeAlias = "Callable[[Draw], Machine]"
"""The machine of a benchmark that is drawn."""


@dataclass(frozen=True)
class Pairs:
    """Recorded pairs of launches of one length of steps: logarithms, beside the mean of all."""

    step: float  # s, the mean
    steps: Array  # by pair, side and step
    cpu: Array | None  # by pair and side; None if it was not recorded

    @property
    def scatter(self) -> float:
        """Standard deviation of the logarithm of what the two sides of a pair of ``SEEN`` steps differ by."""
        means = np.log(np.exp(self.steps[:, :, :SEEN]).mean(axis=2))
        parts = max(1.0, SEEN / self.steps.shape[2])  # which longer launches are made of
        return float(np.sqrt(((means[:, 0] - means[:, 1]) ** 2).mean() / parts))


@cache
def recordings() -> tuple[Pairs, ...]:
    """Returns the recorded pairs, by length of steps."""
    with np.load(RECORDED) as file:
        numbers = range(sum(name.startswith("steps_") for name in file))
        return tuple(pairs_of(file[f"steps_{i}"], file[f"cpu_{i}"], file[f"condition_{i}"]) for i in numbers)


def pairs_of(steps: NDArray[np.int32], cpu: NDArray[np.int32], condition: NDArray[np.int8]) -> Pairs:
    """Returns pairs without what made their second sides slower: it is taken off on average, for each condition."""
    times, used = np.log(TICK * steps), np.log(np.where(cpu < 0, np.nan, TICK * cpu))
    for slowed in np.unique(condition[condition > 0]):
        rows = condition == slowed
        times[rows, 1] -= times[rows, 1].mean() - times[rows, 0].mean()
        used[rows, 1] -= used[rows, 1].mean() - used[rows, 0].mean()
    mean = float(np.log(np.exp(times).mean()))
    return Pairs(math.exp(mean), times - mean, None if np.isnan(used).any() else used - used.mean())


class Replayed:
    """A machine whose launches are stretches of recorded pairs, made as quiet or as noisy as is asked for."""

    def __init__(self, pairs: Pairs, draw: Draw, scatter: float | None = None) -> None:
        own = draw.uniform(*OWN)
        self.step = pairs.step
        self._draw = draw
        self._pairs = pairs
        natural = pairs.scatter
        total = natural if scatter is None else scatter
        self._scale = math.sqrt(1 - own) * total / natural
        self._of_cpu = OF_CPU * total / math.sqrt(2)
        self._own = Skewed(math.sqrt(own / 2) * total, draw)

    def sides(self, number: int, steps: int) -> tuple[Array, Array]:
        """Stretches of as many pairs as it takes; which side is which is drawn once for all of them."""
        swapped, there = self._draw.integers(2), self._pairs.steps.shape[2]
        parts, left = [], steps
        while left:
            size = min(left, there)
            begin = 2 * int(self._draw.integers((there - size) // 2 + 1))  # blocks have two steps
            pair = int(self._draw.integers(len(self._pairs.steps)))
            parts.append(self._pairs.steps[pair, :, begin : begin + size])
            left -= size
        times, own = np.concatenate(parts, axis=1), self._own(number)
        if self._pairs.cpu is None:
            cpu = self._of_cpu * self._draw.standard_t(TAILS, 2) * math.sqrt(1 - 2 / TAILS)
        else:
            cpu = self._scale * self._pairs.cpu[pair]
        times, cpu = (both[::-1][:number] if swapped else both[:number] for both in (times, cpu))
        return np.exp(self._scale * times + own[:, None]), np.exp(cpu + own)


class Skewed:
    """What launches add of their own: mostly little, now and then much more; logarithms, 0 on average."""

    def __init__(self, spread: float, draw: Draw) -> None:
        self._spread = spread
        self._draw = draw
        self._rare = draw.random() < 0.5  # else an exponential law

    def __call__(self, number: int) -> Array:
        """That of so many launches."""
        if self._rare:  # one in twenty, by about 4.5 times the spread
            jumps = (self._draw.random(number) < 0.05) * self._draw.gamma(8.0, 1 / 8.0, number)
            return self._spread * (jumps - 0.05) / math.sqrt(0.05 * 1.125 - 0.05**2)
        return self._spread * (self._draw.exponential(1.0, number) - 1.0)


class Moody:
    """A made-up machine with moods: load that lasts, pauses, and heavy tails."""

    def __init__(self, draw: Draw) -> None:
        self.step = float(draw.choice(STEPS))
        self._draw = draw
        self._noise, self._freedom = draw.uniform(0.02, 0.08), draw.uniform(2.2, 6.0)  # Student's t, of steps
        self._load, self._lasts = draw.uniform(0.03, 0.25), math.exp(draw.uniform(math.log(0.05), math.log(5.0)))  # s
        self._pause = draw.uniform(0.01, 0.1)  # s, exponential
        self._every = draw.uniform(0.5, 10.0)  # s
        self._regular = draw.random() < 0.5  # whether pauses come at regular times
        self._own = Skewed(draw.uniform(0.0, 0.03), draw)
        self._of_cpu = draw.uniform(0.01, 0.04)

    def sides(self, number: int, steps: int) -> tuple[Array, Array]:
        """Blocks of both sides alternate; the one that comes first in one cycle comes last in the next."""
        draw, sizes = self._draw, turn_sizes(steps, 1)
        tails = np.minimum(self._noise * draw.standard_t(self._freedom, (number, steps)), LONGEST)
        first = int(draw.integers(number))
        turns = [
            (block, (side + first + block) % number if number > 1 else 0)
            for block in range(len(sizes))
            for side in range(number)
        ]
        load = self._loads([self.step * sizes[block] for block, _ in turns])
        ends = np.cumsum(sizes)
        own = self._own(number)
        factors = np.exp(tails + own[:, None])
        for (block, side), level in zip(turns, load, strict=True):
            factors[side, ends[block] - sizes[block] : ends[block]] *= math.exp(level)
        begins = np.cumsum([0.0, *(self.step * sizes[block] for block, _ in turns)])
        for moment in self._moments(float(begins[-1])):
            block, side = turns[int(np.searchsorted(begins, moment, side="right")) - 1]
            step = int(draw.integers(ends[block] - sizes[block], ends[block]))
            factors[side, step] += draw.exponential(self._pause) / self.step
        return factors, np.exp(own + self._of_cpu * draw.standard_normal(number))

    def _loads(self, seconds: Sequence[float]) -> list[float]:
        """The load of each turn, on the scale of logarithms: it forgets itself by and by."""
        level = self._load * self._draw.standard_normal()
        levels = []
        for lasts, fresh in zip(seconds, self._draw.standard_normal(len(seconds)), strict=True):
            kept = math.exp(-lasts / self._lasts)
            level = kept * level + math.sqrt(1 - kept**2) * self._load * fresh
            levels.append(level)
        return levels

    def _moments(self, whole: float) -> Array:
        """When the machine pauses, in seconds from the beginning of the timed steps."""
        if self._regular:
            moments: Array = np.arange(self._draw.uniform(0, self._every), whole, self._every)
            return moments
        return self._draw.uniform(0, whole, self._draw.poisson(whole / self._every))


def replayed(draw: Draw) -> Machine:
    """One of the recordings, as noisy as it was."""
    every = recordings()
    return Replayed(every[int(draw.integers(len(every)))], draw)


def scattering(scatter: float) -> Law:
    """One of the recordings of short steps, whose pairs of ``SEEN`` steps scatter by so much."""

    def of(draw: Draw) -> Machine:
        every = [pairs for pairs in recordings() if pairs.steps.shape[2] >= SEEN]
        return Replayed(every[int(draw.integers(len(every)))], draw, scatter)

    return of


@dataclass(frozen=True)
class Slower:
    """How code is slower: every step by a share of itself, and each step of ``every`` by so many typical steps."""

    share: float = 0.0
    pause: float = 0.0
    every: int = 10

    def lengthened(self, begin: int, end: int) -> Array:
        """How many times as long steps with these numbers, from 1, take: on a machine where all take the same."""
        return (1 + self.share) * np.where(np.arange(begin, end) % self.every == 0, 1 + self.pause, 1.0)


SAME = Slower()


class World:
    """Where the launches of both sides of a simulated benchmark come from."""

    def __init__(self, machine: Machine, new: Slower = SAME, base: Slower = SAME, *, cpu: bool = True) -> None:
        self._machine = machine
        self._sides = {False: new, True: base}
        self._cpu = cpu
        self._lengths = {False: 0.0, True: 0.0}  # of all steps that were timed side by side

    @property
    def slower(self) -> float:
        """By how much the code of the new side really is slower, in the steps that were timed."""
        return self._lengths[False] / self._lengths[True] - 1

    def launched(self, of_reference: Sequence[bool], steps: int) -> Launched:
        """One launch of each of these sides."""
        step, (factors, used) = self._machine.step, self._machine.sides(len(of_reference), steps)
        made = []
        for side, noise, cpu in zip(of_reference, factors, used, strict=True):
            slower, begin = self._sides[side], WARMUP + 1
            longer = slower.lengthened(begin, begin + steps)
            if len(of_reference) > 1:  # no pilot
                self._lengths[side] += float(longer.sum())
            # A pause takes what it takes, whatever the machine does to the step.
            times = step * ((1 + slower.share) * noise + longer - (1 + slower.share))
            warm_up = step * float(slower.lengthened(1, begin).sum() - WARMUP * (1 + slower.share))
            rank = rank_launch(times.tolist(), cpu=float(step * (1 + slower.share) * cpu) if self._cpu else None)
            made.append(((rank,), START_UP + warm_up + float(times.sum())))
        return made
