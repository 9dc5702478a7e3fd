"""Components of variance, by hand on logarithms that are small whole numbers.

Of two launches the slower one counts half: a run of 0 and 2 has its center at (0 + 2 / 2) / 1.5 = 2/3, with the squared
standard error 2 / (1.5 * 0.5) = 8/3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

from pytest_ddpperf.records.measurement import Spread
from pytest_ddpperf.records.noise import RunSpread
from pytest_ddpperf.stats.spreads import (
    bound_of_difference,
    components,
    joined,
    moderated_spread,
    narrower,
    noise_floor,
    pooled,
    prior_of,
    spread_of_bound,
    wider,
)


def runs(*logs: Sequence[float]) -> list[list[float]]:
    return [[math.exp(value) for value in run] for run in logs]


def test_what_runs_deviate_beyond_their_launches() -> None:
    """Centers 2/3 and 4 + 2/3: variance 8, of which the launches explain 8/3; (2 + 2) / 2 = 2 within."""
    found = components(runs([0, 2], [4, 6]))
    assert found.between_launches.sd == pytest.approx(math.sqrt(2))
    assert found.between_runs.sd == pytest.approx(math.sqrt(8 - 8 / 3))
    assert (found.between_launches.df, found.between_runs.df) == (2, 1)


def test_a_variance_is_not_negative() -> None:
    """Both centers are the same, so that 0 between is less than what the launches explain."""
    found = components(runs([0, 2], [0, 2]))
    assert found.between_runs == Spread(sd=0.0, df=1)
    assert found.between_launches.sd == pytest.approx(math.sqrt(2))


def test_runs_of_different_length() -> None:
    """Centers 2/3 and 6: variance (16/3)^2 / 2 = 128/9; the mean of 8/3 and 0 is 4/3."""
    found = components(runs([0, 2], [6]))
    assert found.between_runs.sd == pytest.approx(math.sqrt(128 / 9 - 4 / 3))


def test_a_disturbed_launch_moves_neither_runs_nor_floor_by_much() -> None:
    """Of eight launches the two slowest are cut: one that takes twice as long moves its run's center not at all."""
    steady = [[0.1, 0.101] * 4, [0.1, 0.102] * 4, [0.101, 0.102] * 4]
    disturbed = [[*steady[0][:-1], 0.2], *steady[1:]]
    assert noise_floor(disturbed) == pytest.approx(noise_floor(steady), rel=0.2)


def test_with_one_launch_each_all_of_it_is_between_runs() -> None:
    """1, 3: variance 2."""
    found = components(runs([1], [3]))
    assert found.between_launches == Spread(sd=0.0, df=0)
    assert found.between_runs.sd == pytest.approx(math.sqrt(2))


@pytest.mark.parametrize("too_few", [[], [[1.0, 2.0]], [[1.0], []]])
def test_one_run_tells_nothing(too_few: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="two runs or more"):
        components(too_few)


def test_units_do_not_matter() -> None:
    times = [[0.10, 0.11], [0.12, 0.10], [0.11, 0.13]]
    in_ms = [[1000 * time for time in run] for run in times]
    assert components(in_ms).between_runs.sd == pytest.approx(components(times).between_runs.sd)
    assert noise_floor(in_ms) == pytest.approx(noise_floor(times))


def test_the_floor_is_what_one_difference_in_twenty_exceeds() -> None:
    """Centers 0.01 and 0.03: s = 0.02 / sqrt(2); t(95 %, 1 df) = tan(0.45 pi) = 6.314; t * sqrt(2) * s = 0.1263."""
    assert noise_floor(runs([0.0, 0.03], [0.03])) == pytest.approx(math.expm1(math.tan(0.45 * math.pi) * 0.02))


def test_runs_that_agree_have_no_floor() -> None:
    assert noise_floor([[0.1, 0.1], [0.1, 0.1], [0.1]]) == 0.0
    assert bound_of_difference(Spread(sd=0.0, df=3)) == 0.0


def test_steps_are_pooled_over_launches() -> None:
    """(2 + 8) / (1 + 1) = 5; the launch with a single step tells nothing."""
    found = pooled(runs([0, 2], [0, 4], [9]))
    assert found.sd == pytest.approx(math.sqrt(5))
    assert found.df == 2
    assert pooled([[0.1]]) == Spread(sd=0.0, df=0)


def test_spreads_are_joined_by_their_degrees_of_freedom() -> None:
    """(1 * 9 + 3 * 1) / 4 = 3; what has no degrees tells nothing."""
    assert joined([Spread(sd=3.0, df=1), Spread(sd=1.0, df=3), Spread(sd=7.0, df=0)]) == Spread(sd=math.sqrt(3), df=4)
    assert joined([]) == joined([Spread(sd=7.0, df=0)]) == Spread(sd=0.0, df=0)


def test_a_time_of_zero_has_a_logarithm_too() -> None:
    assert pooled([[0.0, 0.0]]) == Spread(sd=0.0, df=1)


def test_a_bound_tells_the_deviation_it_is_of() -> None:
    runs_of_five = Spread(sd=0.02, df=4)
    assert spread_of_bound(bound_of_difference(runs_of_five), 4).sd == pytest.approx(0.02)


ASSUMED = Spread(sd=1.0, df=math.inf)


def learned(sd: float, df: float, sampling: float = 0.0) -> RunSpread:
    return RunSpread(centers=Spread(sd=sd, df=df), sampling=sampling)


def test_what_a_learned_spread_adds_to_a_known_one_is_an_estimate() -> None:
    """Of a variance of 4 three quarters are learned: 16 / (1 / 8 + 9 / 4)."""
    found = wider(learned(2.0, 4), Spread(sd=1.0, df=8))
    assert found.sd == 2.0
    assert found.df == pytest.approx(16 / (1 / 8 + 9 / 4))
    assert wider(learned(math.sqrt(2), 100), ASSUMED).df == pytest.approx(4 * 100)
    assert wider(learned(2.0, math.inf), ASSUMED) == Spread(sd=2.0, df=math.inf)


@pytest.mark.parametrize("df", [1, 4, 100])
@pytest.mark.parametrize("sd", [0.0, 0.5, 1.0])
def test_what_is_learned_to_be_no_larger_changes_nothing(sd: float, df: int) -> None:
    assert wider(learned(sd, df), ASSUMED) == ASSUMED
    assert wider(learned(9.0, 0), ASSUMED) == wider(learned(9.0, 3.9), ASSUMED) == ASSUMED


def test_a_spread_counts_where_chance_does_not_make_it_so_large() -> None:
    """99 % of variances by 4 degrees of freedom are below 3.3192 times the true one, here 1, or 1 and 2 of launches."""
    for sampling, true in ((0.0, 1.0), (2.0, 3.0)):
        below, above = (learned(math.sqrt(true * times), 4, sampling) for times in (3.3191, 3.3193))
        assert wider(below, ASSUMED) == ASSUMED
        assert wider(above, ASSUMED).sd == pytest.approx(math.sqrt(true * 3.3193 - sampling))


def test_chance_widens_one_spread_in_a_hundred() -> None:
    runs = np.random.default_rng(1).normal(size=(2000, 5))
    wide = sum(wider(learned(sd, 4), ASSUMED) != ASSUMED for sd in runs.std(axis=1, ddof=1).tolist())
    assert wide == pytest.approx(20, abs=14)


def test_a_default_is_replaced_where_intervals_become_shorter() -> None:
    """t(99.9 %, 4 df) is 7.173, the normal quantile 3.090: 0.43 of the default is as long."""
    of_five = partial(Spread, df=4)
    assert narrower(RunSpread(centers=of_five(sd=0.43)), 1.0) == of_five(sd=0.43)
    assert narrower(RunSpread(centers=of_five(sd=0.44)), 1.0) == ASSUMED
    assert narrower(RunSpread(centers=Spread(sd=0.9, df=1000)), 1.0) == Spread(sd=0.9, df=1000)
    assert narrower(RunSpread(centers=Spread(sd=0.0, df=0)), 1.0) == ASSUMED


def test_what_launches_explain_of_runs_is_not_theirs() -> None:
    """Of a variance of 4 launches explain 3; a quarter of it has a sixteenth of the degrees of freedom. 0.4 is kept."""
    centers = Spread(sd=2.0, df=8)
    assert RunSpread(centers=centers, sampling=3.0).beyond == Spread(sd=1.0, df=0.5)
    assert RunSpread(centers=centers, sampling=9.0).beyond.sd == pytest.approx(math.sqrt(0.4))
    assert RunSpread(centers=centers).beyond == centers
    assert RunSpread(centers=Spread(sd=0.0, df=4)).beyond == Spread(sd=0.0, df=4)


TRIGAMMA_OF_1, TRIGAMMA_OF_2 = math.pi**2 / 6, math.pi**2 / 6 - 1


def test_a_prior_is_what_the_estimates_of_several_benchmarks_follow() -> None:
    """Of 4 degrees of freedom each: logarithms h above and below 0, whose variance 2 h^2 is trigamma(2) + trigamma(1).

    So the prior has 2 * 1 degrees of freedom. Its scale is e^0 * (2 / 1) * e^(psi(1) - psi(2)), which is 2 / e.
    """
    half = math.sqrt((TRIGAMMA_OF_1 + TRIGAMMA_OF_2) / 2)
    spreads = [Spread(sd=math.exp(log / 2), df=4) for log in (half, -half)]
    prior = prior_of(spreads)
    assert prior is not None
    assert prior.df == pytest.approx(2)
    assert prior.sd**2 == pytest.approx(2 / math.e)
    found = moderated_spread(spreads[0], prior)
    assert found.sd**2 == pytest.approx((4 * math.exp(half) + 2 * 2 / math.e) / 6)
    assert found.df == pytest.approx(6)
    assert moderated_spread(spreads[0], prior, 5).df == 5


def test_estimates_that_differ_by_chance_alone_are_of_one_variance() -> None:
    """Both tell as much of it: they lie no further apart than 4 degrees of freedom let them."""
    prior = prior_of([Spread(sd=3.0, df=4), Spread(sd=3.1, df=4)])
    assert prior is not None
    assert prior.sd**2 == pytest.approx((9 + 3.1**2) / 2)
    assert prior.df == 8


def test_one_benchmark_is_no_prior() -> None:
    assert prior_of([Spread(sd=3.0, df=4), Spread(sd=1.0, df=0)]) is None
    own = Spread(sd=3.0, df=4)
    assert moderated_spread(own, None) == own


def test_benchmarks_whose_runs_all_agree_have_a_prior_too() -> None:
    none = Spread(sd=0.0, df=4)
    assert prior_of([none, none]) == Spread(sd=0.0, df=8)
    prior = prior_of([none, Spread(sd=1.0, df=4), Spread(sd=1.0, df=4)])
    assert prior is not None
    assert 0 < prior.df < 1
