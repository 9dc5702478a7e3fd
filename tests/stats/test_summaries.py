from __future__ import annotations

from itertools import accumulate

import pytest

from pytest_ddpperf.records.launch import LongSteps
from pytest_ddpperf.stats.summaries import growth_per_step, least, long_steps, median_step, quantile, step_summary


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        (0, 1.0),
        (0.25, 1.75),  # position 0.25 * 3 = 0.75: three quarters of the way from 1 to 2
        (0.5, 3.0),  # half of the way from 2 to 4
        (0.9, 6.8),  # position 2.7: 4 + 0.7 * 4
        (1, 8.0),
    ],
)
def test_a_quantile_lies_between_its_neighbours(q: float, expected: float) -> None:
    assert quantile([8.0, 1.0, 4.0, 2.0], q) == pytest.approx(expected)


def test_every_quantile_of_one_value_is_that_value() -> None:
    assert {quantile([3.0], q) for q in (0, 0.3, 1)} == {3.0}


@pytest.mark.parametrize(("values", "q"), [([], 0.5), ([1.0], -0.1), ([1.0], 1.1)])
def test_a_quantile_of_nothing_or_beyond_the_ends_is_refused(values: list[float], q: float) -> None:
    with pytest.raises(ValueError, match="quantile"):
        quantile(values, q)


def test_the_median_step_is_the_middle_one_or_between_two() -> None:
    assert median_step([9.0, 1.0, 2.0]) == 2.0
    assert median_step([9.0, 1.0, 2.0, 4.0]) == 3.0


def with_long(*places: int, steps: int = 20, long: float = 11.0) -> list[float]:
    """The seconds of so many steps: one each, but at these places, counted from 0."""
    return [long if place in places else 1.0 for place in range(steps)]


def test_long_steps_are_counted_and_measured_by_the_median_step_of_their_launch() -> None:
    """Three of 11 s among twenty, the rest takes 17 s: 33 of 50 s; they are 5 steps apart, and 10."""
    assert long_steps([with_long(2, 7, 17)]) == LongSteps(number=3, steps=20, factor=11.0, share=0.66, period=None)
    slow = [2 * time for time in with_long(9, 19)]
    found = long_steps([with_long(4), slow])  # 11 s and two of 22 s, of 30 s and 80 s
    assert (found.number, found.steps, found.factor) == (3, 40, 11.0)
    assert found.share == pytest.approx(55 / (30 + 80))


@pytest.mark.parametrize(("blip", "number"), [(2.5, 2), (4.8, 2), (5.5, 3), (11.0, 3)])
def test_short_pauses_beside_long_ones_do_not_count(blip: float, number: int) -> None:
    """Two of 11 s and one of 2.5: the mean second is in one of 248.25 / 24.5 s, half of which is 5.07; of 5.5 4.95."""
    times = with_long(2, 12)
    times[7] = blip
    found = long_steps([times])
    assert found.number == number
    seconds = 22 + blip * (number - 2)
    assert (found.factor, found.share) == pytest.approx((seconds / number, seconds / (22 + blip + 17)))


def test_no_step_is_long_that_takes_twice_the_median() -> None:
    nothing = LongSteps(number=0, steps=20, factor=0.0, share=0.0, period=None)
    assert long_steps([with_long(9, 19, long=2.0)]) == nothing
    assert long_steps([[0.0] * 20]) == nothing  # a clock that stands still
    assert long_steps([with_long(9, 19, long=2.01)]).number == 2


@pytest.mark.parametrize(
    ("launches", "period"),
    [
        pytest.param([with_long(0, 5, 10, 15)], 5, id="each fifth"),
        pytest.param([with_long(9, 19), with_long(2, 12)], 10, id="of two launches, which begin at other places"),
        pytest.param([with_long(9, 19)], None, id="one distance is no period"),
        pytest.param([with_long(8, 9, 10, 11)], None, id="long steps in a row are no period"),
        pytest.param([with_long(2), with_long(12), with_long(7)], None, id="nor is there one between launches"),
        pytest.param([with_long(1, 4, 7, 10, 19)], 3, id="three of four distances"),
        pytest.param([with_long(1, 4, 7, 19)], None, id="two of three"),
        pytest.param([with_long(2, 5, 14)], None, id="irregular"),
    ],
)
def test_long_steps_have_a_period_if_three_quarters_of_their_distances_agree(
    launches: list[list[float]], period: int | None
) -> None:
    assert long_steps(launches).period == period


@pytest.mark.parametrize(
    ("blocks", "sizes", "expected"),
    [
        ([2.0, 1.0, 9.0], [1, 1, 1], 1.0),  # one step of three
        ([2.0, 1.0, 9.0], [2, 2, 2], 1.0),
        ([2.0, 1.0, 9.0, 9.0], [1, 1, 1, 1], 1.25),  # 4 / 3 steps: (1 + 2 / 3) / (4 / 3)
        ([2.0, 1.0, 9.0], [4, 1, 4], 5 / 3),  # three steps: (1 + 2 * 2) / 3
        ([3.0], [7], 3.0),
    ],
)
def test_the_least_blocks_have_a_third_of_the_steps(blocks: list[float], sizes: list[int], expected: float) -> None:
    assert least(blocks, sizes) == pytest.approx(expected)


@pytest.mark.parametrize(("blocks", "sizes", "told"), [([], [], "at least one block"), ([1.0], [1, 2], "zip")])
def test_no_blocks_or_sizes_of_others_are_refused(blocks: list[float], sizes: list[int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        least(blocks, sizes)


def test_the_summary_of_steps_holds_quantiles_and_mean() -> None:
    # Positions in the five sorted values: p25 at 1, p50 at 2, p75 at 3, p90 at 3.6 (4 + 0.6 * 6).
    expected = {"min": 1.0, "p25": 2.0, "p50": 3.0, "p75": 4.0, "p90": 7.6, "max": 10.0, "mean": 4.0}

    assert step_summary([3.0, 1.0, 2.0, 10.0, 4.0]) == pytest.approx(expected)


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
