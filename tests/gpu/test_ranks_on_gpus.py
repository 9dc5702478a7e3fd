"""Two ranks with a GPU each: what they add up, how long their steps take, and what a profile says of NCCL's kernels."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.gpu_pieces.failures import Case, adds, stays_out, tried
from benchmarks.gpu_pieces.piece import Place
from perf_tests.language_model import SMALL, language_model
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import PROFILE_LAUNCH, RUN_LAUNCH, LaunchJob

RANKS = 2


def job_of(steps: int, strategy: str = "ddp") -> LaunchJob:
    """A launch that times so many steps of the small language model."""
    plan = Plan(warmup=3, steps=steps)
    workload = language_model(SMALL, batch_size=2)
    return LaunchJob(workload, resolve(strategy), Settings(), plan, diagnosed=False, growth=False)


def test_two_ranks_add_up(launcher: Launcher, wide_place: Place) -> None:
    run = partial(launcher.run, world_size=RANKS, device=wide_place.device, backend=wide_place.backend, timeout=60)
    assert run(adds).values == (2.0, 2.0)


def test_steps_of_two_ranks_are_timed(launcher: Launcher, wide_place: Place) -> None:
    run = partial(launcher.run, world_size=RANKS, device=wide_place.device, backend=wide_place.backend, timeout=300)
    ranks = run(RUN_LAUNCH, job_of(steps=10)).values
    assert [len(rank.step_times) for rank in ranks] == [10, 10]
    assert min(min(rank.step_times) for rank in ranks) > 0


@pytest.mark.parametrize("strategy", ["naive", "ddp"])
def test_a_profile_has_the_collectives_with_their_bytes(launcher: Launcher, wide_place: Place, strategy: str) -> None:
    job = job_of(steps=2, strategy=strategy)
    run = partial(launcher.run, world_size=RANKS, device=wide_place.device, backend=wide_place.backend, timeout=300)
    profile = run(PROFILE_LAUNCH, job).rank(0)
    for step in profile.steps:
        assert {each.kind for each in step.collectives} == {"all_reduce"}
        assert all(each.nbytes for each in step.collectives)
        assert 0 < step.busy <= step.seconds
        assert step.computed > 0


def test_a_rank_that_stays_out_is_blamed(launcher: Launcher, wide_place: Place) -> None:
    told = tried(launcher, wide_place, Case("hang", stays_out, "RanksTimedOut", ranks=RANKS, guilty=1))
    assert told["right"], told["error"]["text"]
    assert told["next"] == ""
