"""The change that all tests of a suite have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.stats.intervals import center

MIN_TESTS = 3  # fewer know next to nothing of their scatter
NOTABLE = 0.01
"""The whole interval has to lie beyond it for a suite to be called slower.

Tests of one suite share the machine, and the places of both checkouts on it. What that does to one side of all of them
is in no scatter. In 24 runs of 14 or 15 tests against their own commit the common change lay between -4.6 % and +0.7 %;
none is called slower.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonChange:
    """Where the relative change that tests have in common lies.

    Attributes:
        tests: how many tests tell it.
        change: relative: 0.031 is +3.1 %.
        interval: where ``change`` lies.
        slower: whether the suite as a whole takes longer for certain, by more than both sides may differ by.
    """

    tests: int
    change: float
    interval: Interval
    slower: bool


def change_of_suite(results: Iterable[Result]) -> CommonChange | None:
    """The change of the step time that the tests measured side by side have in common."""
    paired: dict[str, list[float]] = {}
    for result in results:
        for one in result.comparisons:
            if one.series.metric == "step_time" and one.change is not None and one.paired:
                paired.setdefault(result.test, []).append(one.change)
    return common_change([*paired.values()])


def common_change(tests: Sequence[Sequence[float]]) -> CommonChange | None:
    """The common change of tests that were measured side by side: Huber's estimate over their logarithms.

    A test is one figure, the mean of its variants, for these share their rounds. The interval is Student's over the
    tests, so it holds what each of them scatters by and what the change is to each of them.

    Args:
        tests: for each test the relative change of each of its variants, above -1.

    Returns:
        The change; None for fewer than ``MIN_TESTS`` tests, and if they tell nothing.
    """
    if len(tests) < MIN_TESTS:
        return None
    quotients = [math.exp(math.fsum(map(math.log1p, variants)) / len(variants)) for variants in tests]
    middle, interval = center(quotients, "ratio", robust=True)
    if interval is None:
        return None
    around = replace(interval, low=interval.low - 1, high=interval.high - 1)
    return CommonChange(tests=len(tests), change=middle - 1, interval=around, slower=around.low > NOTABLE)
