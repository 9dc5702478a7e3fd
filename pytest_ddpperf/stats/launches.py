"""Statistics of launches: long steps, blocks of steps, and the mean over launches with its error.

Blocks of consecutive steps are nearly independent. So their scatter shows the precision even of a single launch.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean, median

from pytest_ddpperf.records.launch import LongSteps

LONG = 2.0  # a step is long if it takes more than this many times the median step of its launch
REGULAR = 0.75  # share of the distances between long steps that has to be equal for a period
LEAST = 1 / 3
"""The share of a launch's steps from which its CPU time is computed: the blocks with the least CPU time.

A rank that lost its core for a while needs more CPU time, because its caches are cold. The cheapest blocks are the
least disturbed ones, so they show the work of the code.
"""
OUTLYING_INCREASES = 2  # how many of the largest, and of the smallest, increases of memory are dropped


def long_steps(launches: Sequence[Sequence[float]]) -> LongSteps:
    """Finds the long steps in lists of step times (seconds), one list for each launch.

    A long step takes more than ``LONG`` times the median of its launch, and is not much shorter than other such steps.
    So short pauses of the machine do not count if the code's own pauses are longer.
    """
    usual = [median(times) for times in launches]
    found = [
        [(place, time) for place, time in enumerate(times) if time > LONG * middle > 0]
        for times, middle in zip(launches, usual, strict=True)
    ]
    seconds = math.fsum(time for launch in found for _, time in launch)
    limit = math.fsum(time * time for launch in found for _, time in launch) / seconds / 2 if seconds else 0.0
    kept = [[(place, time) for place, time in launch if time >= limit] for launch in found]
    number = sum(map(len, kept))
    factors = math.fsum(time / middle for launch, middle in zip(kept, usual, strict=True) for _, time in launch)
    distances = Counter(after - before for launch in kept for (before, _), (after, _) in pairwise(launch))
    ((distance, seen),) = distances.most_common(1) or [(0, 0)]
    # Adjacent long steps are one disturbance, not a period.
    regular = distance > 1 and distances.total() > 1 and seen >= REGULAR * distances.total()
    whole = math.fsum(math.fsum(times) for times in launches)
    return LongSteps(
        number=number,
        steps=sum(map(len, launches)),
        factor=factors / number if number else 0.0,
        share=math.fsum(time for launch in kept for _, time in launch) / whole if number else 0.0,
        period=distance if regular else None,
    )


def cheapest_mean(blocks: Sequence[float], sizes: Sequence[int]) -> float:
    """Returns the mean cost of a step in the cheapest blocks, which together have the fraction ``LEAST`` of all steps.

    ``blocks`` has the cost of a step in each block, and ``sizes`` has each block's number of steps.
    """
    steps = left = LEAST * sum(sizes)
    total = 0.0
    for taken, size in sorted(zip(blocks, sizes, strict=True)):
        part = min(size, left)
        total, left = total + part * taken, left - part
    return total / steps


def growth_per_step(readings: Sequence[float]) -> float:
    """Returns how much each step adds permanently to ``readings``, which were taken once per step.

    First, each reading is replaced by the lowest of itself and all later readings, because permanent growth never
    disappears. If the large increases then come at equal distances, such as in every fifth step, the result is the
    growth over one such period, divided by its steps. Otherwise the largest two and the smallest two increases are
    dropped, so that a cache that fills in one or two steps is no growth. The result is then the mean of the others.

    In 5800 series of ten steps without a leak, this slope rose by up to 17 KiB per step. A least-squares line rose by
    up to 152 KiB, and the median of pairwise slopes (Theil 1950; Sen 1968) by 129 KiB.
    """
    lasting = [*accumulate(reversed(readings), min)][::-1]
    increases = [after - before for before, after in pairwise(lasting)]
    steps, ascending = len(increases), sorted(range(len(increases)), key=increases.__getitem__)
    cut = min(OUTLYING_INCREASES, (steps - 1) // 2)
    for dropped in range(cut + 1):
        rest = ascending[: steps - dropped]
        large = sorted(place for place in rest if 2 * increases[place] > increases[rest[-1]] > 0)
        first, *gaps = [large[0], *(after - before for before, after in pairwise(large))] if large else [0]
        if len(gaps) > 1 and len({*gaps}) == 1 < gaps[0] and first < gaps[0] >= steps - large[-1]:
            others = median(increases[place] for place in rest if place not in large)
            return (median(increases[place] for place in large) + (gaps[0] - 1) * others) / gaps[0]
    return fmean(increases[place] for place in ascending[cut : steps - cut])


BLOCKS = 10  # of a launch that was not interleaved: each outlasts the dependence of one step on the next
MIN_BLOCKS = 2  # a single block has no scatter

OWN_IN_TURNS, OWN_ALONE = 0.015, 0.03
"""Standard deviations (of logarithms) by which interleaved and other launches differ beyond their blocks' scatter.

Measured: for interleaved launches 1.7 % (0 to 3.3 % in single recordings), for others at least 3 %, mostly 6 to 20 %.
"""

OWN_APART = math.sqrt(2) * OWN_ALONE  # of the difference of two launches of a round that were not interleaved

CERTAINTY = 4.0
"""Degrees of freedom of the expected scatter, which add to the degrees of freedom of the measured scatter.

If there were more, intervals of few launches would miss the true value too often if launches differ far more than
expected; if there were fewer, intervals would be too wide for launches that differ as expected.
"""


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected scatter of launches, estimated only from their blocks of steps."""

    variance: float  # of one launch's figure, on the scale of analysis
    df: float  # degrees of freedom of the variance


def even_sizes(steps: int) -> tuple[int, ...]:
    """Returns the sizes of at most ``BLOCKS`` blocks of consecutive steps, nearly equal and of at least two steps."""
    number = max(1, min(BLOCKS, steps // 2))
    return tuple(steps * (i + 1) // number - steps * i // number for i in range(number))


def influences(without: Sequence[float]) -> tuple[float, ...]:
    """Returns the jackknife influence of each block of steps on a launch's estimate (Quenouille 1956; Tukey 1958).

    ``without`` has, for each block, the estimate from all other blocks. A positive influence increases the estimate.
    """
    mean = fmean(without)
    return tuple((len(without) - 1) * (mean - number) for number in without)


def variance_of(moved: Sequence[float]) -> float:
    """Returns the squared standard error of a launch's estimate from its blocks' jackknife influences, ``moved``."""
    return math.fsum(influence * influence for influence in moved) / (len(moved) * (len(moved) - 1))


def paired_influences(new: tuple[float, ...], base: tuple[float, ...]) -> tuple[float, ...]:
    """Returns the ``influences`` of blocks on the difference between the estimates of two launches, new minus base.

    ``new`` and ``base``: each launch's influences. If they are equally long, the result is their differences, in which
    common disturbances cancel out. Otherwise it has all influences, scaled, or nothing if a launch has too few blocks.
    """
    if len(new) == len(base):
        return tuple(moved - partner for moved, partner in zip(new, base, strict=True))
    if min(len(new), len(base)) < MIN_BLOCKS:
        return ()
    every = len(new) + len(base)
    # Scaled so that ``variance_of`` all of them is the sum of both sides' variances.
    return tuple(
        moved * math.sqrt(every * (every - 1) / (len(side) * (len(side) - 1))) for side in (new, base) for moved in side
    )


def expected(within: Sequence[Sequence[float]], between: float) -> Expected | None:
    """Returns the expected scatter of launches' estimates; None if no launch has enough blocks of steps.

    ``within``: each launch's ``influences``. ``between``: the launches' standard deviation that blocks do not explain.
    """
    telling = [moved for moved in within if len(moved) >= MIN_BLOCKS]
    if not telling:
        return None
    df = min(CERTAINTY, float(sum(len(moved) - 1 for moved in telling)))
    return Expected(fmean(map(variance_of, telling)) + between**2, df)


CAP = 1.2
"""Distance from the center, in standard deviations, at which a robust mean caps a sample.

At 1.2 the mean of normal samples has 7 % more variance than necessary; a lower cap would cost more, and a higher one
would give disturbed launches more weight.
"""

DENIED = 2.0
"""Ratio of the measured to the expected variance of launches, above which the expected variance loses weight.

If launches scatter as expected, one pair of launches in six exceeds this ratio.
"""

_INSIDE = math.erf(CAP / math.sqrt(2))  # share of normal samples within the cap
CAPPED_VARIANCE = (  # of capped standard normal samples
    _INSIDE + CAP**2 * (1 - _INSIDE) - 2 * CAP * math.exp(-(CAP**2) / 2) / math.sqrt(2 * math.pi)
)
_ITERATIONS = 50  # far more than convergence takes


@dataclass(frozen=True, slots=True)
class Center:
    """The mean of samples, with its error."""

    n: int  # launches
    mean: float
    variance: float | None  # the squared standard error; None for a single sample without an expected scatter
    df: float  # degrees of freedom of the variance
    assumed: float = 0.0  # how many of these degrees come from the expected scatter, not from the launches themselves


def center_of(samples: Sequence[float], *, robust: bool = False) -> Center:
    """Returns the mean of samples with its error; if ``robust``, Huber's M-estimate, which ignores most outliers."""
    if len(samples) == 1:
        return Center(1, samples[0], None, 0.0)
    return _capped(sorted(samples)) if robust else _mean(samples)


def moderated(side: Center, expected: Expected | None) -> Center:
    """Returns the mean with an error that combines the measured and the expected scatter.

    The degrees of freedom are the weights. The expected scatter has less weight if there are more launches
    (Smyth 2004), or if launches differ by far more than expected.
    """
    if expected is None or expected.df <= 0:
        return side
    shown, df = (0.0, 0.0) if side.variance is None else (side.variance * side.n, side.df)
    denied = shown / expected.variance / DENIED if expected.variance > 0 else math.inf
    assumed = expected.df / max(1.0, denied)
    if assumed + df <= 0:
        return side
    variance = (assumed * expected.variance + df * shown) / (assumed + df)
    return replace(side, variance=variance / side.n, df=assumed + df, assumed=assumed)


def _mean(samples: Sequence[float]) -> Center:
    """Returns the mean with its standard error, computed without rounding errors for equal samples."""
    n, first = len(samples), samples[0]
    mean = first + math.fsum([sample - first for sample in samples]) / n
    squares = math.fsum([(sample - mean) * (sample - mean) for sample in samples])
    return Center(n, mean, squares / (n * (n - 1)), n - 1)


def _capped(ordered: Sequence[float]) -> Center:
    """Returns Huber's M-estimate of the mean ("Proposal 2", 1964), with its error (Huber 1981, section 7.6).

    For normal samples, intervals miss the true value at most 1.25 times as often as intended.
    """
    n = len(ordered)
    middle = ordered[n // 2]  # subtracted, because large numbers cost digits
    found = _huber([sample - middle for sample in ordered])
    if found is None:
        return _mean(ordered)
    mean, reach, inside = found
    share = inside / n
    correction = 1 + (1 - share) / share / n
    variance = CAPPED_VARIANCE * (correction * reach / CAP / share) ** 2 / n
    return Center(n, middle + mean, variance, max(inside - 1.0, 1.0))


def _huber(ordered: Sequence[float]) -> tuple[float, float, int] | None:
    """Returns the center, the capping distance and the number of uncapped samples; None if there is no solution.

    A sample that is farther from the center than the capping distance is capped: moved to this distance. Each guess of
    the capped samples gives a center and a distance in closed form. They are the solution if they cap these samples.
    """
    n = len(ordered)
    mean = math.fsum(ordered) / n
    reach = _reach([sample - mean for sample in ordered])
    for _ in range(_ITERATIONS):
        below, above = _beyond(ordered, mean, reach)
        solved = _solved(ordered[below : n - above], below, above)
        if solved is not None:
            if _beyond(ordered, *solved) == (below, above):
                return *solved, n - below - above
            mean, reach = solved
        capped = [min(max(sample - mean, -reach), reach) for sample in ordered]
        mean += math.fsum(capped) / n
        reach = _reach(capped)
    return None


def _reach(deviations: Sequence[float]) -> float:
    """Estimates the distance from the center at which to cap samples, from (capped) deviations from the center."""
    squares = math.fsum([deviation * deviation for deviation in deviations])
    return CAP * math.sqrt(squares / (len(deviations) - 1) / CAPPED_VARIANCE)


def _beyond(ordered: Sequence[float], mean: float, reach: float) -> tuple[int, int]:
    return bisect_left(ordered, mean - reach), len(ordered) - bisect_right(ordered, mean + reach)


def _solved(inside: Sequence[float], below: int, above: int) -> tuple[float, float] | None:
    """Computes the center and the capping distance from the uncapped samples, and how many are capped on each side.

    Samples farther from the center than this distance count as capped. Returns None if no distance fits the samples.
    """
    if not inside:
        return None
    among = math.fsum(inside) / len(inside)
    squares = math.fsum([(sample - among) ** 2 for sample in inside])
    n, skew = len(inside) + below + above, above - below
    left = (n - 1) * CAPPED_VARIANCE / CAP**2 - (below + above) - skew**2 / len(inside)
    if left <= 0 or squares == 0:
        return None
    reach = math.sqrt(squares / left)
    return among + skew * reach / len(inside), reach
