"""Two ranks with a GPU each: what they add up, how long their steps take, and what a profile says of NCCL's kernels."""

from __future__ import annotations

from functools import partial

import pytest

from benchmarks.gpu_pieces.failures import Case, adds, stays_out, tried
from benchmarks.gpu_pieces.piece import Place
from benchmarks.gpu_pieces.plugin import job_of, timed
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.training.jobs import PROFILE_LAUNCH

RANKS = 2


def test_two_ranks_on_gpus_add_up(launcher: Launcher, wide_place: Place) -> None:
    run = partial(launcher.run, world_size=RANKS, device=wide_place.device, backend=wide_place.backend, timeout=60)
    assert run(adds).values == (2.0, 2.0)


def test_steps_of_two_ranks_are_timed(launcher: Launcher, wide_place: Place) -> None:
    job = job_of(wide_place, steps=10)
    ranks, _ = timed(launcher, wide_place, job, RANKS)
    assert [len(rank.step_times) for rank in ranks] == [10, 10]
    assert min(min(rank.step_times) for rank in ranks) > 0


@pytest.mark.parametrize("strategy", ["naive", "ddp"])
def test_a_profile_has_the_collectives_with_their_bytes(launcher: Launcher, wide_place: Place, strategy: str) -> None:
    job = job_of(wide_place, steps=2, strategy=strategy)
    run = partial(launcher.run, world_size=RANKS, device=wide_place.device, backend=wide_place.backend, timeout=300)
    profile = run(PROFILE_LAUNCH, job).rank(0)
    for step in profile.steps:
        assert {each.kind for each in step.collectives} == {"all_reduce"}
        assert all(each.nbytes for each in step.collectives)
        assert 0 < step.busy <= step.seconds
        assert step.computed > 0


def test_a_rank_that_omits_a_collective_on_gpus_is_to_blame(launcher: Launcher, wide_place: Place) -> None:
    told = tried(launcher, wide_place, Case("hang", stays_out, "RanksTimedOut", ranks=RANKS, guilty=1))
    assert told["right"], told["error"]["text"]
    assert told["next"] == ""
