"""Steps: made from workloads, or taken from a user's function."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.utils.data import DataLoader, TensorDataset

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import LaunchJob
from pytest_ddpperf.training.loop import run_launch
from pytest_ddpperf.training.step import Step, _tf32_override, build_step
from pytest_ddpperf.training.subject import Workload
from tests.training import workloads

SEEN: list[Any] = []


class Recorder(nn.Module):
    """Writes down the inputs that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        SEEN.append(inputs)
        return self.weight * inputs


@pytest.fixture(autouse=True)
def forget() -> None:
    SEEN.clear()


def eight() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(8.0), torch.zeros(8)


def step_of(
    ctx: RankContext, subject: Any, strategy: str, *, samples_per_step: float | None = None, **settings: Any
) -> Step:
    """The step of a launch."""
    plan = Plan(warmup=2, steps=5)
    return build_step(ctx, LaunchJob(subject, resolve(strategy), Settings(**settings), plan, samples_per_step))


def workload(**changes: Any) -> Workload:
    fields = {"model": Recorder, "optimizer": partial(torch.optim.SGD, lr=0.25), "tokens_per_step": 80}
    data = {} if "loader" in changes else {"batch": eight}
    return workloads.workload(**{**fields, **data, "samples_per_step": 8, **changes})


def test_a_variable_that_overrides_tf32_is_reported_on_a_gpu(make_ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = make_ctx()
    on_gpu = replace(ctx, device=torch.device("cuda", 0))
    assert _tf32_override(on_gpu, Settings()) == ()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert _tf32_override(on_gpu, Settings()) == (Finding("tf32_override", {"value": "0", "precision": "fp32"}),)
    assert _tf32_override(ctx, Settings()) == ()


def test_a_model_in_eval_mode_and_another_batch_size_are_reported(make_ctx: Any) -> None:
    step = step_of(make_ctx(), workload(model=lambda: Recorder().eval()), "single")
    assert [finding.code for finding in step.remarks] == ["evaluating"]
    step = step_of(
        make_ctx(), workload(samples_per_step=2, batch=lambda: (torch.ones(4, 3), torch.ones(4, 3))), "single"
    )
    assert [finding.facts for finding in step.remarks] == [{"size": 4, "samples": 2, "passes": 1}]


def test_a_step_trains(make_ctx: Any) -> None:
    """weight w, inputs x of 1 and 3, targets 0: loss 5 w^2, gradient 10 w; from w = 1 by 0.25 to -1.5, loss 11.25."""
    step = step_of(
        make_ctx(), workload(batch=lambda: (torch.tensor([1.0, 3.0]), torch.zeros(2)), samples_per_step=2), "single"
    )
    assert step.run() == 5.0
    loss = step.run()
    assert loss == 11.25
    assert not loss.requires_grad
    step.close()


@pytest.mark.parametrize("asked", [True, False])
def test_cudnn_benchmark_is_on_if_a_setting_or_the_workload_turns_it_on(
    make_ctx: Any, monkeypatch: pytest.MonkeyPatch, *, asked: bool
) -> None:
    for found in (True, False):
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", not found)

        def batch(found: bool = found) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: FBT001  bound early
            torch.backends.cudnn.benchmark = found
            return eight()

        step_of(make_ctx(), workload(batch=batch), "single", cudnn_benchmark=asked)
        assert torch.backends.cudnn.benchmark is (asked or found)
    assert Settings(cudnn_benchmark=asked).recipe == ({"cudnn_benchmark": "true"} if asked else {})


def test_counts_are_the_workloads_unless_the_test_gives_its_own(make_ctx: Any) -> None:
    step = step_of(make_ctx(), workload(), "single")
    assert (step.samples_per_step, step.tokens_per_step) == (8, 80)
    step = step_of(make_ctx(), workload(tokens_per_step=None), "single", samples_per_step=3)
    assert (step.samples_per_step, step.tokens_per_step) == (3, None)


def test_every_rank_has_the_same_model_and_different_data(make_ctx: Any) -> None:
    weights = []

    def model() -> nn.Module:
        weights.append(torch.rand(1).item())
        return Recorder()

    random_data = workload(model=model, batch=lambda: (torch.rand(8), torch.zeros(8)))
    for rank in (0, 1):
        step_of(make_ctx(rank, 2), random_data, "ddp").run()
    assert weights[0] == weights[1]
    assert not torch.equal(SEEN[0], SEEN[1])


def test_in_strong_mode_ranks_share_the_same_global_batch(make_ctx: Any) -> None:
    together = workload(batch=lambda: (torch.rand(8), torch.zeros(8)))
    step_of(make_ctx(0, 1, "strong"), together, "ddp").run()
    for rank in (0, 1):
        step = step_of(make_ctx(rank, 2, "strong"), together, "ddp")
        step.run()
        assert (step.samples_per_step, step.tokens_per_step) == (4, 40)
    assert torch.equal(torch.cat(SEEN[1:]), SEEN[0])


def test_an_epoch_has_as_many_steps_as_micro_batches_fill(make_ctx: Any) -> None:
    """Ten batches, four to a step."""
    ten = workload(loader=lambda _rank, _size: [(torch.ones(4, 1), torch.zeros(4, 1))] * 10)
    assert step_of(make_ctx(), ten, "ddp", accumulation_steps=4).epoch_steps == 2.5


def test_a_global_batch_that_cannot_be_shared_is_refused(make_ctx: Any) -> None:
    message = r"eight \(.*test_step.py:\d+\) gave a batch of 8 samples, which 3 ranks cannot share equally"
    with pytest.raises(WorkloadError, match=message):
        step_of(make_ctx(0, 3, "strong"), workload(), "ddp")


def test_in_weak_mode_every_rank_has_a_whole_batch(make_ctx: Any) -> None:
    step = step_of(make_ctx(1, 2, "weak"), workload(), "ddp")
    step.run()
    assert SEEN[0].tolist() == eight()[0].tolist()
    assert step.samples_per_step == 8


def test_ranks_with_different_loaders_run_as_many_steps(launcher: Launcher) -> None:
    """Rank 0's worker holds four batches ready, rank 1's holds three: all are where they began after 12 steps.

    Of 13 timed steps that makes 24, told as the means of two periods.
    """

    def loader(rank: int, _world_size: int) -> Any:
        data = TensorDataset(torch.ones(1024), torch.zeros(1024))  # one epoch: workers are started once
        return DataLoader(data, batch_size=8, num_workers=1, prefetch_factor=4 - rank)

    job = LaunchJob(workload(loader=loader), resolve("ddp"), Settings(), Plan(warmup=1, steps=13), growth=False)
    ranks = launcher.run(run_launch, job, world_size=2, backend="gloo", device="cpu", timeout=30).values
    assert [len(rank.step_times) for rank in ranks] == [2, 2]


def test_ranks_whose_batches_differ_in_size_are_refused(make_ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third rank's batch has no tensor with a size."""
    monkeypatch.setattr("pytest_ddpperf.training.step.of_all_ranks", lambda *_: [[1, 2], [1, 6], [1, -1]])
    message = r"eight \(.*\) gave the ranks batches of different sizes \(rank 0: 2, rank 1: 6\), .* equally, .* give"
    with pytest.raises(WorkloadError, match=message):
        step_of(make_ctx(0, 3), workload(), "ddp")


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (lambda _rank, _size: [], "yielded no batch: give it data for at least one batch"),
        (lambda _rank, _size: iter([eight()]), "yielded no batch in its second epoch: return an iterable"),
        (lambda _rank, _size: [torch.ones(3)], r"gave a batch of type Tensor: return \(inputs, targets\)"),
        (
            lambda _rank, _size: [eight(), (torch.ones(5), torch.ones(5))],
            "yielded a batch of 5 after batches of 8, .*drop_last=True",
        ),
    ],
)
def test_an_unsuitable_loader_is_named(make_ctx: Any, loader: Any, message: str) -> None:
    def train() -> None:
        step = step_of(make_ctx(), workload(loader=loader), "single")
        for _ in range(2):
            step.run()

    with pytest.raises(WorkloadError, match=r"<lambda> \(.*test_step.py:\d+\) " + message):
        train()


class UsersStep:
    samples = 16
    tokens = 160

    def __init__(self) -> None:
        self.closed = False

    def __call__(self) -> float:
        return 0.5

    def close(self) -> None:
        self.closed = True


def test_a_custom_step_object_gives_its_samples_and_tokens_and_is_closed(make_ctx: Any) -> None:
    own = UsersStep()
    step = step_of(make_ctx(), lambda _ctx: own, "ddp")
    assert (step.run(), step.samples_per_step, step.tokens_per_step) == (0.5, 16, 160)
    step.close()
    assert own.closed


def test_in_strong_mode_counts_that_the_test_gives_are_the_groups(make_ctx: Any) -> None:
    """32 samples of 4 ranks are 8 of each; what the step object tells is this rank's already."""
    step = step_of(make_ctx(0, 4, "strong"), lambda _ctx: UsersStep(), "ddp", samples_per_step=32)
    assert (step.samples_per_step, step.tokens_per_step) == (8, 160)


def with_yield() -> Iterator[float]:
    yield 1.0


async def with_async() -> float:
    return 1.0


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (with_yield, "is a function with yield, so calling it runs nothing: return a plain"),
        (with_async, "is a function with async, so calling it runs nothing: return a plain"),
        (nn.Linear(1, 1), "returned a value of type Linear: return a function that runs one"),
        (None, r"^build \(.*test_step.py:\d+\) returned None: return a function that runs one training step"),
        (lambda number: number, r"^the step of build .* takes \(number\) .*missing a required argument: 'number'"),
    ],
)
def test_an_object_that_cannot_be_called_as_a_step_is_named(make_ctx: Any, step: Any, message: str) -> None:
    def build(_ctx: Any) -> Any:
        return step

    with pytest.raises(WorkloadError, match=message):
        step_of(make_ctx(), build, "ddp")


def without_group() -> None:
    dist.destroy_process_group()


def with_another_group() -> None:
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def communicating_without_group() -> None:
    dist.destroy_process_group()
    dist.all_reduce(torch.ones(1))


TOUCHING: dict[Callable[[], object], str] = {
    dist.init_process_group: "calls init_process_group, but the plugin has called it; leave that call out, or give",
    with_another_group: "replaced the process group that the plugin made",
    communicating_without_group: "ended the process group that the plugin made; leave that call out, .*Script.function",
    without_group: "ended the process group that the plugin made",
}


def touching(ctx: RankContext) -> list[str]:
    """What is said of functions that touch the process group, of which the last one is a step, the others build one."""
    said = []
    broken: Any = traceback
    broken.extract_tb = broken.walk_tb = None  # users' code may patch any module
    for function in TOUCHING:
        build: Any = (lambda _ctx: without_group) if function is without_group else lambda _ctx, made=function: made()
        with pytest.raises(WorkloadError) as refused:
            run_launch(ctx, LaunchJob(build, None, Settings(), Plan(warmup=2, steps=2)))
        said.append(str(refused.value))
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    return said


def test_a_step_that_changes_the_process_group_is_refused_at_once(launcher: Launcher) -> None:
    (said,) = launcher.run(touching, world_size=1, backend="gloo", device="cpu", timeout=30).values
    for line, words in zip(said, TOUCHING.values(), strict=True):
        assert re.search(words, line)
        assert "\n" not in line
