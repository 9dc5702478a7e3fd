"""Made-up launches: exact where there is no noise, and with the noise that was asked for where there is some."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from benchmarks.quality.campaign import Recorded
from benchmarks.quality.simulate import STEP, STEPS, Machine, lengthened, run_of_rounds, separate_runs
from benchmarks.quality.steps import CONDITIONS, UNCHANGED

SILENT = Machine(0.0, of_runs=0.0, of_steps=0.0)
SLOWER = CONDITIONS["+5%"]


def drawing(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def levels(launches: tuple[Recorded, ...]) -> list[float]:
    """By what factor each launch, all of whose steps are alike, is slower than a silent one."""
    assert all(len(set(launch.step_times)) == 1 for launch in launches)
    return [launch.step_times[0] / STEP for launch in launches]


def test_one_step_in_ten_counts_from_the_first_warm_up_step() -> None:
    """Five steps of warm-up, so that the fifth timed one is the tenth."""
    steps = lengthened(CONDITIONS["1 step in 10"], 80)
    assert [i for i, longer in enumerate(steps) if longer != 1] == [4, 14, 24, 34, 44, 54, 64, 74]
    assert set(steps) == {1.0, 1.5}
    assert statistics.fmean(steps) == 1.05


def test_other_work_is_in_every_step() -> None:
    assert lengthened(CONDITIONS[UNCHANGED], 2) == [1.0, 1.0]
    assert lengthened(CONDITIONS["+10%"], 2) == [1.1, 1.1]
    assert lengthened(CONDITIONS["comm +5%"], 2) == [1.05, 1.05]


def test_without_noise_a_launch_is_what_the_condition_makes_of_it() -> None:
    sides = separate_runs(SILENT, SLOWER, 3, drawing())
    assert [launch.step_times for launch in sides.base] == [(STEP,) * STEPS] * 3
    assert [launch.step_times for launch in sides.new] == [(STEP * 1.05,) * STEPS] * 3
    # 0.27 s to start and a second of steps
    assert [launch.seconds for launch in sides.base] == [pytest.approx(1.27)] * 3
    assert [launch.round for launch in sides.new] == [0, 1, 2]
    assert [launch.condition for launch in (sides.base[0], sides.new[0])] == [UNCHANGED, "+5%"]
    assert run_of_rounds(SILENT, SLOWER, 3, drawing()) == sides


def test_the_launches_of_a_run_share_its_deviation() -> None:
    sides = separate_runs(Machine(0.0, of_runs=0.01, of_steps=0.0), CONDITIONS[UNCHANGED], 4, drawing())
    (base,), (new,) = (set(levels(side)) for side in (sides.base, sides.new))
    assert base != new
    assert 1 not in (base, new)


def test_partners_share_what_their_round_deviates_by_and_nothing_else() -> None:
    together = run_of_rounds(Machine(0.0, of_rounds=0.1, of_steps=0.0), CONDITIONS[UNCHANGED], 4, drawing())
    assert levels(together.base) == levels(together.new)
    assert len(set(levels(together.base))) == 4
    apart = run_of_rounds(Machine(0.1, of_steps=0.0), CONDITIONS[UNCHANGED], 4, drawing())
    assert not set(levels(apart.base)) & set(levels(apart.new))


def test_a_disturbed_launch_is_slower_by_a_tenth_to_two_fifths() -> None:
    draw = drawing()
    always = levels(run_of_rounds(Machine(0.0, disturbed=1.0, of_steps=0.0), CONDITIONS[UNCHANGED], 200, draw).base)
    assert 1.1 <= min(always) < 1.12
    assert 1.38 < max(always) <= 1.4
    seldom = levels(run_of_rounds(Machine(0.0, disturbed=0.15, of_steps=0.0), CONDITIONS[UNCHANGED], 2000, draw).base)
    assert sum(level > 1 for level in seldom) == pytest.approx(300, abs=50)


def test_launches_and_steps_scatter_by_what_was_asked_for() -> None:
    launches = run_of_rounds(Machine(0.03, of_steps=0.0), CONDITIONS[UNCHANGED], 2000, drawing()).base
    assert statistics.stdev(map(math.log, levels(launches))) == pytest.approx(0.03, rel=0.05)
    steps = run_of_rounds(Machine(0.0), CONDITIONS[UNCHANGED], 1, drawing()).base[0].step_times
    assert statistics.stdev(map(math.log, steps)) == pytest.approx(0.05, rel=0.2)


def test_the_cpu_time_of_a_launch_is_its_work_with_a_noise_of_its_own() -> None:
    steady = run_of_rounds(Machine(0.1, of_cpu=0.0), SLOWER, 3, drawing())
    assert {launch.cpu for launch in steady.base} == {(STEP, STEP)}
    assert [launch.cpu[0] for launch in steady.new] == pytest.approx([1.05 * STEP] * 3)
    noisy = run_of_rounds(Machine(0.0, of_cpu=0.04), CONDITIONS[UNCHANGED], 2000, drawing()).base
    logs = [math.log(launch.cpu[0]) for launch in noisy if launch.cpu[0] is not None]
    assert statistics.stdev(logs) == pytest.approx(0.04, rel=0.05)
    assert {launch.cpu for launch in run_of_rounds(SILENT, SLOWER, 3, drawing()).new} == {(None, None)}


def test_the_same_seed_makes_the_same_launches() -> None:
    machine = Machine(0.02, disturbed=0.15, of_rounds=0.05)
    for sides in (separate_runs, run_of_rounds):
        assert sides(machine, SLOWER, 3, drawing(1)) == sides(machine, SLOWER, 3, drawing(1))
        assert sides(machine, SLOWER, 3, drawing(1)) != sides(machine, SLOWER, 3, drawing(2))


def test_a_machine_says_how_noisy_it_is() -> None:
    assert str(Machine(0.02)) == "launches scatter by 2%"
    assert str(Machine(0.02, disturbed=0.15)) == "launches scatter by 2%, 15% of them made slower"
    assert str(Machine(0.02, of_rounds=0.1)) == "launches scatter by 2%, rounds by 10% in common"
    assert str(Machine(0.02, of_steps=0.22)) == "launches scatter by 2%, steps by 22%"
    assert str(Machine(0.02, of_cpu=0.015)) == "launches scatter by 2%, their CPU times by 1.5%"
