"""What recorded launches bear out of the intervals: pairs that took turns, launches alone, and stretches of either."""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, stdtr

from benchmarks.quality.conditions import CONDITIONS, FIRST, UNCHANGED
from benchmarks.quality.launches import Campaign, Cell, Recorded
from benchmarks.quality.resampling import of_cell, partners
from pytest_ddpperf.stats.blocks import (
    OWN_ALONE,
    OWN_IN_TURNS,
    even_sizes,
    expected,
    influences,
    paired_blocks,
    variance_of,
)
from pytest_ddpperf.stats.intervals import Change, change, paired
from pytest_ddpperf.stats.rates import Rate
from pytest_ddpperf.stats.summaries import tail, typical
from pytest_ddpperf.training.timing import turn_sizes

METRICS: dict[str, Callable[[Sequence[float]], float]] = {"step time": typical, "tail": tail}
LEVELS = (0.10, 0.05, 0.01)  # one-sided
MISS = 0.025  # on either side of a 95 % interval
FEWEST = 3  # pairs of a condition, to know its effect by
SHORT_TURNS = dt.datetime(2026, 11, 22, 12, 28, tzinfo=dt.timezone.utc)
"""Since when launches take as many turns as they do now (b832abc): before it was five, and blocks ran far apart."""

RESAMPLED = 2000

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Known:
    """A launch that ran alone, or what two launches that took turns differ by.

    Attributes:
        started: seconds since the campaign began.
        value: on the scale of logarithms.
        moved: how far each of its blocks moves that.
    """

    started: float
    value: float
    moved: tuple[float, ...]


def moved_by(steps: Sequence[float], sizes: Sequence[int], number: Callable[[Sequence[float]], float]) -> Known:
    """A launch's number and the influences of its blocks, as ``metrics/blocks.py`` has them."""
    ends = list(accumulate(sizes))
    cuts = zip([0, *ends[:-1]], ends, strict=True)
    without = [math.log(number((*steps[:start], *steps[end:]))) for start, end in cuts]
    return Known(0.0, math.log(number(steps)), influences(without))


def in_short_turns(campaign: Campaign) -> bool:
    """Whether its launches took turns as the plugin's do now."""
    return dt.datetime.fromisoformat(campaign.began) >= SHORT_TURNS


def pairs_of(launches: Sequence[Recorded], cell: Cell, number: Callable[[Sequence[float]], float]) -> list[Known]:
    """What launches that took turns differ by, in the order recorded, as if all had run the same code.

    Where one side was made slower, the mean of such pairs is taken off, and what is left is scaled up by what that
    takes away from its variance.
    """
    found: list[Known] = []
    for condition in CONDITIONS:
        both = [] if condition == FIRST else partners(launches, cell, condition)
        differences = [_difference(base, new, number) for base, new in both]
        if condition == UNCHANGED:
            found += differences
        elif len(differences) >= FEWEST:
            effect = statistics.fmean(one.value for one in differences)
            scale = math.sqrt(len(differences) / (len(differences) - 1))
            found += [Known(one.started, scale * (one.value - effect), one.moved) for one in differences]
    return sorted(found, key=lambda one: one.started)


def _difference(base: Recorded, new: Recorded, number: Callable[[Sequence[float]], float]) -> Known:
    mine, theirs = (moved_by(one.step_times, turn_sizes(len(one.step_times), 1), number) for one in (new, base))
    (moved,) = paired_blocks([mine.moved], [theirs.moved])
    return Known(new.started, mine.value - theirs.value, moved)


def alone(launches: Sequence[Recorded], cell: Cell) -> list[Known]:
    """The typical steps of launches that ran alone, in the order recorded."""
    found = []
    for one in of_cell(launches, cell, UNCHANGED):
        known = moved_by(one.step_times, even_sizes(len(one.step_times)), typical)
        found.append(Known(one.started, known.value, known.moved))
    return found


@dataclass(frozen=True)
class Intervals:
    """How intervals of the same code came out.

    Attributes:
        p: of each, how likely chance is to lie as far to the same side.
        reach: of each, half the width of its 95 % interval, on the scale of logarithms.
        independent: how many of them share no launch, at most.
    """

    p: tuple[float, ...]
    reach: tuple[float, ...]
    independent: int

    @property
    def covers(self) -> Rate:
        """How often the 95 % interval covers 0."""
        return Rate(sum(one >= MISS for one in self.p), len(self.p), self.independent)

    def beyond(self, level: float) -> float:
        """How often one side's test at this level finds what is not there: the mean of both sides."""
        return sum(one < level for one in self.p) / len(self.p) / 2

    @property
    def median(self) -> float:
        """Half the width, of half of them at most."""
        return statistics.median(self.reach)


def together(some: Iterable[Intervals]) -> Intervals:
    """Those of several cells."""
    all_of_them = list(some)
    return Intervals(
        tuple(p for one in all_of_them for p in one.p),
        tuple(reach for one in all_of_them for reach in one.reach),
        sum(one.independent for one in all_of_them),
    )


def of_pairs(pairs: Sequence[Known], number: int, own: float | None = OWN_IN_TURNS) -> Intervals:
    """The intervals of all stretches of so many consecutive pairs.

    Args:
        pairs: of one cell, in order.
        number: of each stretch.
        own: what a launch is taken to add to what its blocks tell; None to go by the launches alone.
    """
    changes = []
    for begin in range(len(pairs) - number + 1):
        stretch = pairs[begin : begin + number]
        changes.append(
            paired(
                [math.exp(one.value) for one in stretch],
                [1.0] * number,
                scale="ratio",
                outliers="both",
                expected=None if own is None else expected([one.moved for one in stretch], own),
            )
        )
    return _intervals(changes, len(pairs) // number)


def of_runs(launches: Sequence[Known], number: int, drift: float) -> Intervals:
    """The intervals between stretches of so many launches that ran alone, each as a run beside all later ones."""
    runs = [launches[i : i + number] for i in range(0, len(launches) - number + 1, number)]
    values = [[math.exp(one.value) for one in run] for run in runs]
    told = [expected([one.moved for one in run], OWN_ALONE) for run in runs]
    changes = [
        change(values[new], values[base], scale="ratio", drift=drift, outliers="high", expected=told[new])
        for base in range(len(runs))
        for new in range(base + 1, len(runs))
    ]
    return _intervals(changes, len(runs) // 2)


def _intervals(changes: Iterable[Change | None], independent: int) -> Intervals:
    p, reach = [], []
    for one in changes:
        if one is not None and one.standard_error and one.interval is not None:
            p.append(float(stdtr(one.df, -abs(one.shift) / one.standard_error)))
            reach.append(math.log((1 + one.interval.high) / (1 + one.interval.low)) / 2)
    return Intervals(tuple(p), tuple(reach), independent)


@dataclass(frozen=True)
class Scatter:
    """Of pairs: squares on the scale of logarithms, one of each pair, and products of neighbours.

    Attributes:
        shown: the squared differences.
        told: their variances as the blocks tell them.
        neighbours: products of consecutive differences, over their mean square.
        blocks: of each pair, the correlation of neighbouring pairs of blocks.
    """

    shown: tuple[float, ...]
    told: tuple[float, ...]
    neighbours: tuple[float, ...]
    blocks: tuple[float, ...]

    @property
    def own(self) -> tuple[float, float, float]:
        """What a pair of launches adds of its own, and its 95 % bootstrap interval (percentiles)."""
        left = np.subtract(self.shown, self.told)
        draws = np.random.default_rng(20261123).integers(len(left), size=(RESAMPLED, len(left)))
        low, high = np.quantile(left[draws].mean(axis=1), (0.025, 0.975))
        return root(float(left.mean())), root(float(low)), root(float(high))


def scatter_of(pairs: Sequence[Known]) -> Scatter:
    """Of the pairs of one cell."""
    shown = tuple(one.value**2 for one in pairs)
    mean = statistics.fmean(shown)
    products = tuple(one.value * other.value / mean for one, other in pairwise(pairs))
    told = tuple(variance_of(one.moved) for one in pairs)
    return Scatter(shown, told, products, tuple(_of_neighbours(one.moved) for one in pairs))


def _of_neighbours(moved: Sequence[float]) -> float:
    """The correlation of neighbours; a known mean of 0 makes it too low by one over their number."""
    products = math.fsum(one * other for one, other in pairwise(moved))
    return products / math.fsum(one * one for one in moved) + 1 / len(moved)


def joined(some: Iterable[Scatter]) -> Scatter:
    """Those of several cells."""
    cells = list(some)
    return Scatter(*(tuple(one for cell in cells for one in getattr(cell, name)) for name in Scatter.__annotations__))


@dataclass(frozen=True)
class Runs:
    """Stretches of launches that ran alone.

    Attributes:
        number: of stretches.
        scatter: standard deviation of launches within one, the root mean square of all.
        usual: the same by the median of all, as of normal launches: disturbed ones hardly count.
        runs: standard deviation of stretches beyond what their launches explain; below 0 where they explain more.
    """

    number: int
    scatter: float
    usual: float
    runs: float


def runs_of(launches: Sequence[Known], length: int) -> Runs | None:
    """Consecutive launches cut into stretches; None where there are fewer than two."""
    values = np.array([one.value for one in launches])
    number = len(values) // length
    if number < 2:
        return None
    cut = values[: number * length].reshape(number, length)
    within = cut.var(axis=1, ddof=1)
    beyond = float(cut.mean(axis=1).var(ddof=1) - within.mean() / length)
    middle = float(np.median(within)) * (length - 1) / float(chdtri(length - 1, 0.5))
    return Runs(number, root(float(within.mean())), root(middle), root(beyond))


def root(square: float) -> float:
    """The square root, with the sign of the square: an estimate of a variance may lie below 0."""
    return math.copysign(math.sqrt(abs(square)), square)


def root_mean(squares: Iterable[float]) -> float:
    """The root of their mean."""
    return math.sqrt(statistics.fmean(squares))
