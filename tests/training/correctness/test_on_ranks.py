"""The correctness pass on real ranks: what is right passes, and every way to be wrong is found and named."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
from pytest_ddpperf.strategies.table import STRATEGIES, resolve
from pytest_ddpperf.training.correctness.verifier import verify_launch
from pytest_ddpperf.training.jobs import VerifyJob
from pytest_ddpperf.training.verification import Verification, discrepancy_text
from pytest_ddpperf.training.workload import Workload
from tests.factories import runnable

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Placement:
    """Where ranks compute, how they talk, and how many there are."""

    device: str
    backend: str
    ranks: int


CPU = Placement("cpu", "gloo", 2)
GPU = (pytest.mark.gpu(shared=True),)
ALONE_ON_GPU = pytest.param(Placement("cuda", "nccl", 1), id="cuda-nccl-1", marks=GPU)
ON_GPU = pytest.param(Placement("cuda", "gloo", 2), id="cuda-gloo-2", marks=GPU)  # NCCL takes a GPU for each

anywhere = pytest.mark.parametrize("placement", [pytest.param(CPU, id="cpu"), ALONE_ON_GPU, ON_GPU])
in_a_pair = pytest.mark.parametrize("placement", [pytest.param(CPU, id="cpu"), ON_GPU])  # what takes two ranks


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


class Plain(nn.Module):
    """The least that can be trained, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)
        self.register_buffer("seen", torch.zeros(2))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.tanh(self.inside(inputs)))
        return outputs


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(16, 8), torch.randint(3, (16,))


SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=1e-2)


def workload(**changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "model": Net,
        "batch": batch,
        "loss": nn.functional.cross_entropy,
        "optimizer": ADAMW,
        "samples_per_step": 16,
    }
    return Workload(**(fields | changes))


def verify_all(ctx: RankContext, jobs: list[VerifyJob]) -> list[Verification]:
    return [verify_launch(ctx, job) for job in jobs]


def verify(launcher: Launcher, *jobs: VerifyJob, on: Placement = CPU) -> list[Verification]:
    """What each job comes to; all ranks have to say the same of it."""
    first, *others = launcher.run(
        verify_all, list(jobs), world_size=on.ranks, backend=on.backend, device=on.device, timeout=100
    ).values
    assert all(other == first for other in others)
    return list(first)


def job(strategy: Strategy | str, settings: Settings | None = None, **changes: Any) -> VerifyJob:
    return VerifyJob(workload(**changes), resolve(strategy), settings or Settings())


PASSES = {
    "fp32": (Settings(), SGD),
    "fp32, in 4": (Settings(accumulation_steps=4), ADAMW),
    "bf16, in 2": (Settings(precision="bf16", accumulation_steps=2), ADAMW),
    "fp16, in 2": (Settings(precision="fp16", accumulation_steps=2, lr_warmup_steps=3), ADAMW),
    "synchronised each time": (Settings(accumulation_steps=2, no_sync=False), SGD),
    "all there is": (
        Settings(clip_grad_norm=0.05, lr_warmup_steps="warmup", clip_steps=2, activation_checkpointing=True),
        SGD,
    ),
}


@anywhere
@pytest.mark.parametrize("strategy", sorted(STRATEGIES.keys() - {"single"}))
def test_strategies_of_the_table_pass(launcher: Launcher, strategy: str, placement: Placement) -> None:
    """By a wide margin on the CPU; a GPU's kernels may round otherwise where a strategy lays tensors out otherwise."""
    jobs = [job(strategy, settings, optimizer=optimizer) for settings, optimizer in PASSES.values()]
    margin = 4 if placement.device == "cpu" else 1
    for name, found in zip(PASSES, verify(launcher, *jobs, on=placement), strict=True):
        assert not found.unverified
        assert found.discrepancy is None, f"{name}: {discrepancy_text(found.discrepancy)}"
        compared = {"start parameters", "start buffers", "losses", "gradients", "parameters"}
        assert compared | ({"clipped gradients"} if name == "all there is" else set()) == found.agreements.keys()
        for agreement in found.agreements.values():
            assert agreement.error < agreement.tolerance / margin


class Deep(nn.Module):
    """Blocks whose sizes no number of ranks divides, in a child with the name that DDP gives to what it wraps."""

    def __init__(self) -> None:
        super().__init__()
        blocks = (nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 7)) for _ in range(3))
        self.module = nn.Sequential(nn.Linear(8, 7), *blocks, nn.Linear(7, 3))

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.module(inputs)
        return outputs


OPTIONS = runnable(
    (
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


@pytest.mark.parametrize(
    ("strategies", "placement"),
    [
        pytest.param(OPTIONS, replace(CPU, ranks=3), id="uneven"),
        pytest.param(COPIES, replace(CPU, ranks=4), id="copies"),
        pytest.param((*OPTIONS, *OFFLOADING), *ALONE_ON_GPU.values, marks=GPU, id="alone on a GPU"),
        pytest.param((*OPTIONS, *OFFLOADING, *COPIES[1:2]), *ON_GPU.values, marks=GPU, id="on a GPU"),
    ],
)
@pytest.mark.parametrize("way", ["fp32, in 4", "synchronised each time", "all there is"])
def test_options_pass(launcher: Launcher, strategies: list[str], placement: Placement, way: str) -> None:
    settings, optimizer = PASSES[way]
    jobs = [job(strategy, settings, optimizer=optimizer, model=Deep) for strategy in strategies]
    for strategy, found in zip(strategies, verify(launcher, *jobs, on=placement), strict=True):
        assert (found.unverified, found.discrepancy) == ("", None), strategy
        assert all(agreement.error < agreement.tolerance for agreement in found.agreements.values())


@pytest.mark.parametrize("placement", [pytest.param(replace(CPU, ranks=1), id="cpu"), ALONE_ON_GPU])
def test_one_rank_passes_however_it_is_compiled(launcher: Launcher, placement: Placement) -> None:
    jobs = [
        job("single"),
        job("single", Settings(precision="fp16", activation_checkpointing=True, accumulation_steps=2)),
        *(job("single", Settings(compile=how, compile_backend="eager")) for how in ("model", "step")),
    ]
    assert [found.discrepancy for found in verify(launcher, *jobs, on=placement)] == [None] * 4


@anywhere
@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_what_computes_in_another_type_is_held_against_the_same(
    launcher: Launcher, strategy: str, placement: Placement
) -> None:
    """To the last bit on the CPU; a GPU's kernels may round otherwise."""
    jobs = [
        job(f"{strategy}[param_dtype={narrow},reduce_dtype=fp32]", Settings(precision=precision), model=Plain)
        for narrow, precision in (("bf16", "fp32"), ("bf16", "bf16"), ("fp16", "fp16"))
    ]
    for found in verify(launcher, *jobs, on=placement):
        assert not found.unverified
        assert found.discrepancy is None
        if placement == CPU:
            assert found.agreements["losses"].error < 1e-6
            assert found.agreements["gradients"].error < 1e-3


@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
@pytest.mark.parametrize("placement", [ALONE_ON_GPU, ON_GPU])
def test_tf32_passes_where_there_is_a_gpu(launcher: Launcher, strategy: str, placement: Placement) -> None:
    (found,) = verify(launcher, job(strategy, Settings(precision="tf32", accumulation_steps=2)), on=placement)
    assert not found.unverified
    assert found.discrepancy is None


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)


@anywhere
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "fsdp1", "fsdp2", "overlap"])
def test_a_scheduler_passes(launcher: Launcher, strategy: str, placement: Placement) -> None:
    settings = Settings(), Settings(precision="fp16", accumulation_steps=2)
    for found in verify(launcher, *(job(strategy, each, scheduler=halving) for each in settings), on=placement):
        assert not found.unverified
        assert found.discrepancy is None
        assert found.agreements["parameters"].error < found.agreements["parameters"].tolerance / 4


def at_one_rate(module: nn.Module, ctx: RankContext) -> Parallel:
    """Its optimizer keeps the learning rate that it began with."""

    def make_optimizer(factory: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]) -> torch.optim.Optimizer:
        optimizer = factory(module.parameters())
        (group,) = optimizer.param_groups
        rate = group["lr"]
        optimizer.register_step_pre_hook(lambda *_: group.update(lr=rate))
        return optimizer

    return Parallel(module, Wrong(module, ctx).average, make_optimizer=make_optimizer)


def test_a_learning_rate_that_does_not_follow_its_scheduler_is_found(launcher: Launcher) -> None:
    """The first step has the rate that it should have."""
    kept, scheduled = verify(
        launcher, job(Strategy(at_one_rate), model=Plain), job(Strategy(at_one_rate), model=Plain, scheduler=halving)
    )
    assert kept.discrepancy is None
    assert scheduled.discrepancy is not None
    assert (scheduled.discrepancy.quantity, scheduled.discrepancy.step) == ("parameters", 2)


def part_of(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return SGD(list(parameters)[::2])


def test_the_optimizer_may_leave_parameters_untrained(launcher: Launcher) -> None:
    """Their gradients are those of one step, and count in the norm, as those of the others."""
    strategies = runnable(["naive", "bucketed", "ddp[gradient_as_bucket_view=true]", "zero1", "fsdp1", "fsdp2"])
    jobs = [job(name, Settings(clip_grad_norm=0.05), optimizer=part_of, model=Plain) for name in strategies]
    assert [found.discrepancy for found in verify(launcher, *jobs)] == [None] * len(strategies)


class SparselyEmbedded(nn.Module):
    """Its embedding has sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4, sparse=True)
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.embedding(inputs.abs().sum(dim=-1).long() % 8))
        return outputs


def test_sparse_gradients_can_be_compared(launcher: Launcher) -> None:
    (found,) = verify(launcher, job("ddp", model=SparselyEmbedded, optimizer=partial(torch.optim.SGD, lr=0.1)))
    assert (found.discrepancy, found.unverified) == (None, "")


def test_three_ranks_pass(launcher: Launcher) -> None:
    jobs = [job("naive", Settings(precision=precision, accumulation_steps=3)) for precision in ("fp32", "bf16")]
    assert [found.discrepancy for found in verify(launcher, *jobs, on=replace(CPU, ranks=3))] == [None, None]


# Strategies that are wrong, each in a way of its own.


@dataclass
class Wrong:
    """A strategy to make mistakes in: it averages, and all ranks begin with the same, as they should.

    Attributes:
        calls: how many times it has synchronised.
    """

    module: nn.Module
    ctx: RankContext
    calls: int = field(default=0)

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


def summed(module: nn.Module, ctx: RankContext) -> Parallel:
    return Parallel(module, partial(Wrong(module, ctx).average, divisor=1))


def divided_twice(module: nn.Module, ctx: RankContext) -> Parallel:
    return Parallel(module, partial(Wrong(module, ctx).average, divisor=ctx.world_size**2))


def one_left_out(module: nn.Module, ctx: RankContext) -> Parallel:
    wrong = Wrong(module, ctx)
    return Parallel(module, lambda: wrong.average(wrong.trained[:-1]))


def for_rank_0_only(module: nn.Module, ctx: RankContext) -> Parallel:
    wrong = Wrong(module, ctx)

    def synchronise() -> None:
        own = [parameter.grad.clone() for parameter in wrong.trained if parameter.grad is not None]
        wrong.average()
        if ctx.rank:
            for parameter, gradient in zip(wrong.trained, own, strict=True):
                parameter.grad = gradient

    return Parallel(module, synchronise)


def copied(module: nn.Module, ctx: RankContext) -> Parallel:
    wrong = Wrong(module, ctx)

    def synchronise() -> None:
        for parameter in wrong.trained:
            assert parameter.grad is not None
            dist.broadcast(parameter.grad, src=0)

    return Parallel(module, synchronise)


def first_step_only(module: nn.Module, ctx: RankContext) -> Parallel:
    wrong = Wrong(module, ctx)

    def synchronise() -> None:
        if not wrong.calls:
            wrong.average()
        wrong.calls += 1

    return Parallel(module, synchronise)


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


def summed_each_time(module: nn.Module, ctx: RankContext) -> Parallel:
    """Sums what has been summed already again with each micro-batch, and divides once."""
    wrong = Wrong(module, ctx)
    for parameter in wrong.trained:
        again = partial(wrong.average, divisor=1)
        parameter.register_post_accumulate_grad_hook(lambda p, again=again: again([p]))  # type: ignore[no-untyped-call]  # the same

    def synchronise() -> None:
        for parameter in wrong.trained:
            assert parameter.grad is not None
            parameter.grad.div_(ctx.world_size)

    return Parallel(module, synchronise)


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


def clipped_to_half(module: nn.Module, ctx: RankContext) -> Parallel:
    """Clips what is half as large as it should be: as to a norm of this rank's shard."""
    wrong = Wrong(module, ctx)

    def clip(max_norm: float) -> Tensor:
        return nn.utils.clip_grad_norm_(module.parameters(), max_norm / 2)

    return Parallel(module, wrong.average, clip_grad_norm=clip)


def nothing_to_show(module: nn.Module, ctx: RankContext) -> Parallel:
    return Parallel(module, Wrong(module, ctx).average, gradients=dict)


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
    unsynchronised: (Settings(), AT_ONCE + "it is this rank's own gradient: it was not synchronised" + ALL),
    summed: (Settings(), AT_ONCE + "about 2 times too large: summed over the ranks instead of averaged" + ALL),
    divided_twice: (Settings(), AT_ONCE + "about 2 times too small: divided by the number of ranks twice" + ALL),
    one_left_out: (
        Settings(),
        GRADIENTS
        + r"head\.bias on rank [01] at step 1, .*: it is this rank's own gradient: it was not synchronised; "
        + "1 of 4 parameters differ, on 2 of 2 ranks",
    ),
    for_rank_0_only: (
        Settings(),
        GRADIENTS
        + WHERE.format(rank=1, step=1)
        + "it is this rank's own gradient: it was not synchronised; 4 of 4 parameters differ, on 1 of 2 ranks",
    ),
    copied: (Settings(), AT_ONCE + "it is (rank 0|this rank)'s own gradient: .*" + ALL),
    first_step_only: (
        Settings(),
        GRADIENTS + WHERE.format(rank="[01]", step=2) + "it is this rank's own gradient: it was not synchronised" + ALL,
    ),
    first_micro_batch_only: (
        IN_2,
        AT_ONCE
        + "only the first micro-batch's gradient was synchronised; "
        + "the other micro-batches' are this rank's own"
        + ALL,
    ),
    summed_each_time: (IN_2, GRADIENTS + ".*" + ALL),
    before_accumulation: (
        IN_2,
        AT_ONCE
        + "only the last micro-batch's gradient was synchronised; the other micro-batches' are this rank's own"
        + ALL,
    ),
    not_finite: (
        Settings(),
        GRADIENTS + r"inside\.weight on rank 1 at step 1 is not finite; 1 of 4 parameters differ, on 1 of 2 ranks",
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
    clipped_to_half: (
        Settings(clip_grad_norm=0.01),
        "gradients differ from a single process after clipping: [a-z.]+ on rank [01] at step 1, relative error 0.5, "
        "tolerance 0.001; likely cause: about 2 times too small" + ALL,
    ),
    nothing_to_show: (
        Settings(),
        GRADIENTS + r"inside\.weight on rank 0 at step 1 is missing; likely cause: no gradient arrived here" + ALL,
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
        "parameters differ between ranks: the parameters are not the same on all ranks after any of 20 steps",
    ),
    lossy_uphill: (
        Settings(),
        (
            r"losses differ from a single process: the mean loss falls by -[0-9.]+ in 20 steps, that of a single "
            r"process by [0-9.]+: a lossy strategy has to reach 0\.2 of that"
        ),
    ),
}


@in_a_pair
def test_every_mistake_is_found_and_named(launcher: Launcher, placement: Placement) -> None:
    jobs = [job(Strategy(function), settings, model=Plain) for function, (settings, _) in MISTAKES.items()]
    for found, (function, (_, words)) in zip(verify(launcher, *jobs, on=placement), MISTAKES.items(), strict=True):
        assert found.discrepancy is not None, f"{function.__name__} was not found"
        assert re.fullmatch(words, discrepancy_text(found.discrepancy)), (
            f"{function.__name__}: {discrepancy_text(found.discrepancy)}"
        )


@in_a_pair
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mistakes_are_found_in_low_precision_too(launcher: Launcher, precision: str, placement: Placement) -> None:
    """fp16 repeats steps until they do not overflow; also where a wrong strategy has ranks disagree on that."""
    functions = [unsynchronised, summed, one_left_out, first_micro_batch_only, before_accumulation]
    settings = Settings(precision=precision, accumulation_steps=2)
    jobs = [job(Strategy(function), settings, model=Plain) for function in functions]
    found = verify(launcher, *jobs, on=placement)
    assert [one.discrepancy and one.discrepancy.quantity for one in found] == ["gradients"] * 5


@in_a_pair
def test_gradients_that_are_never_finite_in_fp16_end_the_repetition(launcher: Launcher, placement: Placement) -> None:
    (found,) = verify(launcher, job(Strategy(not_finite), Settings(precision="fp16"), model=Plain), on=placement)
    assert found.discrepancy is not None
    assert found.discrepancy.fault == "is not finite"


def same_batch() -> tuple[Tensor, Tensor]:
    return torch.ones(4, 8), torch.tensor([0, 1, 2, 0])


@in_a_pair
def test_missing_synchronisation_is_found_where_all_data_are_alike(launcher: Launcher, placement: Placement) -> None:
    functions = [unsynchronised, copied, first_micro_batch_only, before_accumulation]
    jobs = [job(Strategy(function), IN_2, model=Plain, batch=same_batch) for function in functions]
    found = verify(launcher, *jobs, on=placement)
    for function, one in zip(functions, found, strict=True):
        assert one.discrepancy is not None, function.__name__
        assert one.discrepancy.quantity == "gradients"
        assert one.discrepancy.error > 0.1


@anywhere
def test_lossy_strategies_that_learn_pass(launcher: Launcher, placement: Placement) -> None:
    jobs = [
        job(Strategy(lossy_and_fine), model=Plain),
        job("ddp[comm_hook=post_local_sgd,local_sgd_period=3]", IN_2, model=Plain, optimizer=SGD),
    ]
    for found in verify(launcher, *jobs, on=placement):
        assert found.discrepancy is None
        assert found.agreements["losses"].tolerance == 0.8


def averaged(module: nn.Module, ctx: RankContext, *, param_dtype: str) -> Parallel:
    return Parallel(module, Wrong(module, ctx).average, precision="bf16")


class Scaled(Plain):
    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs * (1 + self.get_buffer("seen")[:1]))


def test_a_type_that_the_model_cannot_be_cast_to_cannot_be_verified(launcher: Launcher) -> None:
    """A buffer keeps its type, and turns everything that it meets into fp32."""
    (found,) = verify(launcher, job(Strategy(averaged, param_dtype="bf16"), model=Scaled))
    assert found.discrepancy is None
    assert found.unverified.startswith("a model whose parameters are all cast to bf16 fails: mat1 and mat2")


class Talkative(Plain):
    def forward(self, inputs: Tensor) -> Tensor:
        dist.all_reduce(torch.ones(1, device=inputs.device))
        return super().forward(inputs)


@anywhere
def test_a_model_that_communicates_cannot_be_verified(launcher: Launcher, placement: Placement) -> None:
    """And does not hang: a single process has nobody to talk to."""
    (found,) = verify(launcher, job("naive", model=Talkative), on=placement)
    assert found.discrepancy is None
    assert found.unverified == "the model or its loss communicates between ranks"
