from __future__ import annotations

import math

import pytest

from pytest_ddpperf.records.measurement import Interval, Scale
from pytest_ddpperf.stats.intervals import (
    Rate,
    center,
    change,
    clopper_pearson,
    half_width,
    interval_at,
    paired,
    possible,
    t_quantile,
    with_launches,
)
from pytest_ddpperf.stats.launches import Expected
from tests.factories import known

# Student's t, 97.5 %, from printed tables, with 1, 2, 4, 5, 8 and infinite degrees of freedom.
T1, T2, T4, T5, T8, Z = 12.7062, 4.3027, 2.7764, 2.5706, 2.3060, 1.9600


@pytest.mark.parametrize(("df", "expected"), [(1, T1), (2, T2), (4, T4), (8, T8), (math.inf, Z)])
def test_quantiles_of_students_t_agree_with_the_tables(df: float, expected: float) -> None:
    assert t_quantile(0.975, df) == pytest.approx(expected, abs=5e-5)


def growing(factor: float) -> list[float]:
    """Three samples, each so many times the one before: of their logarithms the variance is the factor's, squared."""
    return [1.0, factor, factor**2]


def test_ratios_have_a_geometric_center() -> None:
    """Logs of 1, 1.1 and 1.21: mean ln 1.1, variance (ln 1.1)^2, and the error of the mean is ln 1.1 / sqrt(3)."""
    value, interval = center(growing(1.1), "ratio")
    half = T2 / math.sqrt(3)
    assert value == pytest.approx(1.1)
    assert interval is not None
    assert math.log(interval.low) == pytest.approx(math.log(1.1) * (1 - half), rel=1e-4)
    assert math.log(interval.high) == pytest.approx(math.log(1.1) * (1 + half), rel=1e-4)
    assert interval.confidence == 0.95


@pytest.mark.parametrize(("samples", "scale"), [([1.0, 2.0, 3.0], "difference"), ([-2.0, -1.0, 0.0], "ratio")])
def test_differences_and_values_without_logarithm_have_an_arithmetic_center(samples: list[float], scale: Scale) -> None:
    """A variance of 1 over three launches: a standard error of 1 / sqrt(3)."""
    value, interval = center(samples, scale)
    assert value == sum(samples) / 3
    assert interval is not None
    half = T2 / math.sqrt(3)
    assert (interval.low, interval.high) == pytest.approx((value - half, value + half), rel=1e-4)


@pytest.mark.parametrize(
    ("ends", "part"),
    [
        ((0.2, 0.4), (0.2, 0.4)),
        ((-0.1, 0.4), (0.0, 0.4)),
        ((0.7, 1.2), (0.7, 1.0)),
        ((-0.065, 1.614), None),  # anything that is possible
        ((-0.4, -0.1), None),
    ],
)
def test_an_interval_is_cut_to_the_possible_range(ends: tuple[float, float], part: tuple[float, float] | None) -> None:
    found = possible(Interval(low=ends[0], high=ends[1], confidence=0.95), 0.0, 1.0)
    assert (None if found is None else (found.low, found.high)) == part
    assert possible(None, 0.0, 1.0) is None


@pytest.mark.parametrize("scale", ["ratio", "difference"])
def test_fewer_than_three_launches_have_no_interval(scale: Scale) -> None:
    """Student's, with 1 degree of freedom, would be 12.7 times the error of their mean."""
    value, interval = center([1.0, 1.1], scale)
    assert interval is None
    assert value == pytest.approx(math.sqrt(1.1) if scale == "ratio" else 1.05)
    assert center([1.0, 1.1, 1.05], scale)[1] is not None
    assert center([0.3], scale) == (0.3, None)


@pytest.mark.parametrize(("factor", "told"), [(1.247, True), (1.248, False)])
def test_an_interval_of_more_than_a_factor_of_three_is_none(factor: float, *, told: bool) -> None:
    """It is as wide as 2 * 4.3027 / sqrt(3) = 4.9683 times the logarithm of the factor, and ln 3 is 1.0986."""
    value, interval = center(growing(factor), "ratio")
    assert value == pytest.approx(factor)
    assert (interval is not None) is told
    assert center(growing(factor), "difference")[1] is not None  # which may be on both sides of 0


@pytest.mark.parametrize("scale", ["ratio", "difference"])
def test_launches_that_agree_leave_no_doubt(scale: Scale) -> None:
    value, interval = center([0.1] * 7, scale)
    assert interval is not None
    assert value == interval.low == interval.high == 0.1


def test_the_change_of_two_separate_runs_agrees_with_values_by_hand() -> None:
    """Both variances are 2, so the squared error is 2/2 + 2/2 = 2, with the 1 degree of freedom of either side."""
    found = known(change([1.0, 3.0], [0.0, 2.0], scale="difference"))
    assert (found.estimate, found.shift, found.df) == (1.0, 1.0, 1.0)
    assert found.standard_error == pytest.approx(math.sqrt(2))
    interval = known(interval_at(found, 0.05))
    assert interval.high == pytest.approx(1 + T1 * math.sqrt(2), rel=1e-5)
    assert (found.launches, found.sampling_variance, found.fixed_variance) == (2, 1.0, 1.0)


def test_ratios_are_compared_by_their_logarithms() -> None:
    """Twice the time: +100 %; half of it: -50 %; on the scale of analysis they are equally far."""
    slower = known(change([2.0, 8.0], [1.0, 4.0], scale="ratio"))
    faster = known(change([1.0, 4.0], [2.0, 8.0], scale="ratio"))
    assert slower.estimate == pytest.approx(1.0)
    assert faster.estimate == pytest.approx(-0.5)
    assert slower.shift == pytest.approx(-faster.shift)
    interval = known(interval_at(slower, 0.05))
    assert interval.low > -1


def test_a_single_launch_borrows_the_other_sides_scatter() -> None:
    """The base's variance is 2: 2/1 + 2/2 = 3, known as well as the base's own, by 1 degree of freedom."""
    found = known(change([5.0], [1.0, 3.0], scale="difference"))
    mirrored = known(change([1.0, 3.0], [5.0], scale="difference"))
    assert found.standard_error == pytest.approx(math.sqrt(3))
    assert mirrored.standard_error == found.standard_error
    assert found.df == mirrored.df == 1


def test_two_single_launches_have_a_change_but_no_scatter() -> None:
    found = known(change([1.1], [1.0], scale="ratio"))
    assert found.estimate == pytest.approx(0.1)
    assert interval_at(found, 0.05) is None
    assert found.standard_error is None
    assert half_width(found, 0.05) is None


def test_counts_that_never_vary_are_compared_exactly() -> None:
    same = known(change([1e9 + 7] * 5, [1e9 + 7] * 8, scale="ratio"))
    one_byte = known(change([1e9 + 8] * 5, [1e9 + 7] * 8, scale="ratio"))
    assert (same.shift, same.standard_error, half_width(same, 0.01)) == (0.0, 0.0, 0.0)
    assert one_byte.shift == pytest.approx(1e-9, rel=1e-6)
    assert half_width(one_byte, 0.01) == 0.0


def test_ratios_without_logarithm_are_relative_to_the_baselines_size() -> None:
    """Means -1 and -2: up by half of the base's size. Errors: 2/2 / 2^2 = 1/4; 2/2 / 2^2, times (1/2)^2 = 1/16."""
    found = known(change([-2.0, 0.0], [-3.0, -1.0], scale="ratio"))
    assert found.estimate == 0.5
    assert not found.logarithmic
    assert found.standard_error == pytest.approx(math.sqrt(1 / 4 + 1 / 16))


def test_nothing_grows_from_zero_by_a_percentage() -> None:
    assert change([1.0, 2.0], [0.0, 0.0], scale="ratio") is None
    assert known(change([0.0, 0.0], [0.0, 0.0], scale="ratio")).estimate == 0.0


def test_there_is_no_change_from_nothing() -> None:
    """As in a file of results that somebody has edited."""
    assert change([], [1.0, 1.1], scale="ratio") is None
    assert change([1.0, 1.1], [], scale="difference") is None


@pytest.mark.parametrize("scale", ["ratio", "difference"])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_samples_that_are_no_numbers_make_no_change(bad: float, scale: Scale) -> None:
    assert change([bad, 1.0], [1.0, 1.0], scale=scale) is None


@pytest.mark.parametrize("scale", ["ratio", "difference"])
def test_the_ends_of_the_number_range_give_finite_numbers_or_none(scale: Scale) -> None:
    found = [
        change([1e300, 1e-300], [1e200, 1e-300], scale=scale),
        change([1e300, -1e300], [1e-300, 0.0], scale=scale),
        change([5e-324, 1e-323], [5e-324, 5e-324], scale=scale),
    ]
    for one in found:
        if one is not None:
            interval = known(interval_at(one, 0.05))
            assert all(map(math.isfinite, (one.estimate, interval.low, interval.high)))


def test_pairs_of_a_round_are_compared_with_each_other() -> None:
    """Logs of the quotients: ln 2 and ln 8; mean ln 4, variance 2 (ln 2)^2, so the standard error of the mean is ln 2.

    The rounds themselves, 1 and 100, do not enter.
    """
    found = known(paired([2.0, 800.0], [1.0, 100.0], scale="ratio"))
    assert found.estimate == pytest.approx(3.0)
    assert (found.df, found.launches) == (1, 2)
    assert found.standard_error == pytest.approx(math.log(2))
    assert found.fixed_variance == 0
    assert found.sampling_variance == pytest.approx(math.log(2) ** 2)
    interval = known(interval_at(found, 0.05))
    assert math.log1p(interval.low) == pytest.approx(math.log(2) * (2 - T1), rel=1e-5)


def test_pairs_with_a_zero_are_relative_to_the_bases_mean() -> None:
    """0 and 2 more than a base whose mean is 2."""
    assert known(paired([0.0, 6.0], [0.0, 4.0], scale="ratio")).estimate == pytest.approx(0.5)
    assert paired([1.0], [0.0], scale="ratio") is None
    assert known(paired([0.0], [0.0], scale="ratio")).estimate == 0
    assert paired([math.nan], [1.0], scale="ratio") is None


def test_one_pair_has_no_scatter_and_sides_must_match() -> None:
    assert interval_at(known(paired([2.0], [1.0], scale="ratio")), 0.05) is None
    with pytest.raises(ValueError, match="zip"):
        paired([1.0, 2.0], [1.0], scale="ratio")


def test_a_few_disturbed_rounds_do_not_hide_a_slowdown() -> None:
    """In four of sixteen rounds one side takes a third longer: 5 % are told, and not by the plain mean."""
    base = [1.0] * 12 + [1.33, 1.36, 1.0, 1.0]
    new = [1.05 * sample for sample in [*(0.99, 1.01) * 6, 1.0, 1.0, 1.31, 1.38]]
    robust, plain = (known(paired(new, base, scale="ratio", robust=robust)) for robust in (True, False))
    assert robust.estimate == pytest.approx(0.05, abs=0.002)
    narrow = known(interval_at(robust, 0.05))
    assert narrow.low > 0
    wide = known(interval_at(plain, 0.05))
    assert wide.low < 0


def test_the_interval_of_two_launches_uses_the_expected_scatter() -> None:
    """Logarithms 0 and 0.04, variance 0.0008; with 0.0012 for 4 degrees (4 * 0.0012 + 0.0008) / 5 = 0.00112.

    Of the mean half: an error of 2.37 %. Without it that is 2 %, but 12.7 times as much on either side.
    """
    value, interval = center([1.0, math.exp(0.04)], "ratio", expected=Expected(0.0012, 4.0))
    assert interval is not None
    half = T5 * math.sqrt(0.00056)
    assert math.log(value) == pytest.approx(0.02)
    assert (math.log(interval.low), math.log(interval.high)) == pytest.approx((0.02 - half, 0.02 + half), rel=1e-4)
    assert half < 0.061 < T1 * 0.02


def test_a_single_launch_has_an_interval_if_an_expected_scatter_is_known() -> None:
    value, interval = center([0.3], "ratio", expected=Expected(0.0009, 4.0))
    assert interval is not None
    assert value == 0.3
    assert math.log(interval.high / 0.3) == pytest.approx(T4 * 0.03, rel=1e-4)


def test_the_expected_scatter_of_logarithms_is_not_used_for_values_without_a_logarithm() -> None:
    told, samples = Expected(1e-9, 4.0), [-2.0, -1.0, 0.0]
    assert center(samples, "ratio", expected=told) == center(samples, "ratio")
    assert center(samples[:2], "ratio", expected=told) == (-1.5, None)
    assert known(change([-2.0, 0.0], [-3.0, -1.0], scale="ratio", expected=told)).df == 1.0


def test_the_change_of_two_rounds_agrees_with_values_by_hand() -> None:
    """Differences of 1 and 3, variance 2; expected are 3 with 4 degrees: (12 + 2) / 5 = 2.8; error sqrt(1.4)."""
    found = known(paired([1.0, 3.0], [0.0, 0.0], scale="difference", expected=Expected(3.0, 4.0)))
    assert found.standard_error == pytest.approx(math.sqrt(1.4))
    assert (found.df, found.assumed, found.freedom[0]) == (5.0, 4.0, 5.0)
    assert half_width(found, 0.05) == pytest.approx(T5 * math.sqrt(1.4), rel=1e-4)


def test_two_separate_runs_are_each_moderated() -> None:
    """Variances 2 and 8, and 4 are expected with 4 degrees: (16 + 2) / 5 = 3.6 and (16 + 8) / 5 = 4.8, each halved."""
    found = known(change([1.0, 3.0], [0.0, 4.0], scale="difference", expected=Expected(4.0, 4.0)))
    assert (found.sampling_variance, found.fixed_variance) == pytest.approx((1.8, 2.4))
    assert (found.df, found.assumed) == (5.0, 4.0)


def test_more_launches_add_only_their_own_degrees_of_freedom() -> None:
    """Of two launches 4 + 1 degrees; of six 4 + 5, and a third of the squared error."""
    two = known(paired([1.0, 3.0], [0.0, 0.0], scale="difference", expected=Expected(3.0, 4.0)))
    six = with_launches(two, 6)
    assert (six.df, six.launches) == (9.0, 6)
    assert six.standard_error == pytest.approx(math.sqrt(1.4 / 3))
    assert with_launches(two, 2) == two
    alone = known(paired([1.0, 3.0], [0.0, 0.0], scale="difference"))
    assert [with_launches(alone, n).df for n in (2, 3, 11)] == [1.0, 2.0, 10.0]
    single = known(paired([1.0], [0.0], scale="difference", expected=Expected(3.0, 4.0)))
    assert (single.df, with_launches(single, 6).df) == (4.0, 9.0)
    assert with_launches(single, 1) == single  # what is expected of it is all that it has


def test_the_baseline_knows_no_more_for_launches_of_this_side() -> None:
    """Either side has 1 degree, and the worse one counts."""
    found = known(change([1.0, 3.0], [0.0, 2.0], scale="difference"))
    assert (with_launches(found, 50).df, with_launches(found, 50).fixed_variance) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("found", "of", "low", "high"),
    [
        (0, 10, 0.0, 1 - 0.025**0.1),  # the rate whose chance of none is 2.5 %: (1 - p)^10 = 0.025
        (10, 10, 0.025**0.1, 1.0),
        (1, 2, 1 - math.sqrt(0.975), math.sqrt(0.975)),  # 1 - (1 - p)^2 = 0.025; the high end mirrors it
    ],
)
def test_a_rate_is_a_share_of_runs_with_its_interval(found: int, of: int, low: float, high: float) -> None:
    rate = Rate(found=found, of=of)
    assert rate.value == found / of
    assert rate.interval == clopper_pearson(found, of)
    assert (rate.interval.low, rate.interval.high) == pytest.approx((low, high))
