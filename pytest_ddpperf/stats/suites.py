"""The change that all tests of a suite have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.stats.intervals import center

MIN_TESTS = 3  # fewer tests hardly show their scatter
NOTABLE = 0.01
"""A suite is called slower only if the whole interval of its change lies above this bound.

Tests of one suite share the machine and the folders of both checkouts. If a folder slows down one checkout in all
tests, the scatter does not show this. In 24 runs of 14 or 15 tests against the same commit, the common change was
between -4.6 % and +0.7 %; none of these runs is called slower.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class CommonChange:
    """The relative change of the step time that all tests of a run have in common."""

    tests: int  # number of tests
    change: float  # relative: 0.031 is +3.1 %
    interval: Interval  # confidence interval of ``change``
    slower: bool  # whether the whole interval lies above ``NOTABLE``


def change_of_suite(results: Iterable[Result]) -> CommonChange | None:
    """Returns the change of the step time that a run's tests have in common; None if it is unknown."""
    paired: dict[str, list[float]] = {}
    for result in results:
        for one in result.comparisons:
            if one.series.metric == "step_time" and one.change is not None and one.paired:
                paired.setdefault(result.test, []).append(one.change)
    return common_change([*paired.values()])


def common_change(tests: Sequence[Sequence[float]]) -> CommonChange | None:
    """Returns the relative change that all tests have in common: Huber's estimate of the mean of logarithms.

    Each test counts once, with the mean change of its variants, because variants are measured together. Returns None
    for fewer than ``MIN_TESTS`` tests, or if the scatter is unknown.
    """
    if len(tests) < MIN_TESTS:
        return None
    quotients = [math.exp(math.fsum(map(math.log1p, variants)) / len(variants)) for variants in tests]
    middle, interval = center(quotients, "ratio", robust=True)
    if interval is None:
        return None
    around = replace(interval, low=interval.low - 1, high=interval.high - 1)
    return CommonChange(tests=len(tests), change=middle - 1, interval=around, slower=around.low > NOTABLE)
