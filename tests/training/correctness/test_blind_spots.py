"""What the correctness pass could overlook, or find where it is not, on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.correctness.verifier import verify_launch
from pytest_ddpperf.training.jobs import VerifyJob
from pytest_ddpperf.training.verification import Leniency, Verification
from pytest_ddpperf.training.workload import Workload

RANKS = 2
PRECISIONS = ["fp32", *(pytest.param(each, marks=pytest.mark.slow) for each in ("bf16", "fp16"))]
FULL = "the whole model does not fit on one device"


class Branch(nn.Module):
    """A residual branch of very small scale, as in ConvNeXt and CaiT."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.inside = nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.full((16,), 1e-6))

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = hidden + self.scale * nn.functional.gelu(self.inside(self.norm(hidden)))
        return found


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 16)
        self.branches = nn.Sequential(Branch(), Branch())
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.branches(self.stem(inputs)))
        return outputs


class Normed(nn.Module):
    """Its first bias changes nothing: the gradient of that is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.norm(self.inside(inputs)).sigmoid())
        return outputs


class Faint(nn.Module):
    """Gradients of its first layer are below what fp16 can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(1 + 1e-8 * self.inside(inputs))
        return outputs


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 8), torch.randint(3, (16,))


ADAMW = partial(torch.optim.AdamW, lr=1e-2)


def job(strategy: Strategy | str, settings: Settings | None = None, **changes: Any) -> VerifyJob:
    fields: dict[str, Any] = {
        "model": Residual,
        "batch": batch,
        "loss": nn.functional.cross_entropy,
        "optimizer": ADAMW,
        "samples_per_step": 16,
    }
    return VerifyJob(Workload(**(fields | changes)), resolve(strategy), settings or Settings())


def verify_all(ctx: RankContext, jobs: list[VerifyJob]) -> list[Verification]:
    return [verify_launch(ctx, job) for job in jobs]


def verify(launcher: Launcher, *jobs: VerifyJob) -> list[Verification]:
    """What each job comes to; all ranks have to say the same of it."""
    first, second = launcher.run(
        verify_all, list(jobs), world_size=RANKS, backend="gloo", device="cpu", timeout=100
    ).values
    assert first == second
    return list(first)


# What can be done to a gradient.


def dropped(gradient: Tensor) -> None:
    gradient.zero_()


def summed(gradient: Tensor) -> None:
    dist.all_reduce(gradient)


def copied(gradient: Tensor) -> None:
    dist.broadcast(gradient, src=0)


def averaged(gradient: Tensor) -> None:
    dist.all_reduce(gradient)
    gradient.div_(dist.get_world_size())


WAYS = {"dropped": dropped, "summed": summed, "copied": copied, "averaged": averaged}


def treating(module: nn.Module, _ctx: RankContext, *, part: str, how: str, exact: int = -1) -> Parallel:
    """A strategy that does so with the gradients of a part, and averages the others; with ``exact`` a lossy one."""
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)

    def synchronise() -> None:
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None
            (WAYS[how] if name.startswith(part) else averaged)(parameter.grad)

    return Parallel(module, synchronise, lossy=exact >= 0, exact_steps=max(exact, 0))


class Turned(nn.Module):
    """Calls a module with the samples in another order: the same, but for how sums are rounded."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(inputs.flip(0)).flip(0)
        return outputs


def turned(module: nn.Module, ctx: RankContext, *, how: str) -> Parallel:
    return Parallel(Turned(module), treating(module, ctx, part="", how=how).synchronise)


TREATED = ("dropped", "summed", "copied")
AVERAGING = ("naive", "ddp", "ddp[comm_hook=bf16]")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_parts_with_small_gradients_are_watched_as_well(launcher: Launcher, precision: str) -> None:
    """Those of the branches are a millionth of the others, but AdamW makes as much of them."""
    settings = Settings(precision=precision)
    jobs = [job(Strategy(treating, part="branches", how=how), settings) for how in TREATED]
    found = verify(launcher, *jobs, *(job(strategy, settings) for strategy in AVERAGING))
    for wrong in found[: len(jobs)]:
        assert wrong.discrepancy is not None
        assert wrong.discrepancy.quantity == "gradients"
        assert wrong.discrepancy.error > 0.1
        assert wrong.discrepancy.name.startswith("branches.")
        assert wrong.discrepancy.extent is not None
        assert wrong.discrepancy.extent.differing == 10  # 5 in each branch
    for right in found[len(jobs) :]:
        assert right.discrepancy is None
        assert right.agreements["gradients"].error < right.agreements["gradients"].tolerance / 4


JOBS = {
    "faint": job("ddp[comm_hook=fp16]", model=Faint),
    **{f"turned, {how}": job(Strategy(turned, how=how), model=Normed) for how in ("averaged", "copied")},
    "still": job(Strategy(treating, part="", how="averaged", exact=0), optimizer=partial(torch.optim.SGD, lr=1e-7)),
    **{f"at first, {how}": job(Strategy(treating, part="branches", how=how, exact=2)) for how in TREATED},
    "exact": job("ddp"),
    "rounded": job("ddp[comm_hook=bf16]"),
}


@pytest.fixture(scope="module")
def found(launcher: Launcher) -> dict[str, Verification]:
    """What each of the jobs comes to, in one launch."""
    return dict(zip(JOBS, verify(launcher, *JOBS.values()), strict=True))


def test_gradients_that_fp16_cannot_hold_are_lost_indeed(found: dict[str, Verification]) -> None:
    faint = found["faint"].discrepancy
    assert faint is not None
    assert faint.cause.startswith("it vanished: its largest number is ")


def test_a_gradient_that_is_nothing_but_rounding_may_be_another(found: dict[str, Verification]) -> None:
    right, wrong = found["turned, averaged"], found["turned, copied"]
    assert right.discrepancy is None
    assert right.agreements["gradients"].name == "inside.bias"
    assert right.agreements["gradients"].error > 0
    assert wrong.discrepancy is not None
    assert wrong.discrepancy.name != "inside.bias"


def test_a_lossy_strategy_needs_a_loss_that_falls(found: dict[str, Verification]) -> None:
    still = found["still"]
    assert still.discrepancy is None
    assert still.unverified.startswith("the loss of a single process hardly falls in 20 steps")
    assert still.leniency == Leniency(precision=None)


def test_first_steps_that_a_lossy_strategy_takes_exactly_are_compared(found: dict[str, Verification]) -> None:
    for how in TREATED:
        discrepancy = found[f"at first, {how}"].discrepancy
        assert discrepancy is not None
        assert (discrepancy.quantity, discrepancy.step) == ("gradients", 1)


def test_a_looser_tolerance_is_told(found: dict[str, Verification]) -> None:
    assert found["exact"].leniency is None
    assert found["rounded"].leniency == Leniency(precision="bf16")


HOOKS = {
    "powersgd": Settings(),
    "powersgd,static_graph=true": Settings(accumulation_steps=2),  # its first step is synchronised twice
    "powersgd,powersgd_start=4": Settings(accumulation_steps=2, no_sync=False),
    "post_local_sgd,local_sgd_start=2": Settings(accumulation_steps=2),
}
RARE_HOOKS = ("powersgd,static_graph=true", "powersgd,powersgd_start=4")


@pytest.mark.parametrize(
    "hook", [pytest.param(hook, marks=pytest.mark.slow) if hook in RARE_HOOKS else hook for hook in HOOKS]
)
def test_hooks_that_begin_exactly_pass(launcher: Launcher, hook: str) -> None:
    if torch.cuda.is_available() and "powersgd" in hook:
        pytest.skip("torch's PowerSGD fails on the CPU where there is a GPU")
    (found,) = verify(launcher, job(f"ddp[comm_hook={hook}]", HOOKS[hook], model=Normed))
    assert found.discrepancy is None
    assert not found.unverified
    assert found.agreements["gradients"].error < 1e-6
    assert found.agreements["losses"].tolerance == 0.8
    assert found.leniency is not None
    assert found.leniency.precision is None
    assert found.leniency.exact_steps > 0


def full_at_second(make: Callable[..., Any]) -> Callable[..., Any]:
    """A factory that makes one thing: a second one, that of the single process on rank 0, does not fit."""
    made = 0

    def factory(*args: Any) -> Any:
        nonlocal made
        made += 1
        if made > 1:
            raise torch.OutOfMemoryError
        return make(*args)

    return factory


class Filling(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        raise torch.OutOfMemoryError


def filling_at_second(parameters: Any, made: list[object]) -> torch.optim.Optimizer:
    made.append(None)
    return (torch.optim.SGD if len(made) == 1 else Filling)(parameters, lr=0.1)


def verify_with_little_memory(ctx: RankContext) -> list[Verification]:
    return [
        verify_launch(ctx, job("naive", model=full_at_second(Residual))),
        verify_launch(ctx, job("naive", optimizer=full_at_second(ADAMW))),
        verify_launch(ctx, job("naive", optimizer=partial(filling_at_second, made=[]))),
    ]


def test_a_single_process_without_room_cannot_be_verified_with(launcher: Launcher) -> None:
    """And leaves no rank waiting: for its model, its optimizer, and what that keeps from its first step on."""
    values = launcher.run(verify_with_little_memory, world_size=RANKS, backend="gloo", device="cpu", timeout=100).values
    assert [[found.unverified for found in rank] for rank in values] == [[FULL] * 3] * RANKS
