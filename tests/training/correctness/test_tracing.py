"""A step of one's own or a script beside its single-process twin, on real ranks."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_ddpperf import Script, Workload
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.training.correctness.traces import compared
from pytest_ddpperf.training.jobs import PREPARE_LAUNCH, LaunchJob, PrepareJob
from pytest_ddpperf.training.preparing import prepare_launch
from pytest_ddpperf.training.verification import StepsTrace, TracedStep, TracedTensor, Verification, discrepancy_text
from tests.factories import SHARDS_ON_CPU

ADAM = partial(torch.optim.AdamW, lr=0.01)
SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(ranks: range) -> tuple[torch.Tensor, torch.Tensor]:
    """The samples of some ranks, one after the other."""
    shards = []
    for rank in ranks:
        generator = torch.Generator().manual_seed(rank)
        shards.append((torch.randn(4, 8, generator=generator), torch.randint(3, (4,), generator=generator)))
    inputs, targets = zip(*shards, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, ranks: range) -> Callable[[], torch.Tensor]:
    inputs, targets = batch(ranks)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]  # torch
        optimizer.step()
        return loss

    return step


def ddp(ctx: Any, make: Any = ADAM, no_sync: bool = False, **more: Any) -> Any:  # noqa: FBT001, FBT002
    model = net() if no_sync else nn.parallel.DistributedDataParallel(net())
    return step_of(model, make(model.parameters(), **more), range(ctx.rank, ctx.rank + 1))


def alone(ctx: Any, make: Any = ADAM, **more: Any) -> Any:
    assert ctx.world_size == 1
    model = net()
    return step_of(model, make(model.parameters(), **more), range(2))


def accumulating(ctx: Any, *, calls: int = 4, averages: bool = True) -> Any:
    """A step whose optimizer steps at every so many calls, with gradients that ranks average by hand, or do not."""
    model = net()
    optimizer = ADAM(model.parameters())
    inputs, targets = batch(range(2) if ctx.world_size == 1 else range(ctx.rank, ctx.rank + 1))
    made = itertools.count(1)

    def step() -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        (loss / calls).backward()  # type: ignore[no-untyped-call]  # torch
        if not next(made) % calls:
            for parameter in model.parameters():
                if averages:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= ctx.world_size
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return step


def without_optimizer(ctx: Any) -> Any:
    """The update is written by hand, and ranks do not average it."""
    model = net()
    inputs, targets = batch(range(2))

    def step() -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        for parameter, gradient in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            parameter.data -= 0.1 * gradient
        return loss

    return step


def zero1(ctx: Any) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ddp(ctx, lambda parameters: ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=0.01))


def failing(ctx: Any) -> Any:
    """In each step an error ends the step of another optimizer."""
    train, other = ddp(ctx), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)

    def fail() -> float:
        raise FloatingPointError

    def step() -> Any:
        with suppress(FloatingPointError):
            other.step(fail)
        return train()

    return step


def fsdp2(ctx: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model)
    return step_of(model, ADAM(model.parameters()), range(ctx.rank, ctx.rank + 1))


def script(ranks: int) -> None:
    dist.init_process_group("gloo")
    own = range(2) if ranks == 1 else range(dist.get_rank(), dist.get_rank() + 1)
    model = nn.parallel.DistributedDataParallel(net())
    step = step_of(model, ADAM(model.parameters()), own)
    for _ in range(trace_job(script).steps_needed):
        step()
    dist.destroy_process_group()


WORKLOAD = Workload(
    model=net, batch=lambda: batch(range(2)), loss=nn.functional.cross_entropy, optimizer=ADAM, samples_per_step=8
)


AGREE: dict[str, tuple[Any, Any]] = {
    "a step": (ddp, alone),
    "SGD": (partial(ddp, make=SGD), partial(alone, make=SGD)),
    "a Workload": (ddp, WORKLOAD),
    "4 calls for an optimizer step": (accumulating, accumulating),
    "4 calls beside one": (accumulating, alone),
    "a sharded optimizer": (zero1, alone),
    "an optimizer that fails": (failing, alone),
    **({"sharded parameters": (fsdp2, alone)} if SHARDS_ON_CPU else {}),
}
DIFFER: dict[str, tuple[Any, Any, str]] = {
    "no sync": (partial(ddp, no_sync=True), alone, "gradients differ from a single process: 0.weight on"),
    "4 calls, not averaged": (
        partial(accumulating, averages=False),
        accumulating,
        "gradients differ from a single process: 0.weight on rank 0 at step 1,",
    ),
    "lr": (ddp, partial(alone, lr=0.02), "parameters differ from a single process: 0.weight on rank 0 at step 1, rela"),
    "a part of the data": (ddp, ddp, "losses differ .*: the mean loss at step 1 is"),
    "none": (ddp, lambda _ctx: lambda: None, "optimizer steps differ from the reference: their number is 3, 3 on"),
    "another model": (
        ddp,
        replace(WORKLOAD, model=lambda: nn.Linear(8, 3)),
        "the reference begins with another model .*: the number of optimized parameters on rank 0 is 4 in",
    ),
}
BY_HAND = {"by hand": (without_optimizer, without_optimizer)}
Traces = dict[str, tuple[list[StepsTrace], StepsTrace]]


def trace_job(subject: Any) -> PrepareJob:
    strategy = Strategy("single") if isinstance(subject, Workload) else None
    return PrepareJob(LaunchJob(subject, strategy, Settings(), Plan(warmup=1, steps=1)), traced=True)


def trace_all(ctx: RankContext, subjects: dict[str, Any]) -> dict[str, StepsTrace]:
    found = {name: prepare_launch(ctx, trace_job(subject)).trace for name, subject in subjects.items()}
    return {name: trace for name, trace in found.items() if trace is not None}


@pytest.fixture(scope="module")
def traces(launcher: Launcher) -> Traces:
    """Of each pair the traces of two ranks, and of the reference, a single process; one launch for each side."""
    pairs = {name: pair[:2] for name, pair in {**AGREE, **DIFFER, **BY_HAND}.items()}
    on: dict[str, Any] = {"backend": "gloo", "device": "cpu", "timeout": 60}
    ranks = launcher.run(trace_all, {name: pair[0] for name, pair in pairs.items()}, world_size=2, **on).values
    (twins,) = launcher.run(trace_all, {name: pair[1] for name, pair in pairs.items()}, world_size=1, **on).values
    return {name: ([rank[name] for rank in ranks], twins[name]) for name in pairs}


@pytest.mark.parametrize("name", AGREE)
def test_a_step_that_trains_like_its_reference_agrees(traces: Traces, name: str) -> None:
    found = compared(*traces[name])
    assert (found.discrepancy, found.unverified) == (None, "")


def test_a_script_with_no_step_more_than_needed_agrees(launcher: Launcher) -> None:
    sides = []
    for ranks in (2, 1):
        group: dict[str, Any] = {"backend": "gloo", "device": "cpu", "own_group": True, "timeout": 60}
        job = trace_job(Script(partial(script, ranks)))
        sides.append([rank.trace for rank in launcher.run(PREPARE_LAUNCH, job, world_size=ranks, **group).values])
    found = compared(sides[0], *sides[1])
    assert (found.discrepancy, found.unverified) == (None, "")


@pytest.mark.parametrize("name", DIFFER)
def test_a_wrong_step_and_a_wrong_reference_differ(traces: Traces, name: str) -> None:
    found = compared(*traces[name]).discrepancy
    assert found is not None
    assert re.search(DIFFER[name][2], discrepancy_text(found)), discrepancy_text(found)


def tensor(*sketch: float, name: str = "weight") -> TracedTensor:
    return TracedTensor(name=name, shape=(2,), sketch=sketch)


def step(gradient: TracedTensor, after: TracedTensor, before: TracedTensor | None = None) -> TracedStep:
    return TracedStep(gradients=(gradient,), before=(before or tensor(0.0, 0.0),), after=(after,))


def trace(*steps: TracedStep, losses: tuple[float | None, ...] = (None,) * 3) -> StepsTrace:
    return StepsTrace(steps=steps, losses=losses, precision="fp32")


def test_ranks_that_start_or_end_a_step_differently_are_named_first() -> None:
    good = step(tensor(1.0, 0.0), tensor(0.1, 0.0))
    other_start = step(tensor(1.0, 0.0), tensor(0.2, 0.0), tensor(0.1, 0.0))
    for ranks, quantity, where in (
        ([good, other_start], "start parameters", 1),
        ([other_start, other_start], "reference start", 0),
        ([good, step(tensor(1.0, 0.0), tensor(0.1, 0.01))], "own parameters", 1),
    ):
        found = compared([trace(rank) for rank in ranks], trace(good)).discrepancy
        assert found is not None
        assert (found.quantity, found.rank) == (quantity, where)
    assert compared([trace(good)] * 2, trace(good)).discrepancy is None


def test_gradients_that_are_not_finite_agree_with_nothing() -> None:
    good, lost = step(tensor(3.0, 4.0), tensor(1.0)), step(tensor(math.nan, 4.0), tensor(1.0))
    for rank, twin in ((good, lost), (lost, good), (lost, lost)):
        found = compared([trace(good), trace(rank)], trace(twin)).discrepancy
        assert found is not None
        assert (found.quantity, found.error, found.fault) == ("gradients", math.inf, "is not finite")


def test_a_step_without_an_optimizer_of_torch_is_not_verified(traces: Traces) -> None:
    assert compared(*traces["by hand"]) == Verification(
        unverified="32 calls of the step made no optimizer step of torch.optim, and 3 are compared"
    )


def test_losses_alone_can_differ_and_verify_nothing() -> None:
    ranks = [trace(losses=(1.0, 2.0, 3.0)), trace(losses=(3.0, 2.0, 3.0))]
    assert compared(ranks, trace(losses=(2.0, 2.0, 3.0))).unverified
    found = compared(ranks, trace(losses=(2.0, 2.0, 3.1))).discrepancy
    assert found is not None
    assert (found.quantity, found.step) == ("losses", 3)
    assert compared([trace()] * 2, trace()).unverified
    good = step(tensor(1.0, 0.0), tensor(0.1, 0.0))
    assert "made 1 optimizer step of torch.optim" in compared([trace(good)] * 2, trace(good)).unverified
    assert not compared([trace(good, good, good)] * 2, trace(good, good, good)).unverified


def test_losses_of_all_calls_for_an_optimizer_step_are_compared() -> None:
    good = step(tensor(1.0, 0.0), tensor(0.1, 0.0))
    steps = [replace(good, call=call) for call in (1, 3, 5)]
    twin = trace(*steps, losses=(1.0,) * 6)
    found = compared([trace(*steps, losses=(1.0, 1.0, 1.0, 2.0, 1.0, 1.0))], twin).discrepancy
    assert found is not None
    assert (found.quantity, found.step) == ("losses", 2)
    assert (
        compared([trace(*(replace(good, call=call) for call in range(3)), losses=(9.0,) * 3)], twin).discrepancy is None
    )


def test_a_gradient_of_nothing_but_rounding_does_not_matter() -> None:
    def both(small: float) -> TracedStep:
        return TracedStep(
            gradients=(tensor(1.0, 0.0), tensor(small, 0.0)),
            before=(tensor(0.0, 0.0),) * 2,
            after=(tensor(0.1, 0.0), tensor(0.1 if small > 0 else -0.1, 0.0)),
        )

    assert compared([trace(both(1e-8))], trace(both(-1e-8))).discrepancy is None
    assert compared([trace(both(1e-2))], trace(both(-1e-2))).discrepancy is not None
