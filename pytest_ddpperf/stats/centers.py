"""Where the launches of a run lie: their mean, or a mean that a disturbed launch hardly moves."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpperf.stats.blocks import Expected

CAP = 1.2
"""In standard deviations: how far from the center a sample of a robust mean counts at most.

At 1.2 the mean of normal samples is known 7 % less well than it could be (in variance); a lower one would cost more,
and a higher one lets disturbed launches count for more.
"""

DENIED = 2.0
"""Times the expected variance, from which on what launches show counts against the expectation itself.

Of two launches that scatter as expected, one pair in six shows so much.
"""

_INSIDE = math.erf(CAP / math.sqrt(2))  # of normal samples, how many lie within the cap
CAPPED_VARIANCE = (  # of standard normal samples
    _INSIDE + CAP**2 * (1 - _INSIDE) - 2 * CAP * math.exp(-(CAP**2) / 2) / math.sqrt(2 * math.pi)
)
_ITERATIONS = 50  # far more than it takes


@dataclass(frozen=True, slots=True)
class Center:
    """Where one side lies."""

    n: int  # launches
    mean: float
    variance: float | None  # the squared standard error; None for a single sample of which nothing is expected
    df: float  # degrees of freedom of the variance
    assumed: float = 0.0  # how many of these come from what is expected of launches, not from the launches themselves


def center_of(samples: Sequence[float], *, robust: bool = False) -> Center:
    """The mean of samples; a robust one is Huber's M-estimate, which outliers at either end hardly move.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("an interval needs at least one launch")
    if len(samples) == 1:
        return Center(1, samples[0], None, 0.0)
    return _capped(sorted(samples)) if robust else _mean(samples)


def moderated(side: Center, expected: Expected | None) -> Center:
    """The same center with an error of two parts: the launches' scatter and the expected one, by degrees of freedom.

    Few launches hardly know their own scatter: two have one degree of freedom. The expectation makes up for it, and the
    more launches there are, the less it counts (Smyth 2004). It also counts for less if launches lie apart by far more
    than expected: then they add more of their own than is known.
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
    """The mean with Student's error; computed from the first sample, so that equal ones have exactly their value."""
    n, first = len(samples), samples[0]
    mean = first + math.fsum([sample - first for sample in samples]) / n
    squares = math.fsum([(sample - mean) * (sample - mean) for sample in samples])
    return Center(n, mean, squares / (n * (n - 1)), n - 1)


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
        return _mean(ordered)
    mean, reach, inside = found
    share = inside / n
    correction = 1 + (1 - share) / share / n
    variance = CAPPED_VARIANCE * (correction * reach / CAP / share) ** 2 / n
    return Center(n, middle + mean, variance, max(inside - 1.0, 1.0))


def _huber(ordered: Sequence[float]) -> tuple[float, float, int] | None:
    """The center, how far from it samples count, and how many lie within that; None if there is no scale.

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
    """Returns what the scale of capped deviations says."""
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
