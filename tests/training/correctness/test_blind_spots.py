"""What the correctness pass could overlook, or find where it is not, on real ranks."""

from __future__ import annotations

from collections import OrderedDict
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
from pytest_ddpperf.strategies.strategy import Parallel, Strategy
from pytest_ddpperf.training.jobs import VerifyJob
from pytest_ddpperf.training.verification import Leniency, Verification
from tests.training.correctness import verifying
from tests.training.correctness.verifying import verify


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


def residual() -> nn.Module:
    parts = {"stem": nn.Linear(8, 16), "branches": nn.Sequential(Branch(), Branch()), "head": nn.Linear(16, 3)}
    return nn.Sequential(OrderedDict(parts))


def normed() -> nn.Module:
    """Its first bias changes nothing: the gradient of that is nothing but rounding."""
    parts = {"inside": nn.Linear(8, 16), "norm": nn.BatchNorm1d(16), "sigmoid": nn.Sigmoid(), "head": nn.Linear(16, 3)}
    return nn.Sequential(OrderedDict(parts))


class Faint(nn.Module):
    """Gradients of its first layer are below what fp16 can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(8, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(1 + 1e-8 * self.inside(inputs))
        return outputs


def job(strategy: Strategy | str, settings: Settings | None = None, **changes: Any) -> VerifyJob:
    return verifying.job(strategy, settings, **{"model": residual, **changes})


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
AVERAGING = ("ddp", "ddp[comm_hook=bf16]")


def small_gradients(precision: str) -> dict[str, VerifyJob]:
    """Strategies that are wrong for the branches, and right ones."""
    settings = Settings(precision=precision)
    wrong = {how: job(Strategy(treating, part="branches", how=how), settings) for how in TREATED}
    return {**wrong, **{strategy: job(strategy, settings) for strategy in AVERAGING}}


def require_watched(found: dict[str, Verification]) -> None:
    """Gradients of the branches are a millionth of the others, but AdamW makes as much of them."""
    for how in TREATED:
        wrong = found[how].discrepancy
        assert wrong is not None
        assert wrong.quantity == "gradients"
        assert wrong.error > 0.1
        assert wrong.name.startswith("branches.")
        assert wrong.extent is not None
        assert wrong.extent.differing == 10  # 5 in each branch
    for strategy in AVERAGING:
        right = found[strategy]
        assert right.discrepancy is None
        assert right.agreements["gradients"].error < right.agreements["gradients"].tolerance / 4


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


JOBS = {
    **small_gradients("fp32"),
    "faint": job("ddp[comm_hook=fp16]", model=Faint),
    **{f"turned, {how}": job(Strategy(turned, how=how), model=normed) for how in ("averaged", "copied")},
    "still": job(Strategy(treating, part="", how="averaged", exact=0), optimizer=partial(torch.optim.SGD, lr=1e-7)),
    "at first": job(Strategy(treating, part="branches", how="dropped", exact=2)),
    "full": job("naive", model=full_at_second(residual)),
}


@pytest.fixture(scope="module")
def found(launcher: Launcher) -> dict[str, Verification]:
    """What each of the jobs comes to, in one launch."""
    return dict(zip(JOBS, verify(launcher, *JOBS.values()), strict=True))


def test_parts_with_small_gradients_are_watched_as_well(found: dict[str, Verification]) -> None:
    require_watched(found)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_parts_with_small_gradients_are_watched_in_low_precision(launcher: Launcher, precision: str) -> None:
    jobs = small_gradients(precision)
    require_watched(dict(zip(jobs, verify(launcher, *jobs.values()), strict=True)))


def test_gradients_that_fp16_cannot_hold_are_zero(found: dict[str, Verification]) -> None:
    faint = found["faint"].discrepancy
    assert faint is not None
    assert faint.cause.startswith("it vanished: its largest number is ")


def test_a_gradient_that_is_only_rounding_may_differ(found: dict[str, Verification]) -> None:
    right, wrong = found["turned, averaged"], found["turned, copied"]
    assert right.discrepancy is None
    assert right.agreements["gradients"].name == "inside.bias"
    assert right.agreements["gradients"].error > 0
    assert wrong.discrepancy is not None
    assert wrong.discrepancy.name != "inside.bias"


def test_if_the_reference_process_lacks_memory_nothing_is_verified_and_no_rank_waits(
    found: dict[str, Verification],
) -> None:
    assert found["full"].unverified == "the whole model does not fit into the memory of one device"


def test_a_lossy_strategy_needs_a_loss_that_falls(found: dict[str, Verification]) -> None:
    still = found["still"]
    assert still.discrepancy is None
    assert "but in a single process it falls only" in still.unverified
    assert still.leniency == Leniency(precision=None)


def test_first_steps_that_a_lossy_strategy_takes_exactly_are_compared(found: dict[str, Verification]) -> None:
    discrepancy = found["at first"].discrepancy
    assert discrepancy is not None
    assert (discrepancy.quantity, discrepancy.step) == ("gradients", 1)


def test_a_looser_tolerance_is_reported(found: dict[str, Verification]) -> None:
    assert found["ddp"].leniency is None
    assert found["ddp[comm_hook=bf16]"].leniency == Leniency(precision="bf16")


HOOKS = {
    "powersgd": Settings(),
    "powersgd,static_graph=true": Settings(accumulation_steps=2),  # its first step is synchronised twice
    "powersgd,powersgd_start=4": Settings(accumulation_steps=2, no_sync=False),
    "post_local_sgd,local_sgd_start=2": Settings(accumulation_steps=2),
}


def test_communication_hooks_with_exact_first_steps_pass(launcher: Launcher) -> None:
    hooks = [hook for hook in HOOKS if not (torch.cuda.is_available() and "powersgd" in hook)]  # it fails on the CPU
    jobs = [job(f"ddp[comm_hook={hook}]", HOOKS[hook], model=normed) for hook in hooks]
    for found in verify(launcher, *jobs):
        assert (found.discrepancy, found.unverified) == (None, "")
        assert found.agreements["gradients"].error < 1e-6
        assert found.agreements["losses"].tolerance == 0.8
        assert found.leniency is not None
        assert found.leniency.precision is None
        assert found.leniency.exact_steps > 0
