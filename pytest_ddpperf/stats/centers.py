"""The center of a run's launches: the mean, or a robust mean that a disturbed launch hardly moves."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpperf.stats.blocks import Expected

CAP = 1.2
"""Distance from the center, in standard deviations, at which a robust mean caps a sample.

At 1.2 the mean of normal samples has 7 % more variance than necessary; a lower cap would cost more, and a higher one
would give disturbed launches more weight.
"""

DENIED = 2.0
"""Ratio of the variance that launches show to the expected variance, above which the expectation loses weight.

Of launches that scatter as expected, one pair in six exceeds this ratio.
"""

_INSIDE = math.erf(CAP / math.sqrt(2))  # share of normal samples within the cap
CAPPED_VARIANCE = (  # of capped standard normal samples
    _INSIDE + CAP**2 * (1 - _INSIDE) - 2 * CAP * math.exp(-(CAP**2) / 2) / math.sqrt(2 * math.pi)
)
_ITERATIONS = 50  # far more than convergence takes


@dataclass(frozen=True, slots=True)
class Center:
    """The mean of one side's samples, with its error."""

    n: int  # launches
    mean: float
    variance: float | None  # the squared standard error; None for a single sample without an expected scatter
    df: float  # degrees of freedom of the variance
    assumed: float = 0.0  # how many of these degrees come from the expected scatter, not from the launches themselves


def center_of(samples: Sequence[float], *, robust: bool = False) -> Center:
    """Returns the mean of samples; a robust one is Huber's M-estimate, which outliers at either end hardly move.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("an interval needs at least one launch")
    if len(samples) == 1:
        return Center(1, samples[0], None, 0.0)
    return _capped(sorted(samples)) if robust else _mean(samples)


def moderated(side: Center, expected: Expected | None) -> Center:
    """Returns the center with an error from the launches' scatter and the expected one, by their degrees of freedom.

    Few launches hardly know their own scatter: two have one degree of freedom. The expectation fills this gap, and the
    more launches there are, the less weight it has (Smyth 2004). The expectation also has less weight if launches lie
    apart by far more than expected.
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
    """Returns the mean with Student's error; sums start at the first sample, so that equal samples keep their value."""
    n, first = len(samples), samples[0]
    mean = first + math.fsum([sample - first for sample in samples]) / n
    squares = math.fsum([(sample - mean) * (sample - mean) for sample in samples])
    return Center(n, mean, squares / (n * (n - 1)), n - 1)


def _capped(ordered: Sequence[float]) -> Center:
    """Returns Huber's M-estimate with his scale ("Proposal 2", 1964), which caps samples beyond ``CAP`` scales.

    The error is Huber's (1981, section 7.6); its degrees of freedom are the number of samples within the cap, less one.
    Intervals then miss the true value up to a quarter more often than they should for normal samples, and less often
    for disturbed ones. If no sample is beyond the cap, or most samples are equal and leave no scale, the result is the
    mean with Student's interval.
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
    """Returns the center, the distance at which samples are capped, and how many lie within; None without a scale.

    The set of capped samples decides the rest in closed form. If a guess of this set leads to the same set again, it
    is the only solution. Otherwise a step of plain iteration gives the next guess.
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
    """Returns the distance at which samples with these capped deviations are capped: ``CAP`` scales."""
    squares = math.fsum([deviation * deviation for deviation in deviations])
    return CAP * math.sqrt(squares / (len(deviations) - 1) / CAPPED_VARIANCE)


def _beyond(ordered: Sequence[float], mean: float, reach: float) -> tuple[int, int]:
    return bisect_left(ordered, mean - reach), len(ordered) - bisect_right(ordered, mean + reach)


def _solved(inside: Sequence[float], below: int, above: int) -> tuple[float, float] | None:
    """Solves for center and reach, if these samples lie inside and ``below`` and ``above`` others are capped.

    The capped deviations add up to 0, their squares to the sum of normal samples with this scale; None if impossible.
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
