"""Where launches lie, with numbers worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_ddpperf.stats.blocks import Expected
from pytest_ddpperf.stats.centers import CAP, CAPPED_VARIANCE, DENIED, Center, center_of, moderated
from pytest_ddpperf.stats.intervals import t_quantile


def test_the_mean_has_students_error() -> None:
    """Of 1 2 3 6: mean 3, squares 4 + 1 + 0 + 9 = 14; 14 / (4 * 3), 3 degrees."""
    side = center_of([6.0, 1.0, 3.0, 2.0])

    assert (side.n, side.mean, side.df) == (4, 3.0, 3.0)
    assert side.variance == pytest.approx(14 / 12)


def test_what_lies_beyond_the_cap_at_either_end_counts_as_if_at_it() -> None:
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


def test_where_nothing_lies_beyond_the_cap_the_center_is_the_mean() -> None:
    samples = [3.0, 1.0, 2.0]

    assert center_of(samples, robust=True).mean == 2.0
    assert center_of(samples, robust=True).variance == pytest.approx(center_of(samples).variance)
    assert center_of(samples, robust=True).df == 2


def test_where_most_samples_are_the_same_there_is_no_scale_but_that_of_the_mean() -> None:
    assert center_of([0.0, 0.0, 5.0, 0.0, 0.0], robust=True) == center_of([0.0, 0.0, 5.0, 0.0, 0.0])


@pytest.mark.parametrize("n", [2, 3, 5, 8, 13, 40])
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
@pytest.mark.parametrize("n", range(2, 12))
def test_equal_samples_have_exactly_their_value(n: int, *, robust: bool) -> None:
    side = center_of([0.1] * n, robust=robust)

    assert side.mean == 0.1
    assert side.variance == 0.0


@pytest.mark.parametrize(("robust", "n"), [(False, 6), (True, 2), (True, 3), (True, 6), (True, 12)])
def test_the_interval_holds_what_it_promises(n: int, *, robust: bool) -> None:
    """95 % of intervals hold the mean of the normal samples; Huber's miss it by a quarter more often at most."""
    rng, runs, held = np.random.default_rng(1), 1000, 0
    for _ in range(runs):
        side = center_of(list(map(float, rng.normal(size=n))), robust=robust)
        assert side.variance is not None
        held += abs(side.mean) <= t_quantile(0.975, side.df) * math.sqrt(side.variance)

    assert held >= 0.93 * runs


def test_no_samples_have_no_center() -> None:
    with pytest.raises(ValueError, match="at least one launch"):
        center_of([])


def test_few_launches_go_by_what_is_expected_of_them() -> None:
    """Of 1 and 3 the variance is 2, with 1 degree; 3 with 4 are expected: (4 * 3 + 1 * 2) / 5 = 2.8, halved."""
    side = moderated(center_of([1.0, 3.0]), Expected(3.0, 4.0))
    assert side.variance == pytest.approx(1.4)
    assert (side.n, side.mean, side.df, side.assumed) == (2, 2.0, 5.0, 4.0)


def test_a_single_launch_has_nothing_else() -> None:
    assert moderated(center_of([7.0]), Expected(3.0, 4.0)) == Center(1, 7.0, 3.0, 4.0, 4.0)


def test_the_more_launches_there_are_the_less_it_counts() -> None:
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
def test_it_counts_less_where_launches_lie_apart_by_far_more(variance: float, counts: float) -> None:
    """Of 1 and 3, whose variance is 2."""
    side = moderated(center_of([1.0, 3.0]), Expected(variance, 4.0))
    assert pytest.approx(2.0) == DENIED
    assert (side.assumed, side.df) == pytest.approx((counts, 1.0 + counts))
    assert side.variance == pytest.approx((counts * variance + 2.0) / (1.0 + counts) / 2)


def test_where_nothing_is_expected_the_launches_alone_count() -> None:
    for side in (center_of([1.0, 3.0]), center_of([1.0])):
        assert moderated(side, None) is side
        assert moderated(side, Expected(3.0, 0.0)) is side


def test_an_expectation_of_no_scatter_at_all_is_believed_of_nothing_but_equal_launches() -> None:
    assert moderated(center_of([1.0, 3.0]), Expected(0.0, 4.0)).df == 1.0
    assert moderated(center_of([1.0, 1.0]), Expected(0.0, 4.0)).variance == 0.0


def test_equal_launches_are_not_believed_to_be_without_scatter() -> None:
    """(4 * 3 + 1 * 0) / 5 = 2.4, of the mean half."""
    assert moderated(center_of([2.0, 2.0]), Expected(3.0, 4.0)).variance == pytest.approx(1.2)
