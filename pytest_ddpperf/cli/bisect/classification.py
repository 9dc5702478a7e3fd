"""Whether a commit is like the good end or like the bad end, and the probability that the answer is wrong. Pure.

Both the commit and the bad end were compared with the good end, side by side. A commit that lies beyond the middle of
the two ends is like the bad one. The error is the probability that a commit like the other end shows what was
measured, or more, by Student's t distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pytest_ddpperf.cli.bisect.commits import Answer
from pytest_ddpperf.judge.detection import PAIRED_LOOKS
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import t_quantile


@dataclass(frozen=True)
class ShiftEstimate:
    """How much worse a commit is than the good end."""

    worsening: float  # on the scale of analysis: logarithms for ratios; above 0 for the worse
    standard_error: float = 0.0  # 0 for counts
    df: float = math.inf  # degrees of freedom of the standard error

    @property
    def error(self) -> float:
        """How likely no shift at all shows as this one or a larger one, at any of the looks at a benchmark."""
        if self.standard_error == 0:
            return 0.0 if self.worsening > 0 else 1.0
        from scipy.special import stdtr

        return min(1.0, PAIRED_LOOKS * float(stdtr(self.df, -self.worsening / self.standard_error)))


@dataclass(frozen=True)
class Classification:
    """Which end a commit is like."""

    answer: Answer  # "skipped" where no end can be named
    error: float = 0.0  # the probability that the commit is like the other end
    text: str = ""  # what was measured, or why nothing was


def shift_of(comparison: Comparison) -> ShiftEstimate | None:
    """The shift in a comparison with the good end; None where it tells no shift, or nothing of its error."""
    change, interval = comparison.change, comparison.change_interval
    sign = 1.0 if comparison.series.better == "lower" else -1.0
    if change is None:
        return None
    if comparison.series.scale == "exact":
        # A count may be worse while its total is not: it counts as worse by one.
        return ShiftEstimate(1.0 if comparison.verdict is Verdict.REGRESSED and sign * change <= 0 else sign * change)
    if interval is None:
        return None
    low, high = interval.low, interval.high
    if comparison.series.scale == "ratio" and low > -1:
        change, low, high = math.log1p(change), math.log1p(low), math.log1p(high)
    standard_error = (high - low) / 2 / t_quantile(0.5 + interval.confidence / 2, comparison.df)
    return ShiftEstimate(sign * change, standard_error, comparison.df)


def classify(commit: ShiftEstimate, bad: ShiftEstimate) -> Classification:
    """The end that a commit is like, where the bad end has a shift above 0."""
    if 2 * commit.worsening >= bad.worsening:
        return Classification("bad", commit.error)
    standard_error = math.hypot(commit.standard_error, bad.standard_error)
    # The smaller number of degrees of freedom is the safe one (Hsu 1938); a count has no error to know.
    df = min((shift.df for shift in (commit, bad) if shift.standard_error > 0), default=math.inf)
    return Classification("good", ShiftEstimate(bad.worsening - commit.worsening, standard_error, df).error)


def middle_tolerance(bad: ShiftEstimate, comparison: Comparison) -> float:
    """The value of ``tolerance`` in the middle of both ends, from the comparison of the bad end and its shift."""
    half = bad.worsening / 2
    if comparison.series.scale == "ratio":
        return math.expm1(half)
    size = abs(comparison.baseline or 0.0)
    return half / (size or 1.0) if comparison.series.unit == "B" else half / max(1.0, size)
