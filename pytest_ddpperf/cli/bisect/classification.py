"""Whether a commit is like the good end or like the bad one, and how likely that is wrong. Pure.

Both the commit and the bad end were held against the good end, side by side. What lies beyond the middle of the two is
like the bad end. The error is that of the other answer: how likely a commit that is like the other end would show what
was measured, or more, by Student's t distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from pytest_ddpperf.judge.detection import LOOKS_IN_ROUNDS
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import t_quantile


@dataclass(frozen=True)
class Shift:
    """How much worse a commit is than the good end.

    Attributes:
        worsening: on the scale of analysis: logarithms for ratios; above 0 for the worse.
        standard_error: of it; 0 for counts.
        df: its degrees of freedom.
    """

    worsening: float
    standard_error: float
    df: float


@dataclass(frozen=True)
class Likeness:
    """Which end a commit is like, and the probability that it is like the other one after all."""

    answer: Literal["good", "bad"]
    error: float


def shift_of(comparison: Comparison) -> Shift | None:
    """The shift that a comparison with the good end tells; None where it tells none, or nothing of its error."""
    change, interval = comparison.change, comparison.change_interval
    sign = 1.0 if comparison.series.better == "lower" else -1.0
    if change is None:
        return None
    if comparison.series.scale == "exact":
        return Shift(_count_shift(comparison, sign * change), 0.0, math.inf)
    if interval is None:
        return None
    low, high = interval.low, interval.high
    if comparison.series.scale == "ratio" and low > -1:
        change, low, high = math.log1p(change), math.log1p(low), math.log1p(high)
    error = (high - low) / 2 / t_quantile(0.5 + interval.confidence / 2, comparison.df)
    return Shift(sign * change, error, comparison.df)


def _count_shift(comparison: Comparison, worsening: float) -> float:
    """That of the total; of a count that is worse though its total is not, one."""
    return 1.0 if comparison.verdict is Verdict.REGRESSED and worsening <= 0 else worsening


def likeness(commit: Shift, bad: Shift) -> Likeness:
    """Which end a commit is like.

    Args:
        commit: against the good end.
        bad: the bad end against the good end; above 0.
    """
    if 2 * commit.worsening >= bad.worsening:
        return Likeness("bad", error(commit))
    missing = bad.worsening - commit.worsening
    both = math.hypot(commit.standard_error, bad.standard_error)
    # The freedom of the one that is known less, as everywhere (Hsu 1938); a count has no error to know.
    freedom = min((one.df for one in (commit, bad) if one.standard_error > 0), default=math.inf)
    return Likeness("good", error(Shift(missing, both, freedom)))


def error(shift: Shift) -> float:
    """How likely no shift at all would show as this one or a larger one, at any of the looks at a benchmark."""
    if shift.standard_error == 0:
        return 0.0 if shift.worsening > 0 else 1.0
    from scipy.special import stdtr

    return min(1.0, LOOKS_IN_ROUNDS * float(stdtr(shift.df, -shift.worsening / shift.standard_error)))


def middle(bad: Shift, comparison: Comparison) -> float:
    """The tolerance that lies in the middle of both ends, as the setting of that name has it.

    Args:
        bad: the bad end against the good end.
        comparison: which that was told by.
    """
    half = bad.worsening / 2
    if comparison.series.scale == "ratio":
        return math.expm1(half)
    size = abs(comparison.baseline or 0.0)
    return half / (size or 1.0) if comparison.series.unit == "B" else half / max(1.0, size)
