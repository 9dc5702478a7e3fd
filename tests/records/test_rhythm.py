"""What the values of consecutive steps tell of all steps; each case is worked by hand."""

from __future__ import annotations

import math

import pytest

from pytest_ddpperf.records.rhythm import Rhythm, components_of, period_of, rhythm_of, rhythm_of_all, rhythm_text


def every(period: int, number: int = 24, *, first: int = 0, usual: float = 1.0, more: float = 1.0) -> tuple[float, ...]:
    """Steps of which each ``period``-th one does more, from the place ``first`` on."""
    return tuple(usual + more * (place >= first and (place - first) % period == 0) for place in range(number))


@pytest.mark.parametrize(
    ("steps", "period"),
    [
        ((1.0, 1.0, 1.0), 1),
        (every(12), 12),
        (every(5, first=3), 5),
        (every(13), 0),  # 24 steps are not twice 13
        ((1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 1.0), 3),
        ((1.0, 2.0), 0),
        ((1.0,), 0),
    ],
)
def test_a_period_has_to_be_seen_twice(steps: tuple[float, ...], period: int) -> None:
    assert period_of(steps) == period


@pytest.mark.parametrize("first", range(5))
def test_the_phase_of_a_period_changes_nothing(first: int) -> None:
    """Of 24 steps 4 or 5 do more, and each 5th one does: 1.2 is what 5 steps have."""
    assert rhythm_of(every(5, first=first)) == Rhythm(1.2, 1.2, 1.2)


def test_periods_inside_of_one_another_have_the_mean_of_the_longest() -> None:
    """1 more in each 5th step, 7 more in each 10th: of 10 steps 8 have 0, one has 1, one has 8."""
    steps = tuple(a + b for a, b in zip(every(5, 20, usual=0.0), every(10, 20, usual=0.0, more=7.0), strict=True))
    assert rhythm_of(steps).mean == 0.9


@pytest.mark.parametrize(("first", "times"), [(0, 2), (5, 2), (11, 1), (12, 1)])
def test_a_period_seen_less_than_twice_is_uncertain_by_one_occurrence(first: int, times: int) -> None:
    """Each 13th of 24 steps: 24 / 13 is 1.8, so it comes once or twice, and both leave 1.8 of 24 possible."""
    found = rhythm_of(every(13, first=first))
    assert found.mean == pytest.approx(1 + times / 24)
    assert (found.low, found.high) == pytest.approx((1 + (times - 1) / 24, 1 + (times + 1) / 24))
    assert found.low < 1 + 1 / 13 < found.high


def test_irregular_occurrences_count_as_random() -> None:
    """9 of 24 steps: a standard error is sqrt(9/24 x 15/24 / 24)."""
    at = {0, 1, 4, 6, 11, 12, 15, 20, 21}
    found = rhythm_of([float(place in at) for place in range(24)])
    error = math.sqrt(9 * 15 / 24**3)
    assert (found.mean, found.low, found.high) == pytest.approx((0.375, 0.375 - 2.58 * error, 0.375 + 2.58 * error))
    assert not found.irregular


def test_of_steps_with_many_values_only_the_least_and_the_most_are_known() -> None:
    assert rhythm_of((3.0, 1.0, 2.0, 6.0)) == Rhythm(3.0, 1.0, 6.0, irregular=True)


def test_parts_that_vary_in_the_same_steps_are_one_component() -> None:
    parts = [(1.0, 1.0, 1.0), (1.0, 2.0, 1.0), (0.0, 0.0, 5.0), (3.0, 7.0, 3.0)]
    assert components_of(parts) == ((4.0, 9.0, 4.0), (0.0, 0.0, 5.0))
    assert components_of([(2.0, 2.0)]) == ()


@pytest.mark.parametrize("first", range(3))
def test_a_periodic_component_is_the_same_whatever_its_phase(first: int) -> None:
    assert components_of([every(3, first=first)]) == ((2.0, 1.0, 1.0, 2.0, 1.0, 1.0),)


def test_a_sum_of_two_rhythms_is_known_as_well_as_both() -> None:
    """1 more in each 5th of 24 steps is exact; 7 more in each 13th came once, which 0 and 2 of 24 would too."""
    found = rhythm_of_all((every(5, usual=0.0), every(13, first=12, usual=0.0, more=7.0)))
    assert found == pytest.approx((0.2 + 7 / 24, 0.2, 0.2 + 14 / 24, False))
    assert rhythm_of_all(()) == Rhythm(0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (every(10), "more in 1 of 10 steps"),
        (every(13, first=3), "more in 2 of 24 steps"),
        ((2.0, 1.0, 2.0, 2.0, 1.0, 2.0), "less in 1 of 3 steps"),
        ((1.0, 2.0, 1.0, 2.0), "more in 1 of 2 steps"),
        ((1.0, 2.0, 3.0, 1.0, 2.0, 3.0), "the same again after 3 steps"),
        ((1.0, 2.0, 3.0), "from 1 to 3"),
    ],
)
def test_a_period_is_described_in_words(steps: tuple[float, ...], words: str) -> None:
    assert rhythm_text(steps) == words
