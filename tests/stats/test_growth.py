from __future__ import annotations

from itertools import accumulate

import pytest

from pytest_ddpperf.stats.growth import growth_per_step


def after(*increases: int) -> list[int]:
    """The readings that these increases make, from 1000 on."""
    return list(accumulate(increases, initial=1000))


def test_what_each_step_leaves_behind_is_the_slope() -> None:
    assert growth_per_step(after(*[7] * 10)) == 7


def test_without_growth_there_is_none() -> None:
    assert growth_per_step(after(*[0] * 5)) == 0


def test_two_jumps_in_ten_steps_are_no_growth() -> None:
    """Ten increases: the two largest and the two smallest are left out, six of 3 remain."""
    assert growth_per_step(after(3, 3, 5000, 3, 3, 3, 9000, 3, 3, 3)) == 3


def test_a_cache_that_has_filled_up_is_no_leak() -> None:
    assert growth_per_step(after(800, 800, 0, 0, 0, 0, 0, 0, 0, 0)) == 0


def test_what_comes_and_goes_is_no_growth() -> None:
    """2 stay in each step, and 900 are there after every second one and the last two.

    The lasting increases are 4, 0, 4, 0, 4, 0, 4, 0, 902, 2: without two at either end 0, 0, 2, 4, 4, 4 are left.
    """
    comes = [0, 900, 0, 900, 0, 900, 0, 900, 0, 900, 900]
    readings = [1000 + 2 * step + extra for step, extra in enumerate(comes)]
    assert growth_per_step(readings) == pytest.approx(14 / 6)


def test_a_leak_in_every_third_step_is_seen() -> None:
    """0, 0, 60, 0, 0, 60, 0, 0, 60, 0 without two of the zeros and two of the sixties: 60 in six steps."""
    assert growth_per_step(after(0, 0, 60, 0, 0, 60, 0, 0, 60, 0)) == 10


def test_memory_that_shrinks_shows_no_growth() -> None:
    assert growth_per_step([9, 8, 7, 6, 5, 4]) == 0


def test_few_steps_are_left_with_the_middle_one() -> None:
    assert growth_per_step(after(0, 10, 12, 30, 400)) == 12
    assert growth_per_step(after(5, 9)) == 7


def test_a_single_reading_has_no_slope() -> None:
    with pytest.raises(ValueError, match="at least two"):
        growth_per_step([1])
