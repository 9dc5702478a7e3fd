"""What recorded launches bear out of the intervals: pairs that took turns, launches alone, and stretches of either."""

from __future__ import annotations

import datetime as dt
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate, pairwise

import numpy as np
from scipy.special import chdtri, stdtr

from benchmarks.quality.campaign import Campaign, Cell, Recorded, of_cell, partners
from benchmarks.quality.steps import CONDITIONS, FIRST, UNCHANGED
from pytest_ddpperf.stats.blocks import OWN_IN_TURNS, even_sizes, expected, influences, paired_blocks, variance_of
from pytest_ddpperf.stats.intervals import Change, paired
from pytest_ddpperf.stats.rates import Rate
from pytest_ddpperf.training.timing import turn_sizes

MISS = 0.025  # on either side of a 95 % interval
MIN_PAIRS = 3  # of a condition, to know its effect by
SHORT_TURNS = dt.datetime(2026, 11, 22, 12, 28, tzinfo=dt.timezone.utc)
"""Since when launches take as many turns as they do now (b832abc): before it was five, and blocks ran far apart."""

RESAMPLED = 2000


@dataclass(frozen=True)
class Known:
    """A launch that ran alone, or what two launches that took turns differ by."""

    started: float  # seconds since the campaign began
    value: float  # on the scale of logarithms
    moved: tuple[float, ...]  # how far each of its blocks moves that


def moved_by(launch: Recorded, sizes: Sequence[int]) -> Known:
    """A launch's mean step and the influences of its blocks, as ``metrics/launch_figures.py`` has them."""
    steps, ends = launch.step_times, list(accumulate(sizes))
    cuts = zip([0, *ends[:-1]], ends, strict=True)
    without = [math.log(statistics.fmean((*steps[:start], *steps[end:]))) for start, end in cuts]
    return Known(launch.started, math.log(launch.mean), influences(without))


def in_short_turns(campaign: Campaign) -> bool:
    """Whether its launches took turns as the plugin's do now."""
    return dt.datetime.fromisoformat(campaign.began) >= SHORT_TURNS


def pairs_of(launches: Sequence[Recorded], cell: Cell) -> list[Known]:
    """What launches that took turns differ by, in the order recorded, as if all had run the same code.

    Where one side was made slower, the mean of such pairs is taken off, and what is left is scaled up by what that
    takes away from its variance.
    """
    found: list[Known] = []
    for condition in CONDITIONS:
        both = [] if condition == FIRST else partners(launches, cell, condition)
        differences = [_difference(base, new) for base, new in both]
        if condition == UNCHANGED:
            found += differences
        elif len(differences) >= MIN_PAIRS:
            effect = statistics.fmean(pair.value for pair in differences)
            scale = math.sqrt(len(differences) / (len(differences) - 1))
            found += [Known(pair.started, scale * (pair.value - effect), pair.moved) for pair in differences]
    return sorted(found, key=lambda pair: pair.started)


def _difference(base: Recorded, new: Recorded) -> Known:
    mine, theirs = (moved_by(launch, turn_sizes(len(launch.step_times), 1)) for launch in (new, base))
    (moved,) = paired_blocks([mine.moved], [theirs.moved])
    return Known(mine.started, mine.value - theirs.value, moved)


def alone(launches: Sequence[Recorded], cell: Cell) -> list[Known]:
    """The mean steps of launches that ran alone, in the order recorded."""
    same = of_cell(launches, cell, UNCHANGED)
    return [moved_by(launch, even_sizes(len(launch.step_times))) for launch in same]


@dataclass(frozen=True)
class Intervals:
    """How intervals of the same code came out."""

    p: tuple[float, ...]  # how likely chance is to lie as far to the same side
    reach: tuple[float, ...]  # half the width of the 95 % interval, on the scale of logarithms
    independent: int  # how many of them share no launch, at most

    @property
    def covers(self) -> Rate:
        """How often the 95 % interval covers 0."""
        return Rate(sum(p >= MISS for p in self.p), len(self.p), self.independent)

    def beyond(self, level: float) -> float:
        """How often one side's test at this level finds what is not there: the mean of both sides."""
        return sum(p < level for p in self.p) / len(self.p) / 2

    @property
    def median(self) -> float:
        """Half the width, of half of them at most."""
        return statistics.median(self.reach)


def together(cells: Iterable[Intervals]) -> Intervals:
    """Those of several cells."""
    p, reach, independent = zip(*map(astuple, cells), strict=True)
    return Intervals(sum(p, ()), sum(reach, ()), sum(independent))


def of_pairs(pairs: Sequence[Known], number: int, own: float | None = OWN_IN_TURNS) -> Intervals:
    """The intervals of all stretches of so many consecutive pairs of one cell.

    A launch is taken to add ``own`` to what its blocks tell; None to go by the launches alone.
    """
    stretches = [pairs[begin : begin + number] for begin in range(len(pairs) - number + 1)]
    changes = (
        paired(
            [math.exp(pair.value) for pair in stretch],
            [1.0] * number,
            scale="ratio",
            robust=True,
            expected=None if own is None else expected([pair.moved for pair in stretch], own),
        )
        for stretch in stretches
    )
    return _intervals(changes, len(pairs) // number)


def _intervals(changes: Iterable[Change | None], independent: int) -> Intervals:
    p, reach = [], []
    for found in changes:
        if found is not None and found.standard_error and found.interval is not None:
            p.append(float(stdtr(found.df, -abs(found.shift) / found.standard_error)))
            reach.append(math.log((1 + found.interval.high) / (1 + found.interval.low)) / 2)
    return Intervals(tuple(p), tuple(reach), independent)


@dataclass(frozen=True)
class Scatter:
    """Of pairs: squares on the scale of logarithms, and correlations."""

    shown: tuple[float, ...]  # the squared differences
    told: tuple[float, ...]  # their variances as the blocks tell them
    neighbours: tuple[float, ...]  # products of consecutive differences, over their mean square
    blocks: tuple[float, ...]  # of each pair, the correlation of neighbouring pairs of blocks

    @property
    def own(self) -> tuple[float, float, float]:
        """What a pair of launches adds of its own, and its 95 % bootstrap interval (percentiles)."""
        left = np.subtract(self.shown, self.told)
        draws = np.random.default_rng(20261123).integers(len(left), size=(RESAMPLED, len(left)))
        low, high = np.quantile(left[draws].mean(axis=1), (0.025, 0.975))
        return root(float(left.mean())), root(float(low)), root(float(high))


def scatter_of(pairs: Sequence[Known]) -> Scatter:
    """Of the pairs of one cell."""
    shown = tuple(pair.value**2 for pair in pairs)
    mean = statistics.fmean(shown)
    products = tuple(pair.value * later.value / mean for pair, later in pairwise(pairs))
    told = tuple(variance_of(pair.moved) for pair in pairs)
    return Scatter(shown, told, products, tuple(_of_neighbours(pair.moved) for pair in pairs))


def _of_neighbours(moved: Sequence[float]) -> float:
    """The correlation of neighbours; a known mean of 0 makes it too low by one over their number."""
    products = math.fsum(block * later for block, later in pairwise(moved))
    return products / math.fsum(block * block for block in moved) + 1 / len(moved)


def joined(cells: Iterable[Scatter]) -> Scatter:
    """Those of several cells."""
    return Scatter(*(sum(columns, ()) for columns in zip(*map(astuple, cells), strict=True)))


@dataclass(frozen=True)
class Stretches:
    """Stretches of launches that ran alone: standard deviations."""

    number: int
    scatter: float  # of launches within one, the root mean square of all
    usual: float  # the same by the median of all, as of normal launches: disturbed ones hardly count
    runs: float  # of stretches beyond what their launches explain; below 0 where they explain more


def stretches_of(launches: Sequence[Known], length: int) -> Stretches | None:
    """Consecutive launches cut into stretches; None where there are fewer than two."""
    values = np.array([launch.value for launch in launches])
    number = len(values) // length
    if number < 2:
        return None
    cut = values[: number * length].reshape(number, length)
    within = cut.var(axis=1, ddof=1)
    beyond = float(cut.mean(axis=1).var(ddof=1) - within.mean() / length)
    middle = float(np.median(within)) * (length - 1) / float(chdtri(length - 1, 0.5))
    return Stretches(number, root(float(within.mean())), root(middle), root(beyond))


def root(square: float) -> float:
    """The square root, with the sign of the square: an estimate of a variance may lie below 0."""
    return math.copysign(math.sqrt(abs(square)), square)


def root_mean(squares: Iterable[float]) -> float:
    """The root of their mean."""
    return math.sqrt(statistics.fmean(squares))
