"""Ranks with a limit of memory: what does not fit fails early, and the largest batch that fits is found."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import nn

from pytest_ddpperf.errors import RankFailed, WorkloadError
from pytest_ddpperf.launch.faults.exceptions import failed_report
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.run.call.memory_fit import PLAN, search
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob
from pytest_ddpperf.training.loop import probe_launch, run_launch
from pytest_ddpperf.training.memory_limit import limited
from pytest_ddpperf.training.preparing import prepare_launch
from pytest_ddpperf.training.subject import Workload
from pytest_ddpperf.training.trainer import Trainer
from tests.training.workloads import weights_of, workload

MIB = 2**20
ONE_STEP = Plan(warmup=0, steps=1)  # all steps of this workload take the same memory
CPU = torch.device("cpu")


def test_a_probe_runs_the_steps_of_its_plan_alone(make_ctx: Any) -> None:
    done: list[int] = []
    job = LaunchJob(lambda _ctx: lambda: done.append(1), None, Settings(), Plan(warmup=1, steps=2))
    report = probe_launch(make_ctx(), job, None)
    assert (len(done), report.phases, report.held) == (3, None, ())


def in_fp16(*numbers: float, **changes: Any) -> LaunchJob:
    """One step of warm-up and two timed ones on these numbers, in fp16: 1e35 times the scale overflows."""
    subject = weights_of(*numbers, optimizer=torch.optim.AdamW, **changes)
    return LaunchJob(subject, resolve("single"), Settings(precision="fp16"), PLAN)


def test_a_probe_goes_on_until_the_optimizer_has_its_state(make_ctx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In fp16: three overflows, then an update, then the two timed steps, which may overflow or not."""
    steps: list[int] = []
    update = Trainer.update

    def noted(trainer: Trainer) -> None:
        update(trainer)
        steps.append(len(trainer.optimizer.state))

    monkeypatch.setattr(Trainer, "update", noted)
    probe_launch(make_ctx(), in_fp16(1e35, 1e35, 1e35, 1, 1e35, 1e35), None)
    assert steps == [0, 0, 0, 1, 1, 1]
    with pytest.raises(WorkloadError, match=r"^fp16 gradients overflowed in each of the first 25 steps.*bf16"):
        probe_launch(make_ctx(), in_fp16(0, loss=lambda outputs, _: outputs.sqrt().sum()), None)


def test_a_probe_may_compile_in_any_of_its_steps(make_ctx: Any) -> None:
    def build(_ctx: Any) -> Any:
        twice = torch.compile(lambda tensor: tensor * 2, backend="eager", dynamic=False)
        sizes = iter([3, 3, 5])
        return lambda: twice(torch.ones(next(sizes))).sum()

    torch._dynamo.reset()
    assert len(probe_launch(make_ctx(), LaunchJob(build, None, Settings(), PLAN), None).step_times) == 2


class Wide(nn.Module):
    """Makes 8 MiB of each sample, several times over: on the way back, four of them are there at once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        wide = inputs.repeat(1, 2 * MIB)
        return (wide * self.weight).tanh()


def wide_workload(size: int, **changes: Any) -> Workload:
    fields = {
        "model": Wide,
        "batch": lambda: (torch.ones(size, 1), torch.zeros(size)),
        "loss": lambda outputs, _targets: outputs.mean(),
    }
    return workload(**{**fields, "samples_per_step": size, **changes})


def test_the_largest_batch_within_a_limit_is_found_on_ranks(launcher: Launcher) -> None:
    """32 MiB a sample: 2 take 64 MiB, 3 take 96; the limit lies half a sample from either."""
    limit = 80 * MIB

    def probe(size: int) -> Sequence[RankLaunch]:
        job = LaunchJob(wide_workload(size), resolve("ddp"), Settings(), ONE_STEP)
        return launcher.run(probe_launch, job, limit, world_size=2, backend="gloo", device="cpu").values

    found = search(probe, device="cpu", start=2, memory_limit=limit)
    assert found.size == 2
    assert found.peak is not None
    assert 60 * MIB < found.peak < limit
    assert [(trial.size, trial.fits) for trial in found.tried] == [(2, True), (4, False), (3, False)]


def test_a_rank_fails_before_it_fills_the_machine(launcher: Launcher) -> None:
    """4000 samples would take 128 GiB; the first 32 GiB of them are refused."""
    job = LaunchJob(wide_workload(4000), resolve("single"), Settings(), ONE_STEP)
    with pytest.raises(
        RankFailed, match=r"^rank 0 of 1 ran out of memory in forward: MemoryError: .*DefaultCPUAllocator"
    ) as failed:
        launcher.run(probe_launch, job, 64 * MIB, world_size=1, backend="gloo", device="cpu")
    assert failed.value.out_of_memory


def giant(*_: object) -> torch.Tensor:
    return torch.ones(2**34)  # 64 GiB


class GiantBackward(torch.autograd.Function):
    """Takes too much on the way back."""

    @staticmethod
    def forward(_ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(_ctx: Any, *_gradients: Any) -> torch.Tensor:
        return giant()


class GiantOptimizer(torch.optim.SGD):
    """Takes too much in its step."""

    def step(self, closure: Any = None) -> Any:
        giant()
        return super().step(closure)


@pytest.mark.parametrize(
    ("phase", "changed"),
    [
        ("building the model", {"model": giant}),
        ("making the optimizer", {"optimizer": giant}),
        ("loading the first batch", {"batch": giant}),
        ("backward", {"loss": lambda outputs, _targets: cast("Any", GiantBackward).apply(outputs).mean()}),
        ("the optimizer step", {"optimizer": lambda parameters: GiantOptimizer(parameters, lr=0.1)}),
    ],
)
def test_an_out_of_memory_error_names_the_phase_of_training(make_ctx: Any, phase: str, changed: dict[str, Any]) -> None:
    """The limit holds for steps that are timed, and for those that are only counted."""
    training = LaunchJob(wide_workload(1, **changed), resolve("single"), Settings(memory_limit=256 * MIB), ONE_STEP)
    launches = (
        partial(run_launch, make_ctx(), training),
        partial(prepare_launch, make_ctx(), PrepareJob(training, counted=True)),
    )
    for launch in launches:
        with pytest.raises(MemoryError) as failed:
            launch()
        assert failed_report(failed.value, "run").phase == phase


def test_steps_that_take_more_than_the_limit_fail_although_the_kernel_allows_them(make_ctx: Any) -> None:
    """The kernel's limit lies higher, because libraries reserve memory; the peak decides."""
    job = LaunchJob(wide_workload(5), resolve("single"), Settings(memory_limit=80 * MIB), ONE_STEP)
    for launch in (
        partial(run_launch, make_ctx(), job),
        partial(prepare_launch, make_ctx(), PrepareJob(job, timed=True)),
        partial(prepare_launch, make_ctx(), PrepareJob(job, counted=True)),
    ):
        with pytest.raises(MemoryError, match=r"^steps took .* MiB, more than memory_limit=80.0 MiB"):
            launch()


def test_the_limit_holds_within_the_context_only() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(MemoryError, match="can't allocate memory"), limited(CPU, 64 * MIB):
        torch.empty(2**32, dtype=torch.uint8)
    with pytest.raises(MemoryError), limited(CPU, 64 * MIB):
        bytearray(2**32)
    with limited(CPU, 64 * MIB):
        torch.ones(8 * MIB)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_limit_that_is_there_already_is_kept() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with limited(CPU, 64 * MIB):
        inner = resource.getrlimit(resource.RLIMIT_DATA)
        with limited(CPU, 2**40):
            assert resource.getrlimit(resource.RLIMIT_DATA) == inner
        assert resource.getrlimit(resource.RLIMIT_DATA) == inner
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize("text", ["could not create a primitive", "std::bad_alloc", "CUDA out of memory. Tried to ..."])
def test_an_out_of_memory_error_of_a_library_is_a_memory_error(text: str) -> None:
    with pytest.raises(MemoryError, match=text.partition(" ")[0]), limited(CPU, None):
        raise RuntimeError(text + "\nmore")


def test_other_errors_are_not_changed() -> None:
    for error in (
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        WorkloadError("the step is out of memory"),
    ):
        with pytest.raises(type(error)) as raised, limited(CPU, 64 * MIB):
            raise error
        assert raised.value is error


@pytest.mark.gpu
def test_on_cuda_the_caching_allocator_is_limited() -> None:
    device = torch.device("cuda", 0)
    with pytest.raises(MemoryError, match="out of memory"), limited(device, 256 * MIB):
        torch.empty(512 * MIB, dtype=torch.uint8, device=device)
    assert torch.empty(512 * MIB, dtype=torch.uint8, device=device).numel() == 512 * MIB
