"""One training step, ready to be called: made from a workload, or taken from a function of the user's."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.strategies import parallelise
from pytest_ddpperf.training.data import batches
from pytest_ddpperf.training.workload import Workload, located

if TYPE_CHECKING:
    from pytest_ddpperf.strategies.parallel import RankView

MODEL_SEED = 0
DATA_SEED = 1  # not the model's: weights and data must not be the same random numbers


@dataclass(frozen=True)
class Step:
    """A step and what is known of it.

    Attributes:
        run: does one step and gives its loss: a number, a scalar tensor, or None.
        samples_per_step: this rank's samples in one step; None where unknown. ``tokens_per_step`` likewise.
        close: gives back what the step holds.
    """

    run: Callable[[], Any]
    samples_per_step: float | None
    tokens_per_step: float | None
    close: Callable[[], object]


def build_step(
    ctx: RankView,
    subject: Workload | Callable[[Any], Any],
    strategy: str,
    samples_per_step: float | None = None,
    tokens_per_step: float | None = None,
) -> Step:
    """The step of a workload, or the one that a function ``subject(ctx)`` gives back.

    Counts given here win over those of the subject. In strong mode a workload's counts and those given here are of
    the whole group's step, of which each rank does its share; what a step object says of itself is this rank's.

    Args:
        ctx: the rank.
        subject: a workload, or a function that is called with ``ctx`` and gives back one step: a callable, which may
            have the attributes ``samples`` and ``tokens`` (this rank's, in one step) and a method ``close()``.
        strategy: how the ranks of a workload are synchronised; a function of the user's sees to that itself.
        samples_per_step: samples in one step; None to ask the subject.
        tokens_per_step: tokens in one step; None to ask the subject.

    Raises:
        WorkloadError: the subject does not keep its contract.
        SettingError: there is no such strategy, or not for this world size.
    """
    share = ctx.world_size if ctx.mode == "strong" else 1
    given_samples = None if samples_per_step is None else samples_per_step / share
    given_tokens = None if tokens_per_step is None else tokens_per_step / share
    if not isinstance(subject, Workload):
        return _users_step(ctx, subject, given_samples, given_tokens)
    own_tokens = None if subject.tokens_per_step is None else subject.tokens_per_step / share
    return Step(
        run=_training_step(ctx, subject, strategy),
        samples_per_step=subject.samples_per_step / share if given_samples is None else given_samples,
        tokens_per_step=own_tokens if given_tokens is None else given_tokens,
        close=_nothing,
    )


def _training_step(ctx: RankView, workload: Workload, strategy: str) -> Callable[[], torch.Tensor]:
    """Model, optimizer and data, built and bound into the step that trains them."""
    _seed(MODEL_SEED)
    model = workload.model()
    if not isinstance(model, nn.Module):
        raise WorkloadError(f"{located(workload.model)} gave {_a(model)}: model() must give a torch.nn.Module")
    parallel = parallelise(strategy, model.to(ctx.device), ctx)
    optimizer = workload.optimizer(parallel.module.parameters())
    if not (hasattr(optimizer, "step") and hasattr(optimizer, "zero_grad")):
        raise WorkloadError(
            f"{located(workload.optimizer)} gave {_a(optimizer)}: optimizer(parameters) must give a torch optimizer"
        )
    _seed(DATA_SEED if ctx.mode == "strong" else DATA_SEED + ctx.rank)
    next_batch = batches(ctx, workload)
    module, loss_of, synchronise = parallel.module, workload.loss, parallel.synchronise

    def run() -> torch.Tensor:
        inputs, targets = next_batch()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(module(inputs), targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise WorkloadError(f"{located(loss_of)} gave {_a(loss)}: loss(outputs, targets) must give a scalar tensor")
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        synchronise()
        optimizer.step()
        return loss.detach()

    return run


def _users_step(
    ctx: RankView, build: Callable[[Any], Any], samples_per_step: float | None, tokens_per_step: float | None
) -> Step:
    """The step that the user's function gives back, whatever it is made of."""
    step = build(ctx)
    if not callable(step):
        raise WorkloadError(
            f"{located(build)} returned {_a(step)}; it must return a callable that runs one training step"
        )
    return Step(
        run=step,
        samples_per_step=getattr(step, "samples", None) if samples_per_step is None else samples_per_step,
        tokens_per_step=getattr(step, "tokens", None) if tokens_per_step is None else tokens_per_step,
        close=getattr(step, "close", _nothing),
    )


def _a(value: object) -> str:
    """What a value is, in words for a message."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)


def _nothing() -> None:
    """A workload holds nothing that the end of its process would not give back."""
