"""The correctness pass on real ranks: what is right passes, and every way to be wrong is found and named."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from pytest_ddpperf.strategies.table import STRATEGIES
from pytest_ddpperf.training.jobs import VerifyJob
from pytest_ddpperf.training.verification import discrepancy_text
from tests.factories import runnable
from tests.strategies.conftest import GPU, ON_GPU, Placement
from tests.training.correctness import verifying
from tests.training.correctness.verifying import CPU, verify

ALONE_ON_GPU, PAIR_ON_GPU = ON_GPU

anywhere = pytest.mark.parametrize("placement", [pytest.param(CPU, id="cpu"), *ON_GPU])
in_a_pair = pytest.mark.parametrize("placement", [pytest.param(CPU, id="cpu"), PAIR_ON_GPU])  # what takes two ranks


class Net(nn.Module):
    """Has what trips a comparison up.

    A tied weight, a frozen one, dropout, a BatchNorm, a bias whose gradient is nothing but rounding (in front of that),
    and buffers of all kinds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tied = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.tied.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(requires_grad=False)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(8, 3)
        self.register_buffer("mask", torch.tensor([[True] * 7 + [False]]))
        self.register_buffer("scale", torch.ones(8), persistent=False)
        self.register_buffer("hidden", torch.tensor([0.0, -torch.inf]))

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.norm(self.again(torch.tanh(self.tied(inputs))))
        found = self.frozen(self.dropout(torch.tanh(found)) * self.mask * self.scale)
        outputs: Tensor = self.head(torch.tanh(found))
        return outputs


def plain() -> nn.Module:
    """The least that can be trained, and a buffer."""
    parts = {"inside": nn.Linear(8, 8), "tanh": nn.Tanh(), "head": nn.Linear(8, 3)}
    model = nn.Sequential(OrderedDict(parts))
    model.register_buffer("seen", torch.zeros(2))
    return model


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def job(strategy: Strategy | str, settings: Settings | None = None, **changes: Any) -> VerifyJob:
    return verifying.job(strategy, settings, **{"model": Net, **changes})


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


PASSES: dict[str, tuple[Settings, dict[str, Any]]] = {
    "fp32": (Settings(), {"optimizer": SGD, "scheduler": halving}),
    "fp32, in 4": (Settings(accumulation_steps=4), {}),
    "bf16, in 2": (Settings(precision="bf16", accumulation_steps=2), {}),
    "fp16, in 2": (Settings(precision="fp16", accumulation_steps=2, lr_warmup_steps=3), {"scheduler": halving}),
    "synchronised each time": (Settings(accumulation_steps=2, no_sync=False), {"optimizer": SGD}),
    "all there is": (
        Settings(clip_grad_norm=0.05, lr_warmup_steps="warmup", clip_steps=2, activation_checkpointing=True),
        {"optimizer": SGD},
    ),
}


@pytest.mark.slow
@anywhere
@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - {"single"}))
def test_strategies_of_the_table_pass(launcher: Launcher, strategy: str, placement: Placement) -> None:
    """By a wide margin on the CPU; a GPU's kernels may round otherwise where a strategy lays tensors out otherwise."""
    jobs = [job(strategy, settings, **changes) for settings, changes in PASSES.values()]
    margin = 4 if placement.device == "cpu" else 1
    for name, found in zip(PASSES, verify(launcher, *jobs, on=placement), strict=True):
        assert not found.unverified
        assert found.discrepancy is None, f"{name}: {discrepancy_text(found.discrepancy)}"
        compared = {"start parameters", "start buffers", "losses", "gradients", "parameters"}
        assert compared | ({"clipped gradients"} if name == "all there is" else set()) == found.agreements.keys()
        for agreement in found.agreements.values():
            assert agreement.error < agreement.tolerance / margin


def deep() -> nn.Module:
    """Blocks whose sizes no number of ranks divides, in a child with the name that DDP gives to what it wraps."""
    blocks = (nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 7)) for _ in range(3))
    return nn.Sequential(OrderedDict(module=nn.Sequential(nn.Linear(8, 7), *blocks, nn.Linear(7, 3))))


OPTIONS = runnable(
    (
        "naive",
        "ddp[bucket_cap_mb=0.0005]",
        "ddp[static_graph=true]",
        "ddp[gradient_as_bucket_view=true]",
        "ddp[broadcast_buffers=false]",
        "zero1[parameters_as_bucket_view=true]",
        "zero1[bucket_cap_mb=0.0005,gradient_as_bucket_view=true]",
        "fsdp1[use_orig_params=false]",
        "fsdp1[sharding=SHARD_GRAD_OP]",
        "fsdp1[sharding=SHARD_GRAD_OP,use_orig_params=false]",
        "fsdp1[sharding=NO_SHARD]",
        "fsdp1[sharding=NO_SHARD,use_orig_params=false]",
        "fsdp1[param_dtype=fp32,reduce_dtype=fp32]",
        "fsdp2[reshard_after_forward=false]",
        "fsdp2[param_dtype=fp32,reduce_dtype=fp32]",
    )
)
COPIES = runnable(("fsdp1[sharding=HYBRID_SHARD,replicas=2]", "fsdp2[replicas=2]", "fsdp2[replicas=4]"))
OFFLOADING = ("fsdp1[cpu_offload=true]", "fsdp2[cpu_offload=true]")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategies", "placement"),
    [
        pytest.param(OPTIONS, CPU.of(3), id="uneven"),
        pytest.param(COPIES, CPU.of(4), id="copies"),
        pytest.param((*OPTIONS, *OFFLOADING), *ALONE_ON_GPU.values, marks=GPU, id="alone on a GPU"),
        pytest.param((*OPTIONS, *OFFLOADING, *COPIES[1:2]), *PAIR_ON_GPU.values, marks=GPU, id="on a GPU"),
    ],
)
@pytest.mark.parametrize("way", ["fp32, in 4", "synchronised each time", "all there is"])
def test_options_of_strategies_pass(launcher: Launcher, strategies: list[str], placement: Placement, way: str) -> None:
    settings, changes = PASSES[way]
    jobs = [job(strategy, settings, model=deep, **changes) for strategy in strategies]
    for strategy, found in zip(strategies, verify(launcher, *jobs, on=placement), strict=True):
        assert (found.unverified, found.discrepancy) == ("", None), strategy
        assert all(agreement.error < agreement.tolerance for agreement in found.agreements.values())


@pytest.mark.slow
@pytest.mark.parametrize("placement", [pytest.param(CPU.of(1), id="cpu"), ALONE_ON_GPU])
def test_one_rank_passes_however_it_is_compiled(launcher: Launcher, placement: Placement) -> None:
    jobs = [
        job("single"),
        job("single", Settings(precision="fp16", activation_checkpointing=True, accumulation_steps=2)),
        *(job("single", Settings(compile=how, compile_backend="eager")) for how in ("model", "step")),
    ]
    assert [found.discrepancy for found in verify(launcher, *jobs, on=placement)] == [None] * 4


@pytest.mark.slow
@anywhere
def test_a_strategy_in_another_type_is_compared_with_a_process_in_the_same_type(
    launcher: Launcher, placement: Placement
) -> None:
    """To the last bit on the CPU; a GPU's kernels may round otherwise."""
    jobs = [
        job(f"{strategy}[param_dtype={narrow},reduce_dtype=fp32]", Settings(precision=precision), model=plain)
        for strategy in runnable(("fsdp1", "fsdp2"))
        for narrow, precision in (("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"))
    ]
    for found in verify(launcher, *jobs, on=placement):
        assert not found.unverified
        assert found.discrepancy is None
        if placement == CPU:
            assert found.agreements["losses"].error < 1e-6
            assert found.agreements["gradients"].error < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("placement", ON_GPU)
def test_tf32_passes_if_there_is_a_gpu(launcher: Launcher, placement: Placement) -> None:
    settings = Settings(precision="tf32", accumulation_steps=2)
    for found in verify(launcher, *(job(strategy, settings) for strategy in ("ddp", "fsdp2")), on=placement):
        assert (found.discrepancy, found.unverified) == (None, "")


def part_of(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return SGD(list(parameters)[::2])


class SparselyEmbedded(nn.Module):
    """Its embedding has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.embedding(inputs.abs().sum(dim=-1).long() % 8))
        return outputs


@pytest.mark.slow
def test_the_optimizer_may_leave_parameters_untrained_and_gradients_may_be_sparse(launcher: Launcher) -> None:
    """Gradients of parameters that are not trained are those of one step, and count in the norm, as the others."""
    strategies = runnable(["naive", "bucketed", "ddp[gradient_as_bucket_view=true]", "zero1", "fsdp1", "fsdp2"])
    jobs = [job(name, Settings(clip_grad_norm=0.05), optimizer=part_of, model=plain) for name in strategies]
    sparse = job("ddp", model=SparselyEmbedded, optimizer=partial(torch.optim.SGD, lr=0.1))
    for found in verify(launcher, *jobs, sparse):
        assert (found.discrepancy, found.unverified) == (None, "")


# Strategies that are wrong, each in a way of its own.


@dataclass
class Wrong:
    """A strategy to make mistakes in: it averages, and all ranks begin with the same, as they should."""

    module: nn.Module
    ctx: RankContext

    def __post_init__(self) -> None:
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            dist.broadcast(tensor.detach(), src=0)

    @property
    def trained(self) -> list[nn.Parameter]:
        return list(self.module.parameters())

    def average(self, parameters: list[nn.Parameter] | None = None, divisor: float | None = None) -> None:
        for parameter in self.trained if parameters is None else parameters:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(divisor or self.ctx.world_size)


def unsynchronised(module: nn.Module, ctx: RankContext) -> Parallel:
    return Parallel(Wrong(module, ctx).module)


def one_left_out(module: nn.Module, ctx: RankContext) -> Parallel:
    wrong = Wrong(module, ctx)
    return Parallel(module, lambda: wrong.average(wrong.trained[:-1]))


def first_micro_batch_only(module: nn.Module, ctx: RankContext) -> Parallel:
    """Synchronises as soon as there is a gradient, and never again in this step."""
    wrong = Wrong(module, ctx)
    done: set[nn.Parameter] = set()

    def hook(parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        if parameter not in done:
            done.add(parameter)
            wrong.average([parameter])

    for parameter in wrong.trained:
        parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]  # torch's is not annotated
    return Parallel(module, done.clear)


def before_accumulation(module: nn.Module, ctx: RankContext) -> Parallel:
    """Tensor.register_hook sees the gradient of this backward alone, not what it will be added to."""
    wrong = Wrong(module, ctx)
    quiet = False

    def hook(gradient: Tensor) -> Tensor:
        if quiet:
            return gradient
        total = gradient.clone()
        dist.all_reduce(total)
        return total.div_(ctx.world_size)

    @contextmanager
    def no_sync() -> Iterator[None]:
        nonlocal quiet
        quiet = True
        yield
        quiet = False

    for parameter in wrong.trained:
        parameter.register_hook(hook)  # type: ignore[no-untyped-call]  # the same
    return Parallel(module, no_sync=no_sync)


def not_finite(module: nn.Module, ctx: RankContext) -> Parallel:
    wrong = Wrong(module, ctx)

    def synchronise() -> None:
        wrong.average()
        if ctx.rank == 1:
            wrong.trained[0].grad = torch.full_like(wrong.trained[0], torch.nan)

    return Parallel(module, synchronise)


def no_parameters_sent(module: nn.Module, ctx: RankContext) -> Parallel:
    for buffer in module.buffers():
        dist.broadcast(buffer, src=0)
    return Parallel(module)


def no_buffers_sent(module: nn.Module, ctx: RankContext) -> Parallel:
    for parameter in module.parameters():
        dist.broadcast(parameter.detach(), src=0)
    return Parallel(module)


def half_updated(module: nn.Module, ctx: RankContext) -> Parallel:
    """Each rank updates its own half of the parameters, and sends it to nobody."""
    wrong = Wrong(module, ctx)

    def make_optimizer(factory: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = factory(iter(wrong.trained[ctx.rank :: ctx.world_size]))
        return optimizer

    return Parallel(module, wrong.average, make_optimizer=make_optimizer)


def at_one_rate(module: nn.Module, ctx: RankContext) -> Parallel:
    """Its optimizer keeps the learning rate of its first step."""
    rates: list[float] = []

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.param_groups[0]["lr"] = rates[0]

    def make_optimizer(factory: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = factory(module.parameters())
        optimizer.register_step_pre_hook(keep)
        return optimizer

    return Parallel(module, Wrong(module, ctx).average, make_optimizer=make_optimizer)


def clipped_to_half(module: nn.Module, ctx: RankContext) -> Parallel:
    """Clips what is half as large as it should be: as to a norm of this rank's shard."""
    wrong = Wrong(module, ctx)

    def clip(max_norm: float) -> Tensor:
        return nn.utils.clip_grad_norm_(module.parameters(), max_norm / 2)

    return Parallel(module, wrong.average, clip_grad_norm=clip)


class Louder(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(1.5 * inputs)
        return outputs


def other_losses(module: nn.Module, ctx: RankContext) -> Parallel:
    return Parallel(Louder(module), Wrong(module, ctx).average)


def lossy_unsynchronised(module: nn.Module, ctx: RankContext) -> Parallel:
    return replace(unsynchronised(module, ctx), lossy=True)


def lossy_uphill(module: nn.Module, ctx: RankContext) -> Parallel:
    return Parallel(module, partial(Wrong(module, ctx).average, divisor=-2), lossy=True)


def lossy_and_fine(module: nn.Module, ctx: RankContext) -> Parallel:
    """Sends the signs of the gradients only, times their mean size."""
    wrong = Wrong(module, ctx)

    def synchronise() -> None:
        for parameter in wrong.trained:
            assert parameter.grad is not None
            parameter.grad = parameter.grad.sign() * parameter.grad.abs().mean()
        wrong.average()

    return Parallel(module, synchronise, lossy=True)


GRADIENTS = "gradients differ from a single process: "
WHERE = r"[a-z.]+ on rank {rank} at step {step}, relative error [0-9.e+]+, tolerance 0\.001; likely cause: "
AT_ONCE = GRADIENTS + WHERE.format(rank="[01]", step=1)
ALL = "; 4 of 4 parameters differ, on 2 of 2 ranks"
IN_2 = Settings(accumulation_steps=2)

MISTAKES: dict[Callable[..., Parallel], tuple[Settings, str]] = {
    unsynchronised: (Settings(), AT_ONCE + "the rank kept its own gradient, which was not synchronised" + ALL),
    one_left_out: (
        Settings(),
        GRADIENTS
        + r"head\.bias on rank [01] at step 1, .*: the rank kept its own gradient, which was not synchronised; "
        + "1 of 4 parameters differ, on 2 of 2 ranks",
    ),
    first_micro_batch_only: (
        IN_2,
        AT_ONCE
        + "only the first micro-batch's gradient was synchronised; "
        + "the other micro-batches' are this rank's own"
        + ALL,
    ),
    before_accumulation: (
        IN_2,
        AT_ONCE
        + "only the last micro-batch's gradient was synchronised; the other micro-batches' are this rank's own"
        + ALL,
    ),
    no_parameters_sent: (
        Settings(),
        (
            r"ranks start from different parameters: [a-z.]+ on rank 1, relative error [0-9.e+]+, tolerance 0\.001; "
            "likely cause: this rank did not get the values of rank 0; 4 of 4 parameters differ, on 1 of 2 ranks"
        ),
    ),
    no_buffers_sent: (
        Settings(),
        (
            "ranks start from different buffers: seen on rank 1, relative error inf, tolerance 0.001; "
            "likely cause: this rank did not get the values of rank 0; 1 of 1 buffers differ, on 1 of 2 ranks"
        ),
    ),
    half_updated: (
        Settings(),
        (
            r"parameters differ from a single process: [a-z.]+ on rank [01] at step 1, relative error 1, "
            r"tolerance 0\.001; likely cause: the optimizer's step did not update it on this rank" + ALL
        ),
    ),
    at_one_rate: (Settings(lr_warmup_steps=3), r"parameters differ from a single process: .* at step 2, .*" + ALL),
    clipped_to_half: (
        Settings(clip_grad_norm=0.01),
        "gradients differ from a single process after clipping: [a-z.]+ on rank [01] at step 1, relative error 0.5, "
        "tolerance 0.001; likely cause: about 2 times too small" + ALL,
    ),
    other_losses: (
        Settings(),
        (
            r"losses differ from a single process: the mean loss at step 1 is [0-9.]+ instead of [0-9.]+, "
            r"relative error [0-9.e-]+, tolerance 0\.001"
        ),
    ),
    lossy_unsynchronised: (
        Settings(),
        "parameters differ between ranks: the parameters differ between ranks after each of 20 steps",
    ),
    lossy_uphill: (
        Settings(),
        (
            r"losses differ from a single process: the mean loss falls by -[0-9.]+ in 20 steps, and by [0-9.]+ in a "
            r"single process: a lossy strategy must reach 20 % of this fall"
        ),
    ),
}


@in_a_pair
def test_every_mistake_is_found_and_named(launcher: Launcher, placement: Placement) -> None:
    jobs = [job(Strategy(function), settings, model=plain) for function, (settings, _) in MISTAKES.items()]
    for found, (function, (_, words)) in zip(verify(launcher, *jobs, on=placement), MISTAKES.items(), strict=True):
        assert found.discrepancy is not None, f"{function.__name__} was not found"
        assert re.fullmatch(words, discrepancy_text(found.discrepancy)), (
            f"{function.__name__}: {discrepancy_text(found.discrepancy)}"
        )


def same_batch() -> tuple[Tensor, Tensor]:
    return torch.ones(4, 8), torch.tensor([0, 1, 2, 0])


@pytest.mark.slow
@in_a_pair
def test_mistakes_are_found_in_low_precision_and_with_equal_data(launcher: Launcher, placement: Placement) -> None:
    """fp16 repeats steps until they do not overflow; also where a wrong strategy has ranks disagree on that."""
    functions = [unsynchronised, first_micro_batch_only, before_accumulation]
    ways: list[tuple[Settings, dict[str, Any]]] = [
        (IN_2, {"batch": same_batch}),
        (replace(IN_2, precision="bf16"), {}),
        (replace(IN_2, precision="fp16"), {}),
    ]
    jobs = [job(Strategy(function), how, model=plain, **more) for how, more in ways for function in functions]
    endless = job(Strategy(not_finite), Settings(precision="fp16"), model=plain)
    *found, never_finite = [one.discrepancy for one in verify(launcher, *jobs, endless, on=placement)]
    for discrepancy in found:
        assert discrepancy is not None
        assert discrepancy.quantity == "gradients"
        assert discrepancy.error > 0.1
    assert never_finite is not None
    assert never_finite.fault == "is not finite"


@pytest.mark.slow
@anywhere
def test_lossy_strategies_that_learn_pass(launcher: Launcher, placement: Placement) -> None:
    jobs = [
        job(Strategy(lossy_and_fine), model=plain),
        job("ddp[comm_hook=post_local_sgd,local_sgd_period=3]", IN_2, model=plain, optimizer=SGD),
    ]
    for found in verify(launcher, *jobs, on=placement):
        assert found.discrepancy is None
        assert found.agreements["losses"].tolerance == 0.8
