"""Components of variance, by hand on logarithms that are small whole numbers.

Of two launches the slower one counts half: a run of 0 and 2 has its center at (0 + 2 / 2) / 1.5 = 2/3, with the squared
standard error 2 / (1.5 * 0.5) = 8/3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from pytest_ddpperf.records.measurement import Spread
from pytest_ddpperf.stats.spreads import bound_of_difference, components, joined, noise_floor, pooled, wider


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


def test_what_was_learned_may_only_widen() -> None:
    assert wider(Spread(sd=0.04, df=4), 0.01) == Spread(sd=0.04, df=4)
    assert wider(Spread(sd=0.001, df=60), 0.01) == Spread(sd=0.01, df=math.inf)
