"""What the blocks of a launch's steps tell of its scatter, and what launches are expected to scatter by before they do.

Blocks of consecutive steps are nearly independent of each other, and so are the pairs of blocks of two launches that
take turns. They know how well a launch knows its own number long before there are many launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from pytest_ddpperf.records.measurement import Spread

BLOCKS = 10  # that the steps of a launch which ran alone are cut into: each outlasts what ties a step to the next one
MIN_BLOCKS = 2  # blocks: one tells nothing of scatter

OWN_IN_TURNS, OWN_ALONE = 0.015, 0.03
"""Standard deviation that a launch adds of its own to what its blocks tell, on the scale of logarithms.

In turns it was 1.7 % over all recordings, from less than nothing to 3.3 % in single cells. Alone it was as little as
3 % and mostly 6 to 20 %: on a shared machine what the baseline's launches and other benchmarks show takes its place
(benchmarks/intervals.py).
"""

OWN_OF_TAIL = 0.005  # what a launch adds to all of its steps cancels out in their shape

OWN_APART = math.sqrt(2) * OWN_ALONE  # what two launches of a round differ by of their own that took no turns

CERTAINTY = 4.0
"""Degrees of freedom for which this expectation counts beside the scatter that launches show.

With more, intervals of few launches leave the truth out too often where a launch adds far more of its own; with fewer
they are too wide where it does not (benchmarks/intervals.py).
"""
MAX_CERTAINTY = 10.0  # where other benchmarks tell as well: they are never quite like this one


@dataclass(frozen=True)
class Expected:
    """What launches are expected to scatter by, before they are looked at.

    Attributes:
        variance: of one launch's number, on the scale of analysis.
        df: degrees of freedom for which that counts.
    """

    variance: float
    df: float


def even_sizes(steps: int, blocks: int = BLOCKS) -> tuple[int, ...]:
    """The sizes of blocks of consecutive steps, as equal as can be, of at least two steps where there are so many."""
    number = max(1, min(blocks, steps // 2))
    return tuple(steps * (i + 1) // number - steps * i // number for i in range(number))


def influences(without: Sequence[float]) -> tuple[float, ...]:
    """How far each block moves a launch's number, by the jackknife (Quenouille 1956; Tukey 1958).

    Args:
        without: the number as it would be without each block, in order.

    Returns:
        One number for each block, with a mean of 0: ``(blocks - 1) * (mean - without)``.
    """
    mean = fmean(without)
    return tuple((len(without) - 1) * (mean - one) for one in without)


def variance_of(moved: Sequence[float]) -> float:
    """The squared standard error of a launch's number by the influences of its blocks."""
    return math.fsum(one * one for one in moved) / (len(moved) * (len(moved) - 1))


def paired_blocks(new: Sequence[tuple[float, ...]], base: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    """The influences of the pairs of blocks on what two sides differ by, for each pair of launches.

    What disturbs both blocks of a pair cancels out. Blocks without partners, of launches with different numbers of
    them, count each for its own side.
    """
    return tuple(map(_paired, new, base))


def _paired(new: tuple[float, ...], base: tuple[float, ...]) -> tuple[float, ...]:
    if len(new) == len(base):
        return tuple(one - other for one, other in zip(new, base, strict=True))
    if min(len(new), len(base)) < MIN_BLOCKS:
        return ()
    every = len(new) + len(base)
    # So that the variance of all is the sum of both sides'.
    return tuple(
        one * math.sqrt(every * (every - 1) / (len(side) * (len(side) - 1))) for side in (new, base) for one in side
    )


def expected(within: Sequence[Sequence[float]], own: float, learned: Spread | None = None) -> Expected | None:
    """What launches are expected to scatter by, from the blocks inside them.

    Args:
        within: for each launch the influences of its blocks; a launch with fewer than two tells nothing.
        own: standard deviation that a launch adds of its own.
        learned: by how much the launches of other benchmarks scatter; None where nothing is known of them.

    Returns:
        The expectation: the variance is moderated by what was learned, each with its degrees of freedom (Smyth 2004,
        "Linear models and empirical Bayes methods"). None where no launch has two blocks and nothing was learned.
    """
    telling = [moved for moved in within if len(moved) >= MIN_BLOCKS]
    df = min(CERTAINTY, float(sum(len(moved) - 1 for moved in telling)))
    variance = fmean(map(variance_of, telling)) + own**2 if telling else 0.0
    if learned is None or learned.df <= 0:
        return Expected(variance, df) if telling else None
    both = (df * variance + learned.df * learned.sd**2) / (df + learned.df)
    return Expected(both, min(MAX_CERTAINTY, df + learned.df))
