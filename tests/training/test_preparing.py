"""What one preparing launch finds out is what launches of their own find out."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.rank import seed_as_at_the_start
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.records.ranks import merged
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training import preparing
from pytest_ddpperf.training.correctness.verifier import verify_launch
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob, VerifyJob
from pytest_ddpperf.training.preparing import prepare_launch
from pytest_ddpperf.training.subject import Workload
from tests.training import workloads


def net() -> nn.Module:
    """Its masks and its batches are random, so that what differs in random numbers differs in results."""
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))


def batch() -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.random.normal(size=(16, 8))).float(), torch.randint(3, (16,))  # noqa: NPY002


def workload(**changes: Any) -> Workload:
    fields = {"model": net, "batch": batch, "loss": nn.functional.cross_entropy, "samples_per_step": 16}
    return workloads.workload(**{**fields, **changes})


def all_of_it(subject: Workload, strategy: str, settings: Settings, plan: Plan) -> PrepareJob:
    training = LaunchJob(subject, resolve(strategy), settings, plan)
    verified = VerifyJob(subject, resolve(strategy), settings)
    return PrepareJob(training, timed=True, counted=True, verified=verified)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        pytest.param("ddp", Settings(), id="ddp"),
        pytest.param(
            "ddp[comm_hook=post_local_sgd,local_sgd_period=4]",
            Settings(),
            id="a period of four steps",
            marks=pytest.mark.slow,
        ),
        pytest.param("fsdp2", Settings(clip_grad_norm=0.05), id="fsdp2", marks=pytest.mark.slow),
        pytest.param(
            "ddp", Settings(compile="model", compile_backend="eager"), id="compiled model", marks=pytest.mark.slow
        ),
    ],
)
def test_counts_and_verification_are_the_same_as_in_separate_launches(
    launcher: Launcher, strategy: str, settings: Settings
) -> None:
    job = all_of_it(workload(), strategy, settings, Plan(warmup=5, steps=5))
    assert job.verified is not None
    on: dict[str, Any] = {"world_size": 2, "backend": "gloo", "device": "cpu", "timeout": 100}
    found = launcher.run(prepare_launch, job, **on).values
    counted = launcher.run(prepare_launch, PrepareJob(job.training, counted=True), **on).values
    verified = launcher.run(verify_launch, job.verified, **on).values
    assert merged([one.counts for one in found if one.counts]) == merged([one.counts for one in counted if one.counts])
    assert [one.verification for one in found] == list(verified)
    for rank, one in enumerate(found):
        assert one.timed is not None
        assert (one.timed.rank, one.timed.samples_per_step) == (rank, 16 * settings.accumulation_steps)
        assert one.timed.taken
        assert "strided_gradients" not in {remark.code for remark in one.remarks}


def test_verification_finds_the_random_numbers_of_a_fresh_process(make_ctx: Callable[..., Any]) -> None:
    drawn: list[tuple[float, float, float]] = []

    def drawing() -> tuple[Tensor, Tensor]:
        drawn.append((float(np.random.random()), random.random(), float(torch.rand(()))))  # noqa: NPY002, S311
        return batch()

    job = all_of_it(workload(batch=drawing), "single", Settings(), Plan(warmup=2, steps=5))
    seed_as_at_the_start()
    prepare_launch(make_ctx(), PrepareJob(job.training, verified=job.verified))
    alone = drawn[:]
    drawn.clear()
    prepare_launch(make_ctx(), job)
    assert len(drawn) == len(alone) + 1  # of the steps that are timed
    assert drawn[1:] == alone


def test_code_compiled_for_the_steps_is_reset_before_verification(
    make_ctx: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a batch of another size, which verification has, would be compiled as one of any size."""
    resets: list[None] = []
    monkeypatch.setattr("torch.compiler.reset", lambda: resets.append(None))
    for graphs in (0, 2):
        monkeypatch.setattr("pytest_ddpperf.training.preparing.compiled_graphs", lambda graphs=graphs: graphs)
        prepare_launch(make_ctx(), all_of_it(workload(), "single", Settings(), Plan(warmup=2, steps=5)))
    assert len(resets) == 1


class Steps:
    """A step of the user's that counts its calls and tells when it was closed."""

    def __init__(self, losses: Callable[[int], Any] = float) -> None:
        self.calls = 0
        self.closed_after: list[int] = []
        self._losses = losses

    def __call__(self) -> Any:
        self.calls += 1
        return self._losses(self.calls)

    def close(self) -> None:
        self.closed_after.append(self.calls)


@pytest.mark.parametrize(
    ("warmup", "steps", "timed", "counted", "calls"),
    [
        pytest.param(5, 5, True, False, 10, id="timed"),
        pytest.param(5, 5, False, True, 30, id="counted: as where others are timed before"),
        pytest.param(5, 5, True, True, 39, id="both: 20 more steps are looked at, and objects are counted in 9 more"),
        pytest.param(0, 5, False, True, 25, id="also without a warm-up"),
        pytest.param(0, 1, True, True, 24, id="as far as they go"),
        pytest.param(0, 1, False, True, 24, id="counting has a warm-up of its own"),
    ],
)
def test_one_step_is_built_and_goes_on(
    make_ctx: Callable[..., Any], warmup: int, steps: int, calls: int, *, timed: bool, counted: bool
) -> None:
    built: list[Steps] = []

    def build(_ctx: object) -> Steps:
        built.append(Steps())
        return built[-1]

    training = LaunchJob(build, None, Settings(), Plan(warmup=warmup, steps=steps))
    found = prepare_launch(make_ctx(), PrepareJob(training, timed=timed, counted=counted))
    (step,) = built
    assert step.closed_after == [calls]
    assert (found.timed is not None, found.counts is not None, found.verification) == (timed, counted, None)
    if found.timed is not None:
        assert len(found.timed.step_times) == steps
        assert found.timed.loss == warmup + steps


@pytest.mark.parametrize(("last", "known"), [(39, True), (31, False)])
def test_a_training_that_ends_after_the_counted_steps_is_counted_without_objects(
    make_ctx: Callable[..., Any], last: int, *, known: bool
) -> None:
    losses = iter(map(float, range(last)))  # then StopIteration ends the training
    step = Steps(lambda _calls: next(losses))
    training = LaunchJob(lambda _ctx: step, None, Settings(), Plan(warmup=5, steps=5))
    found = prepare_launch(make_ctx(), PrepareJob(training, timed=True, counted=True)).counts
    assert found is not None
    assert ({"python_objects", "graphs_kept"} <= set(found.totals)) is known
    assert {"operators", "collective_calls"} <= set(found.totals)


@pytest.mark.parametrize(("warmup", "again"), [(0, 0), (1, 0), (3, 2)])
def test_recompilations_are_counted_only_during_the_planned_warm_up(
    make_ctx: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, warmup: int, again: int
) -> None:
    """Each of the first 20 steps compiles a graph; on CUDA a warm-up goes on for as long as clocks need."""
    step = Steps()
    monkeypatch.setattr("pytest_ddpperf.instruments.torch_internals.compiled_graphs", lambda: min(step.calls, 20))
    monkeypatch.setattr(preparing, "compiled_graphs", lambda: min(step.calls, 20))
    monkeypatch.setattr("pytest_ddpperf.training.timing.warmup_seconds", lambda *_: 1.0)
    clock = iter(range(100))
    monkeypatch.setattr(
        "pytest_ddpperf.training.timing.time", SimpleNamespace(monotonic=lambda: 0.1 * next(clock), process_time=int)
    )
    job = LaunchJob(lambda _ctx: step, None, Settings(), Plan(warmup=warmup, steps=5))
    found = prepare_launch(make_ctx(), PrepareJob(job, timed=True, counted=True))
    assert found.counts is not None
    assert found.counts.totals["recompiles"] == again


def test_only_work_that_a_timed_launch_does_not_do_is_subtracted(
    make_ctx: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock is a second after the one before."""
    clock = iter(range(100))
    monkeypatch.setattr(preparing, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    job = all_of_it(workload(), "single", Settings(), Plan(warmup=2, steps=5))
    found = prepare_launch(make_ctx(), job)
    assert found.timed is not None
    assert (found.timed.worked, found.counting, found.verifying) == (1, 1, 1)
    alone = prepare_launch(make_ctx(), PrepareJob(job.training, timed=True, counted=True))
    assert (alone.counting, alone.verifying) == (1, 0)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        pytest.param(2, "loss is nan at warm-up step 2 on rank 0", id="in the warm-up"),
        pytest.param(7, "loss is nan at timed step 5 of 5 on rank 0", id="in the timed steps"),
    ],
)
def test_a_loss_that_is_no_number_has_the_same_message_as_in_any_launch(
    make_ctx: Callable[..., Any], bad: int, message: str
) -> None:
    step = Steps(lambda call: math.nan if call == bad else 1.0)
    job = PrepareJob(LaunchJob(lambda _ctx: step, None, Settings(), Plan(warmup=2, steps=5)), timed=True, counted=True)
    with pytest.raises(WorkloadError, match=message):
        prepare_launch(make_ctx(), job)
    assert step.closed_after == [bad]


def test_the_step_is_closed_if_counting_fails(make_ctx: Callable[..., Any]) -> None:
    step = Steps(lambda call: 1 / (8 - call))
    job = PrepareJob(LaunchJob(lambda _ctx: step, None, Settings(), Plan(warmup=2, steps=5)), timed=True, counted=True)
    with pytest.raises(ZeroDivisionError):
        prepare_launch(make_ctx(), job)
    assert step.closed_after == [8]


@pytest.mark.parametrize(
    ("backend", "ranks", "size", "told"),
    [
        ("nccl", 2, 64 * 2**20, True),
        ("nccl", 2, 2**30, False),
        ("nccl", 2, None, False),
        ("nccl", 1, 64 * 2**20, False),
        ("gloo", 2, 64 * 2**20, False),
    ],
)
def test_a_small_shared_memory_is_reported_if_ranks_use_nccl(
    monkeypatch: pytest.MonkeyPatch, backend: str, ranks: int, size: int | None, *, told: bool
) -> None:
    monkeypatch.setattr(preparing, "shared_memory", lambda: size)
    ctx: Any = SimpleNamespace(backend=backend, local_world_size=ranks)
    expected = [Finding("small_shared_memory", {"size": size})] if told else []
    assert preparing.small_shared_memory(ctx) == expected


def test_threads_that_steps_leave_behind_are_reported(make_ctx: Callable[..., Any]) -> None:
    """Each of five timed steps leaves one."""
    end = threading.Event()

    def step() -> None:
        threading.Thread(target=end.wait, daemon=True).start()

    job = PrepareJob(LaunchJob(lambda _ctx: step, None, Settings(), Plan(warmup=2, steps=5)), timed=True)
    remarks = prepare_launch(make_ctx(), job).remarks
    end.set()
    assert Finding("left_by_steps", {"processes": 0, "threads": 5}) in remarks


class Turned(nn.Module):
    """Its weight lies otherwise in memory than it did when DDP was made."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.weight.is_contiguous():
            self.weight.data = self.weight.data.t().contiguous().t()
        return inputs @ self.weight.t()


def test_gradients_with_other_strides_than_their_buckets_are_reported(launcher: Launcher) -> None:
    training = LaunchJob(workload(model=Turned), resolve("ddp"), Settings(), Plan(warmup=2, steps=2))
    job = PrepareJob(training, timed=True, counted=True)
    first, _ = launcher.run(prepare_launch, job, world_size=2, device="cpu", backend="gloo").values
    assert Finding("strided_gradients", {"shape": "[3, 8]"}) in first.remarks


def test_ranks_do_not_warn_of_hooks_that_count_compiled_code(launcher: Launcher) -> None:
    def build(_ctx: Any) -> Callable[[], None]:
        model = torch.compile(nn.Linear(8, 3), backend="eager")
        return lambda: model(torch.ones(2, 8)).sum().backward()

    job = PrepareJob(LaunchJob(build, None, Settings(), Plan(warmup=2, steps=2)), counted=True)
    launched = launcher.run(prepare_launch, job, world_size=1, device="cpu", backend="gloo")
    assert launched.values[0].counts is not None
    assert launched.values[0].counts.totals["compiled_operators"] > 0
    assert "hooks" not in str(launched.sections)
