from __future__ import annotations

from itertools import accumulate

import pytest

from pytest_ddpperf.stats.summaries import (
    LONGEST,
    growth_per_step,
    least,
    quantile,
    step_summary,
    tail,
    typical,
    typical_of_blocks,
    usual_steps,
)


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


def test_the_typical_step_does_not_see_disturbed_steps() -> None:
    """Of eight steps the six fastest count, whose mean is 10.25."""
    calm = [10.0, 10.1, 10.2, 10.3, 10.4, 10.5, 10.6, 10.7]

    assert typical(calm) == typical([40.0, *calm[:6], 90.0]) == pytest.approx(10.25)


@pytest.mark.parametrize(("steps", "expected"), [(1, [0]), (2, [1]), (3, [2, 1]), (5, [4, 3, 2, 1]), (6, [5, 4, 3, 2])])
def test_three_quarters_of_the_steps_are_usual(steps: int, expected: list[int]) -> None:
    """Rounded, a half down: of the two steps only one, of six 4.5. Each step is faster than the one before it."""
    assert usual_steps([float(-number) for number in range(steps)]) == expected


def test_the_slowest_quarter_of_blocks_rounded_down_is_left_out() -> None:
    """Of blocks of 2, 1, 1 and 1 steps: 8 s for 2 are 4 s a step, the slowest; of three blocks none is left out."""
    blocks = [(8.0, 2), (1.0, 1), (2.0, 1), (3.0, 1)]
    assert typical_of_blocks(blocks) == 2.0
    assert typical_of_blocks(blocks[:3]) == 11 / 4


def test_no_steps_have_no_typical_one() -> None:
    with pytest.raises(ValueError, match="at least one step"):
        typical([])


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


def test_the_tail_is_the_mean_step_over_the_typical_one() -> None:
    """A pause of half a step in one of ten: 1.05. However long it is, it counts for one step: (9 + 2) / 10."""
    assert tail([1.0] * 9 + [1.5]) == pytest.approx(1.05)
    assert LONGEST == 2.0
    assert tail([1.0] * 9 + [70.0]) == pytest.approx(1.1)
    assert tail([3.0] * 5) == 1.0
    assert tail([0.0] * 5) == 1.0  # a clock that stands still


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
