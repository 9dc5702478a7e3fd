"""Binomial intervals, by hand where the beta distribution has a closed form."""

from __future__ import annotations

import math

import pytest

from pytest_ddpperf.stats.rates import Rate, clopper_pearson


def test_the_interval_of_none_and_of_all() -> None:
    """None of 10: the rate whose chance of none is 2.5 %, (1 - p)^10 = 0.025."""
    none, every = clopper_pearson(0, 10), clopper_pearson(10, 10)
    assert (none.low, every.high) == (0, 1)
    assert none.high == pytest.approx(1 - 0.025**0.1)
    assert every.low == pytest.approx(0.025**0.1)


def test_the_interval_of_one_of_two() -> None:
    """Low end: 1 - (1 - p)^2 = 0.025; the high end mirrors it."""
    interval = clopper_pearson(1, 2)
    assert interval.low == pytest.approx(1 - math.sqrt(0.975))
    assert interval.high == pytest.approx(math.sqrt(0.975))


def test_comparisons_that_share_launches_count_as_the_independent_ones() -> None:
    rate = Rate(found=200, of=400, independent=2)
    assert rate.value == 0.5
    assert rate.interval == clopper_pearson(1, 2)


def test_there_are_no_more_independent_comparisons_than_comparisons() -> None:
    assert Rate(0, 10, 1000).interval == clopper_pearson(0, 10)
    assert Rate(0, 10, 0).interval == clopper_pearson(0, 1)
