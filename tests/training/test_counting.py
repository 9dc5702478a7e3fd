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
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob
from pytest_ddpperf.training.model import size_of
from pytest_ddpperf.training.preparing import prepare_launch
from pytest_ddpperf.training.subject import Workload
from tests.counted import count_launch
from tests.factories import runnable

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


@pytest.mark.parametrize("warmup", [0, 5])
def test_work_of_the_warm_up_alone_is_not_counted(make_ctx: Any, warmup: int) -> None:
    plain = count_launch(make_ctx(), job("single"))
    clipped = count_launch(make_ctx(), job("single", warmup, clip_grad_norm=1.0, clip_steps="warmup"))
    assert clipped.unstable == {}
    assert replace(clipped, sites={}) == replace(plain, sites={})  # whose steps are on two lines of this test
    always = count_launch(make_ctx(), job("single", warmup, clip_grad_norm=1.0))
    assert always.totals["operators"] > plain.totals["operators"]


def count_both(ctx: RankContext, jobs: dict[str, LaunchJob]) -> dict[str, Counts]:
    return {name: count_launch(ctx, one) for name, one in jobs.items()}


SHARDED = runnable(["ddp", "fsdp1", "fsdp2"])


@pytest.fixture(scope="module")
def on_two(launcher: Launcher) -> tuple[dict[str, Counts], ...]:
    """The counts of several jobs on two ranks, in one launch."""
    jobs = {
        str(p): job(f"ddp[comm_hook=post_local_sgd,local_sgd_period={p}]", warmup) for p, warmup in ((4, 5), (3, 2))
    }
    jobs |= {strategy: job(strategy) for strategy in SHARDED}
    return launcher.run(count_both, jobs, world_size=2, backend="gloo", device="cpu", timeout=60).values


def test_work_of_one_step_in_a_period_is_shared_by_all_of_its_steps(on_two: tuple[dict[str, Counts], ...]) -> None:
    """Ranks average their parameters, all in one all-reduce, after every fourth step or after every third one."""
    for period in (4, 3):
        counts = merged([rank[str(period)] for rank in on_two])
        assert (counts.unstable, counts.by_rank) == ({}, {})
        assert counts.details["collective_calls"] == {"all_reduce": 1 / period}
        assert counts.details["collective_bytes"] == {"all_reduce": 4 * PARAMETERS / period}
        assert counts.totals["optimizer_steps"] == 1
        assert counts.details["model_state_bytes"]["parameters"] == 4 * PARAMETERS
        assert counts.totals["retained_bytes"] == 0


@pytest.mark.parametrize("strategy", SHARDED)
def test_the_whole_model_is_counted_however_it_is_sharded(on_two: tuple[dict[str, Counts], ...], strategy: str) -> None:
    for rank in on_two:
        assert rank[strategy].totals["parameters"] == PARAMETERS
        assert rank[strategy].totals["model_size"] == 4 * PARAMETERS


@pytest.mark.parametrize("loss", [float("nan"), "loss"])
def test_a_step_that_gives_no_finite_loss_is_not_counted(make_ctx: Any, loss: Any) -> None:
    """As it is not timed: a run that only counts has to say so, too."""
    own = LaunchJob(lambda _ctx: lambda: loss, resolve("single"), Settings(), Plan(warmup=2, steps=1))
    with pytest.raises(WorkloadError, match="at warm-up step 1"):
        count_launch(make_ctx(), own)


def frozen_in_part() -> nn.Module:
    """A trainable weight of 64 and a bias of 8 in fp32, a frozen weight of 24 in bf16, and a buffer of 2 bytes."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3, bias=False, dtype=torch.bfloat16))
    model[1].requires_grad_(requires_grad=False)
    model.register_buffer("seen", torch.zeros(2, dtype=torch.uint8))
    return model


def test_the_size_of_a_model_includes_all_parameters_and_buffers() -> None:
    assert size_of(frozen_in_part()) == {
        "parameters": {"float32": 72.0},
        "model_size": {"float32": 288.0, "bfloat16": 48.0, "buffers": 2.0},
    }
    sharded = type("FullyShardedDataParallel", (nn.Module,), {})()
    assert size_of(nn.Sequential(linear(), sharded)) == {}


class Told:
    """A step of the user's own that tells its model."""

    def __init__(self) -> None:
        self.module = linear()

    def __call__(self) -> None:
        self.module(torch.ones(4, WIDTH)).sum().backward()


def test_a_custom_step_may_name_its_model(make_ctx: Any) -> None:
    plan = Plan(warmup=1, steps=1)
    told = count_launch(make_ctx(), LaunchJob(lambda _ctx: Told(), None, Settings(), plan))
    assert (told.totals["parameters"], told.details["model_size"]) == (PARAMETERS, {"float32": 4.0 * PARAMETERS})
    silent = count_launch(make_ctx(), LaunchJob(lambda _ctx: Told().__call__, None, Settings(), plan))
    assert not {"parameters", "model_size"} & silent.totals.keys()


@pytest.mark.parametrize(
    ("passes", "samples", "told"),
    [
        (2, 4, [{"size": 4, "samples": 4, "passes": 2}]),  # of a single micro-batch
        (1, 2, [{"size": 4, "samples": 2, "passes": 1}]),
        (2, 8, []),
        (1, 8, []),  # along the second dimension, as of sequences that come first
        (1, 1, []),  # one graph, or one packed sequence
        (1, 3.5, []),  # a mean of packed batches
    ],
)
def test_a_batch_size_other_than_the_test_says_is_reported(
    make_ctx: Any, passes: int, samples: float | None, told: Any
) -> None:
    model = linear()
    optimizer = sgd(model.parameters())

    def step() -> None:
        for _ in range(passes):
            model(torch.ones(4, WIDTH)).sum().backward()
        optimizer.step()

    job = LaunchJob(lambda _ctx: step, None, Settings(), Plan(warmup=1, steps=1), samples_per_step=samples)
    remarks = prepare_launch(make_ctx(), PrepareJob(job, counted=True)).remarks
    assert [finding.facts for finding in remarks if finding.code == "other_batch_size"] == told


@pytest.mark.parametrize(("samples", "told"), [(8, []), (4, []), (6, [{"size": 4, "samples": 6, "passes": 4}])])
def test_a_step_may_optimize_several_times_on_the_same_samples(make_ctx: Any, samples: int, told: Any) -> None:
    """As PPO does: here in two epochs over two minibatches, or in four epochs over one."""
    model = linear()
    optimizer = sgd(model.parameters())

    def step() -> None:
        for _ in range(4):
            model(torch.ones(4, WIDTH)).sum().backward()
            optimizer.step()

    job = LaunchJob(lambda _ctx: step, None, Settings(), Plan(warmup=1, steps=1), samples_per_step=samples)
    remarks = prepare_launch(make_ctx(), PrepareJob(job, counted=True)).remarks
    assert [finding.facts for finding in remarks if finding.code == "other_batch_size"] == told
