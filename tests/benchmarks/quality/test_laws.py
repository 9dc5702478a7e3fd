"""The laws of simulated launches: exact where they have no noise, and with the scatter that was asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.quality.laws import Array, Machine, Moody, Pairs, Replayed, Skewed, Slower, World, pairs_of, recordings
from benchmarks.quality.verdicts import Launched


class Silent:
    """A machine without any noise, whose steps take 10 ms."""

    step = 0.01

    def sides(self, number: int, steps: int) -> tuple[Array, Array]:
        return np.ones((number, steps)), np.ones(number)


def drawing(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def times_of(rounds: Launched) -> list[list[float]]:
    return [list(ranks[0].step_times) for ranks, _ in rounds]


def quotients(machine: Machine, number: int = 2000, steps: int = 40) -> list[float]:
    found = (machine.sides(2, steps)[0] for _ in range(number))
    return [math.log(new.mean() / base.mean()) for new, base in found]


def test_the_new_side_has_the_work_and_the_pauses() -> None:
    """Of 20 timed steps after five of warm-up the fifth and the fifteenth are the tenth and twentieth of all."""
    world = World(Silent(), Slower(0.1, pause=3.0, every=10))
    rounds = world.launched([False, True], 20)
    new, base = times_of(rounds)
    assert base == pytest.approx([0.01] * 20)
    assert new == pytest.approx([0.044 if step in (4, 14) else 0.011 for step in range(20)])
    assert world.slower == pytest.approx((18 * 1.1 + 2 * 4.4) / 20 - 1)
    assert [seconds for _, seconds in rounds] == pytest.approx([0.27 + sum(new), 0.27 + 0.2])
    assert [ranks[0].cpu_time for ranks, _ in rounds] == pytest.approx([0.011, 0.01])


def test_both_sides_may_pause_and_a_gpu_has_no_cpu_time() -> None:
    pausing = Slower(pause=1.0, every=2)
    world = World(Silent(), pausing, pausing, cpu=False)
    rounds = world.launched([True, False], 4)
    assert times_of(rounds)[0] == times_of(rounds)[1] == pytest.approx([0.02, 0.01, 0.02, 0.01])
    assert world.slower == 0.0
    assert {ranks[0].cpu_time for ranks, _ in rounds} == {None}


def test_the_mean_slowdown_of_second_sides_is_subtracted_and_chance_is_kept() -> None:
    """Steps of 1 ms; one unchanged second side took 1.1 ms by chance, two slower ones take 2 and 4 ms, so a mean of
    2.83 ms is taken off and what is left is a factor of the root of 2."""
    steps = np.array([[[10_000] * 2, [second] * 2] for second in (11_000, 20_000, 40_000)], np.int32)
    pairs = pairs_of(steps, steps[:, :, 0], np.array([0, 3, 3], np.int8))
    left = np.exp(pairs.steps[:, 1, 0] - pairs.steps[:, 0, 0])
    assert left == pytest.approx([1.1, math.sqrt(0.5), math.sqrt(2)])
    assert np.exp(pairs.steps).mean() == pytest.approx(1.0)
    assert pairs.step == pytest.approx(1e-3 * (3 + 1.1 + math.sqrt(0.5) + math.sqrt(2)) / 6)
    assert pairs.cpu is not None
    assert pairs.cpu[:, 1] - pairs.cpu[:, 0] == pytest.approx(np.log(left))


def made_up(scatter: float, steps: int = 80) -> Pairs:
    draw = drawing()
    return Pairs(0.01, draw.normal(0, scatter * math.sqrt(40 / 2), (400, 2, steps)), None)


@pytest.mark.parametrize("scatter", [0.02, 0.06])
def test_replayed_pairs_have_the_scatter_that_is_asked_for(scatter: float) -> None:
    pairs = made_up(0.03)
    assert pairs.scatter == pytest.approx(0.03, rel=0.1)
    found = [np.std(quotients(Replayed(pairs, drawing(seed), scatter), 1000)) for seed in range(4)]
    assert found == pytest.approx([scatter] * 4, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_the_noise_of_launches_is_skewed_and_0_on_average(seed: int) -> None:
    found = Skewed(0.02, drawing(seed))(200_000)
    assert found.mean() == pytest.approx(0.0, abs=5e-4)
    assert found.std() == pytest.approx(0.02, rel=0.05)
    assert ((found / 0.02) ** 3).mean() > 1.5


def test_a_machine_whose_speed_drifts_favours_no_side() -> None:
    for seed in range(5):
        found = quotients(Moody(drawing(seed)), 1500)
        assert abs(np.mean(found)) < 4 * np.std(found) / math.sqrt(len(found))


def test_there_are_recordings_with_a_plausible_scatter() -> None:
    found = recordings()
    assert len(found) >= 4
    assert all(0.01 < pairs.scatter < 0.2 for pairs in found)
