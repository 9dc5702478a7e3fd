"""The change that all tests of a suite have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_ddpperf.records.measurement import Interval, Spread
from pytest_ddpperf.stats.intervals import center, t_quantile

MIN_TESTS = 3  # fewer know next to nothing of their scatter
TELLING = 1.0  # of a logarithm: an interval that reaches further to each side tells nothing
NOTABLE = 0.01
"""The whole interval has to lie beyond it for a suite to be called slower.

Tests of one suite share the machine, and the places of both checkouts on it. What that does to one side of all of them
is in no scatter. In 24 recorded runs of 14 or 15 tests against their own commit
(benchmarks/results/against_suite*.json.gz) the common change lay between -4.6 % and +0.7 %; none is called slower.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonChange:
    """Where the relative change of a typical test lies.

    Attributes:
        tests: how many tests tell it.
        change: relative: 0.031 is +3.1 %.
        interval: where ``change`` lies.
        side_by_side: whether the tests were measured side by side with their reference; else beside stored baselines.
    """

    tests: int
    change: float
    interval: Interval
    side_by_side: bool

    @property
    def slower(self) -> bool:
        """Whether the suite as a whole takes longer for certain, by more than both sides may differ by."""
        return self.interval.low > NOTABLE


def common_change(tests: Sequence[Sequence[float]], alike: Spread | None = None) -> CommonChange | None:
    """The common change of tests: Huber's estimate over their logarithms.

    A test is one figure, the mean of its variants, for these share their rounds. The interval is Student's over the
    tests, so it holds what each of them scatters by and what the change is to each of them.

    A run deviates from an earlier one as a whole, in all of its tests alike. Their scatter says nothing of that, and no
    number of tests makes it smaller: where they were not measured side by side, the interval has it on top.

    Args:
        tests: for each test the relative change of each of its variants, above -1.
        alike: what all tests may deviate by together, on the scale of logarithms; None where they were measured side by
            side.

    Returns:
        The change; None for fewer than ``MIN_TESTS`` tests, and where they tell nothing.
    """
    if len(tests) < MIN_TESTS:
        return None
    quotients = [math.exp(math.fsum(map(math.log1p, variants)) / len(variants)) for variants in tests]
    middle, interval = center(quotients, "ratio", "both")
    if interval is None:
        return None
    half = math.log(interval.high / middle)
    if alike is not None:
        half = math.hypot(half, t_quantile(0.5 + interval.confidence / 2, alike.df) * alike.sd)
    if not half < TELLING:
        return None
    around = Interval(
        low=middle * math.exp(-half) - 1, high=middle * math.exp(half) - 1, confidence=interval.confidence
    )
    return CommonChange(tests=len(tests), change=middle - 1, interval=around, side_by_side=alike is None)
