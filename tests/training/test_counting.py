"""Which steps of a job are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.counts import Counts, merged
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import LaunchJob
from pytest_ddpperf.training.preparing import count_launch
from pytest_ddpperf.training.workload import Workload

WIDTH = 8
PARAMETERS = WIDTH * WIDTH + WIDTH


def linear() -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


def batch() -> tuple[Tensor, Tensor]:
    return torch.ones(4, WIDTH), torch.ones(4, WIDTH)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def job(strategy: str, warmup: int = 5, **settings: Any) -> LaunchJob:
    workload = Workload(model=linear, batch=batch, loss=nn.functional.mse_loss, optimizer=sgd, samples_per_step=4)
    return LaunchJob(workload, resolve(strategy), replace(Settings(), **settings), Plan(warmup=warmup, steps=1))


@pytest.mark.parametrize("warmup", [0, 3, 5])
def test_what_the_warm_up_alone_does_is_not_counted(make_ctx: Any, warmup: int) -> None:
    plain = count_launch(make_ctx(), job("single"))
    clipped = count_launch(make_ctx(), job("single", warmup, clip_grad_norm=1.0, clip_steps="warmup"))
    assert clipped.unstable == {}
    assert clipped == plain
    always = count_launch(make_ctx(), job("single", warmup, clip_grad_norm=1.0))
    assert always.totals["operators"] > plain.totals["operators"]


def count_both(ctx: RankContext, jobs: dict[str, LaunchJob]) -> dict[str, Counts]:
    return {name: count_launch(ctx, one) for name, one in jobs.items()}


def test_what_is_done_once_in_a_period_belongs_to_all_of_its_steps(launcher: Launcher) -> None:
    """Ranks average their parameters, all in one all-reduce, after every fourth step or after every third one."""
    jobs = {
        str(period): job(f"ddp[comm_hook=post_local_sgd,local_sgd_period={period}]", warmup=warmup)
        for period, warmup in ((4, 5), (3, 2))
    }
    ranks = launcher.run(count_both, jobs, world_size=2, backend="gloo", device="cpu", timeout=60).values
    for period in (4, 3):
        counts = merged([rank[str(period)] for rank in ranks])
        assert (counts.unstable, counts.by_rank) == ({}, {})
        assert counts.details["collective_calls"] == {"all_reduce": 1 / period}
        assert counts.details["collective_bytes"] == {"all_reduce": 4 * PARAMETERS / period}
        assert counts.totals["optimizer_steps"] == 1
        assert counts.details["model_state_bytes"]["parameters"] == 4 * PARAMETERS
        assert counts.totals["retained_bytes"] == 0


@pytest.mark.parametrize("loss", [float("nan"), "loss"])
def test_a_step_that_gives_no_finite_loss_is_not_counted(make_ctx: Any, loss: Any) -> None:
    """As it is not timed: a run that only counts has to say so, too."""
    own = LaunchJob(lambda _ctx: lambda: loss, resolve("single"), Settings(), Plan(warmup=2, steps=1))
    with pytest.raises(WorkloadError, match="at warm-up step 1"):
        count_launch(make_ctx(), own)
