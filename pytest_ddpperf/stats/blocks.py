"""The scatter that launches are expected to have, from the blocks of their steps.

Blocks of consecutive steps are nearly independent of each other, and so are the pairs of blocks of two interleaved
launches. Their scatter shows how precisely a launch measures its figure, long before there are many launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

BLOCKS = 10  # of a launch that was not interleaved: each outlasts the dependence of one step on the next
MIN_BLOCKS = 2  # a single block has no scatter

OWN_IN_TURNS, OWN_ALONE = 0.015, 0.03
"""Standard deviation, in logarithms, by which launches differ beyond the scatter of their blocks.

Measured: interleaved 1.7 % over all recordings (0 to 3.3 % in single cells); alone 3 % at least, mostly 6 to 20 %.
"""

OWN_APART = math.sqrt(2) * OWN_ALONE  # of the difference of two launches of a round that were not interleaved

CERTAINTY = 4.0
"""Degrees of freedom of the expected scatter, next to those of the scatter that launches show.

With more, intervals of few launches miss the true value too often if launches differ far more than expected; with
fewer, intervals are too wide if launches do not.
"""


@dataclass(frozen=True, slots=True)
class Expected:
    """The scatter that launches are expected to have, estimated from their blocks alone."""

    variance: float  # of one launch's figure, on the scale of analysis
    df: float  # degrees of freedom of the variance


def even_sizes(steps: int) -> tuple[int, ...]:
    """Returns the sizes of at most ``BLOCKS`` blocks of consecutive steps, nearly equal and of at least two steps."""
    number = max(1, min(BLOCKS, steps // 2))
    return tuple(steps * (i + 1) // number - steps * i // number for i in range(number))


def influences(without: Sequence[float]) -> tuple[float, ...]:
    """Returns how far each block moves a launch's figure, by the jackknife (Quenouille 1956; Tukey 1958).

    Args:
        without: the figure computed without each block, in order.

    Returns:
        One number for each block, with a mean of 0: ``(blocks - 1) * (mean - without)``.
    """
    mean = fmean(without)
    return tuple((len(without) - 1) * (mean - number) for number in without)


def variance_of(moved: Sequence[float]) -> float:
    """Returns the squared standard error of a launch's figure, from the influences of its blocks."""
    return math.fsum(influence * influence for influence in moved) / (len(moved) * (len(moved) - 1))


def paired_blocks(new: Sequence[tuple[float, ...]], base: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    """Returns the influences of pairs of blocks on the difference of two sides, one tuple for each pair of launches.

    A disturbance of both blocks of a pair cancels out. If two launches have different numbers of blocks, the blocks are
    not paired: each block influences its own side.
    """
    return tuple(map(_paired, new, base))


def _paired(new: tuple[float, ...], base: tuple[float, ...]) -> tuple[float, ...]:
    if len(new) == len(base):
        return tuple(moved - partner for moved, partner in zip(new, base, strict=True))
    if min(len(new), len(base)) < MIN_BLOCKS:
        return ()
    every = len(new) + len(base)
    # Scaled so that ``variance_of`` all of them is the sum of both sides' variances.
    return tuple(
        moved * math.sqrt(every * (every - 1) / (len(side) * (len(side) - 1))) for side in (new, base) for moved in side
    )


def expected(within: Sequence[Sequence[float]], own: float) -> Expected | None:
    """Returns the scatter that launches are expected to have, from the blocks inside them; None if no launch has two.

    Args:
        within: for each launch the influences of its blocks; launches with fewer than two blocks are ignored.
        own: standard deviation by which launches differ beyond the scatter of their blocks.
    """
    telling = [moved for moved in within if len(moved) >= MIN_BLOCKS]
    if not telling:
        return None
    df = min(CERTAINTY, float(sum(len(moved) - 1 for moved in telling)))
    return Expected(fmean(map(variance_of, telling)) + own**2, df)
