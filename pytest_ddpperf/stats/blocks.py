"""The scatter that launches are expected to have, from the blocks of their steps.

Blocks of consecutive steps are nearly independent of each other, and so are the pairs of blocks of two interleaved
launches. They show how well a launch knows its own number, long before there are many launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

BLOCKS = 10  # of a launch that was not interleaved: each outlasts the dependence of one step on the next
MIN_BLOCKS = 2  # one block tells nothing of scatter

OWN_IN_TURNS, OWN_ALONE = 0.015, 0.03
"""Standard deviation that a launch adds of its own to the scatter of its blocks, on the scale of logarithms.

Interleaved it was 1.7 % over all recordings, from less than nothing to 3.3 % in single cells. Alone it was as little as
3 % and mostly 6 to 20 %.
"""

OWN_APART = math.sqrt(2) * OWN_ALONE  # of the difference of two launches of a round that were not interleaved

CERTAINTY = 4.0
"""Degrees of freedom for which this expectation counts beside the scatter that launches show.

With more, intervals of few launches leave the truth out too often where a launch adds far more of its own; with fewer
they are too wide where it does not.
"""


@dataclass(frozen=True, slots=True)
class Expected:
    """The scatter that launches are expected to have, before they are looked at."""

    variance: float  # of one launch's number, on the scale of analysis
    df: float  # degrees of freedom for which that counts


def even_sizes(steps: int) -> tuple[int, ...]:
    """The sizes of blocks of consecutive steps, as equal as can be, of at least two steps where there are so many."""
    number = max(1, min(BLOCKS, steps // 2))
    return tuple(steps * (i + 1) // number - steps * i // number for i in range(number))


def influences(without: Sequence[float]) -> tuple[float, ...]:
    """Returns how far each block moves a launch's number, by the jackknife (Quenouille 1956; Tukey 1958).

    Args:
        without: the number as it would be without each block, in order.

    Returns:
        One number for each block, with a mean of 0: ``(blocks - 1) * (mean - without)``.
    """
    mean = fmean(without)
    return tuple((len(without) - 1) * (mean - number) for number in without)


def variance_of(moved: Sequence[float]) -> float:
    """The squared standard error of a launch's number by the influences of its blocks."""
    return math.fsum(influence * influence for influence in moved) / (len(moved) * (len(moved) - 1))


def paired_blocks(new: Sequence[tuple[float, ...]], base: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    """The influences of the pairs of blocks on the difference of two sides, for each pair of launches.

    A disturbance of both blocks of a pair cancels out. Where launches have different numbers of blocks, each block
    counts for its own side.
    """
    return tuple(map(_paired, new, base))


def _paired(new: tuple[float, ...], base: tuple[float, ...]) -> tuple[float, ...]:
    if len(new) == len(base):
        return tuple(moved - partner for moved, partner in zip(new, base, strict=True))
    if min(len(new), len(base)) < MIN_BLOCKS:
        return ()
    every = len(new) + len(base)
    # So that the variance of all is the sum of both sides'.
    return tuple(
        moved * math.sqrt(every * (every - 1) / (len(side) * (len(side) - 1))) for side in (new, base) for moved in side
    )


def expected(within: Sequence[Sequence[float]], own: float) -> Expected | None:
    """The scatter that launches are expected to have, from the blocks inside them.

    Args:
        within: for each launch the influences of its blocks; a launch with fewer than two tells nothing.
        own: standard deviation that a launch adds of its own.

    Returns:
        The expectation; None if no launch has two blocks.
    """
    telling = [moved for moved in within if len(moved) >= MIN_BLOCKS]
    if not telling:
        return None
    df = min(CERTAINTY, float(sum(len(moved) - 1 for moved in telling)))
    return Expected(fmean(map(variance_of, telling)) + own**2, df)
