"""Where launches lie, with numbers worked by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple
from itertools import accumulate
from statistics import fmean, stdev

import numpy as np
import pytest

from pytest_ddpperf.records.launch import LongSteps
from pytest_ddpperf.stats.intervals import Change, interval_at, paired, t_quantile
from pytest_ddpperf.stats.launches import (
    CAP,
    CAPPED_VARIANCE,
    CERTAINTY,
    DENIED,
    OWN_IN_TURNS,
    Center,
    Expected,
    center_of,
    cheapest_mean,
    even_sizes,
    expected,
    growth_per_step,
    influences,
    long_steps,
    moderated,
    paired_influences,
    variance_of,
)
from tests.factories import known


def test_the_mean_has_students_error() -> None:
    """Of 1 2 3 6: mean 3, squares 4 + 1 + 0 + 9 = 14; 14 / (4 * 3), 3 degrees."""
    side = center_of([6.0, 1.0, 3.0, 2.0])
    assert (side.n, side.mean, side.df) == (4, 3.0, 3.0)
    assert side.variance == pytest.approx(14 / 12)


def test_samples_beyond_the_cap_count_as_if_at_the_cap() -> None:
    """Of -10 -1 -1 0 1 1 10 with the ends capped: 4 + 2 reach**2 = 6 * 0.6352 * (reach / 1.2)**2, so reach is 2.487.

    Five of seven lie inside, which makes the correction 1 + (2 / 5) / 7 and the variance
    0.6352 * (1.0571 * 2.487 / 1.2 * 7 / 5)**2 / 7 = 0.8537, with 4 degrees.
    """
    side = center_of([10.0, -1.0, -1.0, 0.0, 1.0, 1.0, -10.0], robust=True)
    assert side.mean == pytest.approx(0.0, abs=1e-12)
    assert side.variance == pytest.approx(0.8537, rel=1e-3)
    assert side.df == 4
    far, side = (center_of([100 + one for one in (end, -1, -1, 0, 1, 1, 1, 1, 0)], robust=True) for end in (1e6, 10.0))
    assert side.mean == pytest.approx(far.mean)
    assert side.variance == pytest.approx(far.variance)


def test_if_most_samples_are_equal_the_center_is_the_mean() -> None:
    assert center_of([0.0, 0.0, 5.0, 0.0, 0.0], robust=True) == center_of([0.0, 0.0, 5.0, 0.0, 0.0])


@pytest.mark.parametrize("n", [2, 3, 8, 40])
def test_the_capped_center_solves_hubers_two_equations(n: int) -> None:
    """Deviations, capped at 1.2 scales, add up to 0, and their squares to those of normal samples of that scale."""
    rng = np.random.default_rng(n)
    for _ in range(50):
        samples = rng.normal(size=n) + 10 * (rng.random(n) < 0.15)
        side = center_of([float(one) for one in samples], robust=True)
        assert side.variance is not None
        share = (side.df + 1) / n
        scale = math.sqrt(side.variance * n / CAPPED_VARIANCE) * share / (1 + (1 - share) / share / n)
        capped = np.clip(samples - side.mean, -CAP * scale, CAP * scale)
        assert capped.sum() == pytest.approx(0, abs=1e-9)
        assert (capped**2).sum() == pytest.approx((n - 1) * CAPPED_VARIANCE * scale**2)


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("n", [2, 7])
def test_equal_samples_have_exactly_their_value(n: int, *, robust: bool) -> None:
    side = center_of([0.1] * n, robust=robust)
    assert side.mean == 0.1
    assert side.variance == 0.0


@pytest.mark.parametrize(("robust", "n"), [(False, 6), (True, 3), (True, 12)])
def test_a_95_percent_interval_contains_the_mean_in_95_percent_of_runs(n: int, *, robust: bool) -> None:
    """95 % of intervals hold the mean of the normal samples; Huber's miss it by a quarter more often at most."""
    rng, runs, held = np.random.default_rng(1), 1000, 0
    for _ in range(runs):
        side = center_of(list(map(float, rng.normal(size=n))), robust=robust)
        assert side.variance is not None
        held += abs(side.mean) <= t_quantile(0.975, side.df) * math.sqrt(side.variance)
    assert held >= 0.93 * runs


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        pytest.param([1.0, 3.0], Center(2, 2.0, 1.4, 5.0, 4.0), id="variance 2 with 1 degree: (4 * 3 + 1 * 2) / 5 / 2"),
        pytest.param([2.0, 2.0], Center(2, 2.0, 1.2, 5.0, 4.0), id="equal launches: (4 * 3 + 1 * 0) / 5 / 2"),
        pytest.param([7.0], Center(1, 7.0, 3.0, 4.0, 4.0), id="a single launch has nothing else"),
    ],
)
def test_few_launches_go_by_the_expected_scatter(samples: list[float], expected: Center) -> None:
    """A variance of 3 is expected, with 4 degrees of freedom."""
    assert astuple(moderated(center_of(samples), Expected(3.0, 4.0))) == pytest.approx(astuple(expected))


def test_the_more_launches_there_are_the_less_the_expected_scatter_counts() -> None:
    """Of 21 that are -1, 0 or 1, seven each, the variance is 14 / 20 = 0.7: (4 * 0.4 + 20 * 0.7) / 24."""
    side = moderated(center_of([-1.0, 0.0, 1.0] * 7), Expected(0.4, 4.0))
    assert side.variance == pytest.approx((4 * 0.4 + 20 * 0.7) / 24 / 21)
    assert (side.df, side.assumed) == (24.0, 4.0)


@pytest.mark.parametrize(
    ("variance", "counts"),
    [
        pytest.param(4.0, 4.0, id="a scatter of half of what is expected"),
        pytest.param(1.0, 4.0, id="twice as much, which one pair in six shows by chance"),
        pytest.param(0.5, 2.0, id="four times as much"),
        pytest.param(0.02, 0.08, id="a hundred times as much"),
    ],
)
def test_the_expected_scatter_counts_less_if_launches_differ_far_more(variance: float, counts: float) -> None:
    """Of 1 and 3, whose variance is 2."""
    side = moderated(center_of([1.0, 3.0]), Expected(variance, 4.0))
    assert pytest.approx(2.0) == DENIED
    assert (side.assumed, side.df) == pytest.approx((counts, 1.0 + counts))
    assert side.variance == pytest.approx((counts * variance + 2.0) / (1.0 + counts) / 2)


def test_without_an_expected_scatter_only_the_launches_count() -> None:
    for side in (center_of([1.0, 3.0]), center_of([1.0])):
        assert moderated(side, None) is side
        assert moderated(side, Expected(3.0, 0.0)) is side


def test_an_expected_scatter_of_zero_counts_only_for_equal_launches() -> None:
    assert moderated(center_of([1.0, 3.0]), Expected(0.0, 4.0)).df == 1.0
    assert moderated(center_of([1.0, 1.0]), Expected(0.0, 4.0)).variance == 0.0


@pytest.mark.parametrize(
    ("steps", "sizes"),
    [
        (100, (10,) * 10),
        (25, (2, 3) * 5),
        (20, (2,) * 10),
        (19, (2, 2, 2, 2, 2, 2, 2, 2, 3)),  # nine blocks: no tenth has two steps
        (5, (2, 3)),
        (3, (3,)),
        (1, (1,)),
        (0, (0,)),
    ],
)
def test_a_launch_is_cut_into_ten_blocks_of_two_steps_or_more(steps: int, sizes: tuple[int, ...]) -> None:
    assert even_sizes(steps) == sizes


def without_each(blocks: Sequence[float]) -> list[float]:
    """The mean of all but one, for each."""
    return [fmean([*blocks[:i], *blocks[i + 1 :]]) for i in range(len(blocks))]


def test_the_influence_of_a_block_on_a_mean_is_how_far_it_lies_from_it() -> None:
    """Of 1 2 3 6, whose mean is 3."""
    assert influences(without_each([1.0, 2.0, 3.0, 6.0])) == pytest.approx((-2.0, -1.0, 0.0, 3.0))


@pytest.mark.parametrize("number", [2, 3, 10, 45])
def test_of_a_mean_the_jackknife_gives_the_textbooks_standard_error(number: int) -> None:
    blocks = [float(one) for one in np.random.default_rng(number).normal(5.0, 2.0, number)]
    assert math.sqrt(variance_of(influences(without_each(blocks)))) == pytest.approx(stdev(blocks) / math.sqrt(number))


def test_a_disturbance_of_both_blocks_of_a_pair_cancels_out() -> None:
    """0.3 in the first block of both; blocks without partners count each for its own side: 0.02 / 2 and 0.02 / 6."""
    base = [(0.3, -0.2, -0.1), (0.1, -0.1)]
    new = [(0.32, -0.21, -0.11), (0.1, 0.0, -0.1)]
    moved, apart = map(paired_influences, new, base)
    assert moved == pytest.approx((0.02, -0.01, -0.01))
    assert variance_of(apart) == pytest.approx(0.02 / 2 + 0.02 / 6)
    assert (paired_influences((), ()), paired_influences((0.1, -0.1), (0.1, -0.1))) == ((), (0.0, 0.0))


HALVES = (0.3, -0.3)  # variance (0.09 + 0.09) / (2 * 1) = 0.09


def told(within: Sequence[Sequence[float]], own: float) -> tuple[float, float]:
    """The variance that is expected, and its degrees of freedom."""
    found = known(expected(within, own))
    return found.variance, found.df


def test_the_expected_scatter_of_launches_is_the_sum_of_block_and_launch_variance() -> None:
    """0.09 and, of three blocks, (0.01 + 0.01) / 6: the mean, and the square of 0.4. 1 + 2 degrees of freedom."""
    assert told([HALVES, (0.1, 0.0, -0.1)], 0.4) == pytest.approx(((0.09 + 0.02 / 6) / 2 + 0.16, 3.0))


def test_however_many_blocks_there_are_the_expectation_counts_for_few_launches() -> None:
    assert told([HALVES] * 30, 0.0) == pytest.approx((0.09, CERTAINTY))


@pytest.mark.parametrize("within", [[], [()], [(0.0,), ()]])
def test_without_two_blocks_in_a_launch_nothing_is_expected(within: list[tuple[float, ...]]) -> None:
    assert expected(within, 0.015) is None


# Rounds of two sides that take turns: pairs of blocks differ by 8 % and each launch adds something of its own.

PAIRS, SCATTER = 20, 0.08
Rounds = tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]


def rounds(rng: np.random.Generator, launches: int, own: float) -> Rounds:
    """By how much the sides differ in each round, as logarithms, and how far each pair of blocks moves that."""
    blocks = rng.normal(0.0, SCATTER, (launches, PAIRS))
    means = blocks.mean(axis=1)
    differences = means + rng.normal(0.0, own, launches)
    return tuple(map(float, differences)), tuple(tuple(map(float, row)) for row in blocks - means[:, None])


def side_by_side(differences: Sequence[float], within: Sequence[tuple[float, ...]]) -> Change:
    new, base = list(map(math.exp, differences)), [1.0] * len(differences)
    return known(paired(new, base, scale="ratio", robust=True, expected=expected(within, OWN_IN_TURNS)))


def covered(launches: int, own: float, runs: int = 1500) -> float:
    """Of runs in which nothing changed, in how many the 95 % interval holds no change."""
    rng = np.random.default_rng(launches)
    held = 0
    for _ in range(runs):
        interval = known(interval_at(side_by_side(*rounds(rng, launches, own)), 0.05))
        held += interval.low <= 0 <= interval.high
    return held / runs


@pytest.mark.parametrize("launches", [2, 6])
def test_intervals_keep_their_confidence_if_launches_scatter_as_assumed(launches: int) -> None:
    assert 0.95 <= covered(launches, OWN_IN_TURNS) <= 0.995


def test_intervals_keep_most_of_their_confidence_if_launches_scatter_four_times_as_much() -> None:
    """Launches that lie apart by far more than expected are believed, not the expectation: in 6000 runs 92.3 %."""
    assert covered(10, 4 * OWN_IN_TURNS) >= 0.91


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
def test_short_pauses_do_not_count_if_there_are_long_ones(blip: float, number: int) -> None:
    """Two of 11 s and one of 2.5: the mean second is in one of 248.25 / 24.5 s, half of which is 5.07; of 5.5 4.95."""
    times = with_long(2, 12)
    times[7] = blip
    found = long_steps([times])
    assert found.number == number
    seconds = 22 + blip * (number - 2)
    assert (found.factor, found.share) == pytest.approx((seconds / number, seconds / (22 + blip + 17)))


def test_a_step_of_twice_the_median_is_not_a_long_step() -> None:
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
    assert cheapest_mean(blocks, sizes) == pytest.approx(expected)


def after(*increases: int) -> list[int]:
    """The readings that these increases make, from 1000 on."""
    return list(accumulate(increases, initial=1000))


COMES_AND_GOES = [1000 + 2 * step + 900 * (step % 2 or step == 10) for step in range(11)]


@pytest.mark.parametrize(
    ("readings", "slope"),
    [
        pytest.param(after(*[7] * 10), 7, id="as much in each step"),
        # The two largest and the two smallest of ten increases are left out: six of 3 remain.
        pytest.param(after(3, 3, 5000, 3, 3, 3, 9000, 3, 3, 3), 3, id="two jumps"),
        pytest.param(after(800, 800, 0, 0, 0, 0, 0, 0, 0, 0), 0, id="a cache that has filled up"),
        # 900 are there after every second step and the last two. The lasting increases are 4, 0, 4, 0, 4, 0, 4, 0, 902
        # and 2: without two at either end 0, 0, 2, 4, 4 and 4 are left.
        pytest.param(COMES_AND_GOES, 14 / 6, id="what comes and goes"),
        pytest.param(after(0, 0, 60, 0, 0, 60, 0, 0, 60, 0), 20, id="a leak in every third step"),
        pytest.param(after(*[1, 1, 96, 1, 1] * 3), 20, id="a leak in every fifth step, three times"),
        pytest.param(after(*[1, 1, 96, 900, 1], *[1, 1, 96, 1, 1] * 3), 20, id="and a cache that has filled up"),
        pytest.param(after(*[0, 0, 60, 0, 0] * 2), 0, id="two equal jumps are no period"),
        pytest.param(after(0, 60, 0, 60, 0, 60, *[0] * 14), 60 / 16, id="nor three of which no fourth comes"),
        pytest.param([9, 8, 7, 6, 5, 4], 0, id="memory that shrinks"),
        pytest.param(after(0, 10, 12, 30, 400), 12, id="of five increases the middle one"),
        pytest.param(after(5, 9), 7, id="of two their mean"),
    ],
)
def test_memory_growth_per_step_is_a_robust_slope(readings: list[int], slope: float) -> None:
    assert growth_per_step(readings) == pytest.approx(slope)
