"""Where the launches of a run lie: means that a disturbed launch hardly moves."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Literal, NamedTuple

from pytest_ddpperf.stats.blocks import Expected

Outliers = Literal["high", "low", "both"]
"""At which end launches lie that something disturbed. It makes them slower; of a quotient, it does either."""

CUT = 0.25  # of samples with outliers at one end, how many of those at that end are left out of the mean
CAP = 1.2
"""In standard deviations: how far from the center a sample of those with outliers at both ends counts at most.

At 1.2 the mean of normal samples is known 7 % less well than it could be (in variance); a lower one would cost more,
and a higher one lets disturbed launches count for more.
"""

KEPT_VARIANCE = 0.55  # of normal samples: the variance of those that are left without the largest quarter
DENIED = 2.0
"""Times the expected variance, from which on what launches show counts against the expectation itself.

Of two launches that scatter as expected, one pair in six shows so much (benchmarks/intervals.py).
"""

_INSIDE = math.erf(CAP / math.sqrt(2))  # of normal samples, how many lie within the cap
CAPPED_VARIANCE = (  # of standard normal samples
    _INSIDE + CAP**2 * (1 - _INSIDE) - 2 * CAP * math.exp(-(CAP**2) / 2) / math.sqrt(2 * math.pi)
)
_ROUNDING = 1e-9
_ITERATIONS = 50  # far more than it takes


@dataclass(frozen=True, slots=True)
class Center:
    """Where one side lies."""

    n: int  # launches
    mean: float
    variance: float | None  # the squared standard error; None for a single sample of which nothing is expected
    df: float  # degrees of freedom of the variance
    assumed: float = 0.0  # how many of these come from what is expected of launches, not from the launches themselves
    # Variance of one sample, without those at the end where outliers are; None for a single one, and with both ends.
    spread: float | None = field(default=None, compare=False)


def center_of(samples: Sequence[float], outliers: Outliers | None = None) -> Center:
    """The mean of samples; with outliers at one end a trimmed mean, with outliers at both Huber's M-estimate.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("an interval needs at least one launch")
    if len(samples) == 1:
        return Center(1, samples[0], None, 0.0)
    ordered = sorted(samples)
    if outliers == "both":
        return _capped(ordered)
    side = _trimmed(ordered, CUT if outliers == "low" else 0.0, CUT if outliers == "high" else 0.0)
    return replace(side, spread=_spread(ordered, outliers))


def center_of_runs(samples: Sequence[float], sizes: Sequence[int], outliers: Outliers | None = None) -> Center:
    """The mean of the centers of several runs, which have so many samples each; of one run its center.

    Its error is that of the launches alone. All runs tell together by how much launches scatter.
    """
    if len(sizes) < 2:  # noqa: PLR2004
        return center_of(samples, outliers)
    sides = [center_of(part, outliers) for part in parted(samples, sizes)]
    # As many samples as would know a mean as well, were they of one run.
    n = round(len(sides) ** 2 / math.fsum(1 / side.n for side in sides))
    mean = math.fsum(side.mean for side in sides) / len(sides)
    known = [(side.df, side.variance * side.n, side.spread) for side in sides if side.variance is not None]
    df = math.fsum(freedom for freedom, _, _ in known)
    if not known:
        return Center(n, mean, None, 0.0)
    of_launch = math.fsum(freedom * variance for freedom, variance, _ in known) / df
    spread = math.fsum(freedom * (spread or 0.0) for freedom, _, spread in known) / df
    return Center(n, mean, of_launch / n, df, spread=spread)


def parted(samples: Sequence[float], sizes: Sequence[int]) -> list[Sequence[float]]:
    """The samples of each run."""
    ends = [*accumulate(sizes)]
    return [samples[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _spread(ordered: Sequence[float], outliers: Outliers | None) -> float:
    """The variance of one sample; where outliers are expected at one end, at most that of what is left without it."""
    n = len(ordered)
    every = _variance(ordered)
    without = max(1, int(CUT * n))
    if outliers is None or n - without < 2:  # noqa: PLR2004 - a variance is of two
        return every
    kept = ordered[: n - without] if outliers == "high" else ordered[without:]
    return min(every, _variance(kept) / KEPT_VARIANCE)


def _variance(samples: Sequence[float]) -> float:
    middle = math.fsum(samples) / len(samples)
    return math.fsum([(sample - middle) * (sample - middle) for sample in samples]) / (len(samples) - 1)


def moderated(side: Center, expected: Expected | None) -> Center:
    """The same center with an error of two parts: the launches' scatter and the expected one, by degrees of freedom.

    Few launches hardly know their own scatter: two have one degree of freedom. The expectation makes up for it, and the
    more launches there are, the less it counts (Smyth 2004). It also counts for less where launches lie apart by far
    more than expected: then they add more of their own than is known.
    """
    if expected is None or expected.df <= 0:
        return side
    shown, df = 0.0, 0.0
    if side.variance is not None:
        # Of few samples the winsorised ones overstate it, of those with outliers the plain variance does.
        shown, df = min(side.variance * side.n, math.inf if side.spread is None else side.spread), side.df
    denied = shown / expected.variance / DENIED if expected.variance > 0 else math.inf
    assumed = expected.df / max(1.0, denied)
    if assumed + df <= 0:
        return side
    variance = (assumed * expected.variance + df * shown) / (assumed + df)
    return replace(side, variance=variance / side.n, df=assumed + df, assumed=assumed)


def log_center(samples: Sequence[float], outliers: Outliers | None = None) -> tuple[float, float | None]:
    """The center of the logarithms of samples above 0, and its squared standard error: None for a single sample."""
    side = center_of([math.log(sample) for sample in samples], outliers)
    return side.mean, side.variance


def _trimmed(ordered: Sequence[float], low: float, high: float) -> Center:
    """The trimmed mean, which leaves out the shares that are cut at either end.

    Its error is that of the winsorised samples (Tukey and McLaughlin 1963; Yuen 1974), with as many degrees of freedom
    as samples are kept, less one. The share is exact for every number of samples, so that a sample may be cut in part:
    sides with different numbers would otherwise be cut differently, and differ by that.
    """
    n = len(ordered)
    cut = _cut(n, low, high)
    first, last = ordered[cut.first], ordered[cut.last]
    # Computed from one of the samples, so that equal samples have exactly their value, and no variance.
    mean = first + math.fsum([w * (sample - first) for sample, w in zip(ordered, cut.weights, strict=True)]) / cut.kept
    winsorised = [first] * cut.first + [*ordered[cut.first : cut.last + 1]] + [last] * (n - 1 - cut.last)
    middle = first + math.fsum([sample - first for sample in winsorised]) / n
    squares = math.fsum([(sample - middle) * (sample - middle) for sample in winsorised])
    freedom = cut.kept - 1
    return Center(n, mean, squares / (cut.kept * freedom), max(freedom, 1.0))


class _Cut(NamedTuple):
    """The part of ordered samples that is kept."""

    first: int  # index
    last: int
    weights: tuple[float, ...]  # how much of each sample counts
    kept: float  # samples, in fractions


@lru_cache
def _cut(n: int, low: float, high: float) -> _Cut:
    begin, end = n * low, n * (1 - high)
    weights = tuple(max(0.0, min(i + 1, end) - max(i, begin)) for i in range(n))
    inside = [i for i, weight in enumerate(weights) if weight > _ROUNDING]
    return _Cut(inside[0], inside[-1], weights, end - begin)


def _capped(ordered: Sequence[float]) -> Center:
    """Huber's M-estimate with his scale ("Proposal 2", 1964): what lies beyond ``CAP`` scales counts as if at it.

    Its error is Huber's (1981, section 7.6), with as many degrees of freedom as samples lie within the cap, less one:
    of normal samples, intervals then miss by up to a quarter more often than they should, of disturbed ones less.
    Where no sample is beyond the cap, it is the mean with Student's interval; so it is where most samples are the same,
    which leaves no scale.
    """
    n = len(ordered)
    middle = ordered[n // 2]  # numbers close to 0 lose no digits to it
    found = _huber([sample - middle for sample in ordered])
    if found is None:
        return _trimmed(ordered, 0.0, 0.0)
    mean, reach, inside = found
    share = inside / n
    correction = 1 + (1 - share) / share / n
    variance = CAPPED_VARIANCE * (correction * reach / CAP / share) ** 2 / n
    return Center(n, middle + mean, variance, max(inside - 1.0, 1.0))


def _huber(ordered: Sequence[float]) -> tuple[float, float, int] | None:
    """The center, how far from it samples count, and how many lie within that; None where there is no scale.

    Which samples are capped decides the rest in closed form, so a guess of them that comes out as it went in is the
    solution, of which there is only one. Where it does not, a step of plain iteration gives the next guess.
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
    """What the scale of capped deviations says."""
    squares = math.fsum([deviation * deviation for deviation in deviations])
    return CAP * math.sqrt(squares / (len(deviations) - 1) / CAPPED_VARIANCE)


def _beyond(ordered: Sequence[float], mean: float, reach: float) -> tuple[int, int]:
    return bisect_left(ordered, mean - reach), len(ordered) - bisect_right(ordered, mean + reach)


def _solved(inside: Sequence[float], below: int, above: int) -> tuple[float, float] | None:
    """Center and reach, if these samples lie inside and so many below and above count as if at the end of the reach.

    The capped deviations add up to 0, and their squares to what normal samples with this scale would have.
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
