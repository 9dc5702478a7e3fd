"""Where the launches of a run lie: means, or trimmed ones that a disturbed launch hardly moves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Trim = Literal["high", "low", "both"]
# The shares that are cut off at the lower and at the upper end.
CUTS: dict[Trim | None, tuple[float, float]] = {
    None: (0.0, 0.0),
    "high": (0.0, 0.25),
    "low": (0.25, 0.0),
    "both": (0.1, 0.1),
}
_ROUNDING = 1e-9
_FEWEST_TO_CUT = 5  # at both ends, which leaves four; a cut at one end alone would shift few samples against many


@dataclass(frozen=True)
class Center:
    """Where one side lies: ``variance`` is the squared standard error, None for a single sample; ``df`` its freedom."""

    n: int
    mean: float
    variance: float | None
    df: float


def center_of(samples: Sequence[float], trim: Trim | None) -> Center:
    """The mean, or a trimmed mean: samples of the share that is cut count no further than the next ones.

    What disturbs a launch makes it worse, sometimes by much. A trimmed mean follows the launches that were left alone.
    Its error is that of the winsorised samples (Tukey and McLaughlin 1963; Yuen 1974), with as many degrees of freedom
    as samples are kept, less one. The share is exact for every number of samples, so that a sample may be cut in part:
    sides with different numbers would otherwise be cut differently, and differ by that.
    """
    if not samples:
        raise ValueError("an interval needs at least one launch")
    n = len(samples)
    if n == 1:
        return Center(n, samples[0], None, 0.0)
    cut = _cut(n, trim)
    ordered = sorted(samples)
    first, last = ordered[cut.first], ordered[cut.last]
    # Computed from one of the samples, so that equal samples have exactly their value, and no variance.
    mean = first + math.fsum([w * (sample - first) for sample, w in zip(ordered, cut.weights, strict=True)]) / cut.kept
    winsorised = [first] * cut.first + ordered[cut.first : cut.last + 1] + [last] * (n - 1 - cut.last)
    middle = first + math.fsum([one - first for one in winsorised]) / n
    squares = math.fsum([(one - middle) * (one - middle) for one in winsorised])
    freedom = cut.kept - 1
    return Center(n, mean, squares / (cut.kept * freedom), max(freedom, 1.0))


@dataclass(frozen=True)
class _Cut:
    """What is kept of ordered samples: the numbers of the first and last one inside, and how much of each counts."""

    first: int
    last: int
    weights: tuple[float, ...]
    kept: float  # samples, in fractions


@lru_cache
def _cut(n: int, trim: Trim | None) -> _Cut:
    low, high = CUTS[None if trim == "both" and n < _FEWEST_TO_CUT else trim]
    begin, end = n * low, n * (1 - high)
    weights = tuple(max(0.0, min(i + 1, end) - max(i, begin)) for i in range(n))
    inside = [i for i, weight in enumerate(weights) if weight > _ROUNDING]
    return _Cut(inside[0], inside[-1], weights, end - begin)


def log_center(samples: Sequence[float], trim: Trim | None = None) -> tuple[float, float | None]:
    """The center of the logarithms of samples above 0, and its squared standard error: None for a single sample."""
    side = center_of([math.log(sample) for sample in samples], trim)
    return side.mean, side.variance
