"""The change that tests have in common: Student's and Huber's by hand, one figure a test."""

from __future__ import annotations

import math

import pytest

from pytest_ddpperf.stats.intervals import MIN_TESTS, common_change
from tests.factories import known

T_OF_2 = 4.302652729911275  # the 97.5 % quantile of Student's t with 2 degrees of freedom


def relative(*logarithms: float) -> list[float]:
    return [math.expm1(shift) for shift in logarithms]


def test_three_tests_have_the_mean_of_their_logarithms_and_students_interval() -> None:
    found = known(common_change([relative(shift) for shift in (0.01, 0.02, 0.03)]))
    half = T_OF_2 * 0.01 / math.sqrt(3)
    assert found.tests == 3
    assert found.change == pytest.approx(math.expm1(0.02), rel=1e-9)
    assert found.interval.low == pytest.approx(math.expm1(0.02 - half), rel=1e-9)
    assert found.interval.high == pytest.approx(math.expm1(0.02 + half), rel=1e-9)
    assert found.interval.confidence == 0.95


def test_a_test_of_many_variants_is_one_figure() -> None:
    single = [relative(0.01), relative(0.02)]
    of_many = known(common_change([*single, relative(*(0.25 + 0.01 * number for number in range(11)))]))
    of_one = known(common_change([*single, relative(0.3)]))
    assert of_many.change == pytest.approx(of_one.change)
    assert of_many.interval.high == pytest.approx(of_one.interval.high)


def test_fewer_than_three_tests_have_no_common_change() -> None:
    assert common_change([relative(0.01)] * (MIN_TESTS - 1)) is None
    assert common_change([]) is None


def test_one_test_that_takes_twice_as_long_does_not_make_a_suite_slower() -> None:
    shifts = [0.001 * number for number in (-4, -3, -2, -1, 0, 1, 2, 3, 4)]
    found = known(common_change([relative(shift) for shift in (*shifts, math.log(2))]))
    assert abs(found.change) < 0.01
    assert not found.slower


@pytest.mark.parametrize(("shift", "slower"), [(0.0, False), (0.012, False), (0.025, True), (-0.05, False)])
def test_a_suite_is_slower_if_its_whole_interval_lies_beyond_one_percent(shift: float, *, slower: bool) -> None:
    """Nine tests that scatter by 1 % to either side know the common change to 0.8 %."""
    scatter = (-0.015, -0.01, -0.01, -0.005, 0.0, 0.005, 0.01, 0.01, 0.015)
    found = known(common_change([relative(shift + own) for own in scatter]))
    assert found.interval.high - found.interval.low == pytest.approx(0.016, abs=0.002)
    assert found.slower is slower
