"""One training step, ready to be called: made from a workload, or taken from a function of the user's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments.phases.phase_hooks import Seam
from pytest_ddpperf.records.phases import DATA_WAIT, FORWARD, GRADIENT_SYNC, OPTIMIZER
from pytest_ddpperf.training.data import Batches, batches
from pytest_ddpperf.training.trainer import MODEL_SEED, Trainer, a, seed
from pytest_ddpperf.training.workload import Workload, located, unfit

if TYPE_CHECKING:
    from pytest_ddpperf.settings import Settings
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.strategies.strategy import Strategy
    from pytest_ddpperf.training.loop import LaunchJob

DATA_SEED = MODEL_SEED + 1  # weights and data must not be the same random numbers
_UNKNOWN = -1  # of a batch's size


@dataclass(frozen=True)
class Local:
    """How a step is run without the other ranks' gradients.

    Attributes:
        run: the step.
        unsynchronised: a context in which it averages no gradients.
        snapshot: keeps what training changes; what it gives puts that back.
        snapshot_bytes: what that takes of the host's memory.
        still_sent: what it sends all the same, in words; empty for nothing.
        skipped_steps: as of ``Step``.
    """

    run: Callable[[], Any]
    unsynchronised: Callable[[], AbstractContextManager[None]]
    snapshot: Callable[[], Callable[[], None]]
    snapshot_bytes: Callable[[], int]
    still_sent: str = ""
    skipped_steps: Sequence[int] = ()


@dataclass(frozen=True)
class Step:
    """A step and what is known of it.

    Attributes:
        run: does one step and gives its loss: a number, a scalar tensor, or None.
        samples_per_step: this rank's samples in one step; None where unknown. ``tokens_per_step`` likewise.
        close: gives back what the step holds.
        skipped_steps: numbers, from 0, of the steps so far that updated nothing because fp16 gradients overflowed.
        data: where a workload's batches come from.
        seams: what a diagnosed pass can watch to tell its phases apart.
        period: after how many steps what is done repeats on all ranks, and the times of loading data; the same on each.
        work_period: the same without the loading, which runs ahead of the steps.
        modules: what is trained, where that is known. ``optimizers`` likewise.
        local: how it is run without the other ranks' gradients; None where nobody knows.
    """

    run: Callable[[], Any]
    samples_per_step: float | None
    tokens_per_step: float | None
    close: Callable[[], object]
    skipped_steps: Sequence[int] = ()
    data: Batches | None = None
    modules: Sequence[nn.Module] = ()
    optimizers: Sequence[torch.optim.Optimizer] = ()
    period: int = 1
    work_period: int = 1
    seams: Sequence[Seam] = ()
    local: Local | None = None


def build_step(ctx: RankView, job: LaunchJob) -> Step:
    """The step of a workload, or the one that a function ``subject(ctx)`` gives back.

    All ranks have to call it together. The job's counts win over those of the subject. In strong mode a workload's
    counts and the job's are of the whole group's step, of which each rank does its share; what a step object says of
    itself is this rank's. A workload's counts are those of one batch, of which a step that accumulates takes several.

    Raises:
        WorkloadError: the subject does not keep its contract.
        SettingError: there is no such strategy, or not for this world size.
        RankSkipped: this device cannot do what the settings ask for.
    """
    subject = job.subject
    ranks = ctx.world_size if ctx.mode == "strong" else 1
    given = _Counts(job.samples_per_step, job.tokens_per_step)
    if not isinstance(subject, Workload):
        return _users_step(ctx, subject, given.scaled(1, ranks))
    own = _Counts(subject.samples_per_step, subject.tokens_per_step)
    counts = given.otherwise(own).scaled(job.settings.accumulation_steps, ranks)
    assert job.strategy is not None  # noqa: S101  only a step of the user's own has none
    trainer, data, run = _training_step(ctx, subject, job.strategy, job.settings, job.plan.warmup)
    own_period = math.lcm(trainer.parallel.period, data.burst)
    periods, sizes = zip(
        *_of_all_ranks((own_period, _UNKNOWN if data.size is None else data.size), ctx.device), strict=True
    )
    try:
        _require_equal(sizes, subject)
    except WorkloadError:
        data.close()
        raise
    return Step(
        run=run,
        samples_per_step=counts.samples,
        tokens_per_step=counts.tokens,
        close=data.close,
        skipped_steps=trainer.skipped_steps,
        data=data,
        modules=[trainer.parallel.module],
        optimizers=[trainer.optimizer],
        # Ranks whose loaders differ have periods of their own; one that ran other numbers of steps would be waited for.
        period=math.lcm(*periods),
        work_period=trainer.parallel.period,
        seams=_seams(trainer, data, job.settings),
        local=_local(trainer, run, job.settings),
    )


def _of_all_ranks(own: Sequence[int], device: torch.device) -> list[list[int]]:
    """These numbers of every rank."""
    if not dist.is_initialized():
        return [list(own)]
    mine = torch.tensor(own, device=device)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return [numbers.tolist() for numbers in found]


def _require_equal(sizes: Sequence[int], workload: Workload) -> None:
    """Refuse ranks whose batches differ in size, where that is known: not all samples would count the same.

    Raises:
        WorkloadError: they do.
    """
    given = workload.batch if workload.loader is None else workload.loader
    if given is not None and len({size for size in sizes if size != _UNKNOWN}) > 1:
        told = ", ".join(f"rank {rank}: {size}" for rank, size in enumerate(sizes) if size != _UNKNOWN)
        raise WorkloadError(
            f"{located(given)} gave the ranks batches of different sizes ({told}): their gradients would count the "
            "same in the mean, and samples_per_step is that of every rank; give all ranks batches of one size"
        )


def _local(trainer: Trainer, run: Callable[[], Any], settings: Settings) -> Local | None:
    """None in compiled training: what synchronises is part of its graph, and without it there would be another one.

    Nor with an optimizer that is none of torch's: what it keeps could not be put back.
    """
    if settings.compile != "no" or not isinstance(trainer.optimizer, torch.optim.Optimizer):
        return None
    return Local(
        run,
        trainer.unsynchronised,
        trainer.snapshot,
        trainer.snapshot_bytes,
        trainer.parallel.still_sent,
        trainer.skipped_steps,
    )


def _seams(trainer: Trainer, data: Batches, settings: Settings) -> tuple[Seam, ...]:
    """Where the phases of a workload's step begin and end. None in a compiled step: it guards on what they change."""
    if settings.compile == "step":
        return ()
    return (
        *([Seam(data, "_next_batch", DATA_WAIT)] if data.loads else []),
        Seam(trainer, "_loss", FORWARD),
        Seam(trainer, "_synchronise", GRADIENT_SYNC),
        Seam(trainer, "_clip", OPTIMIZER),
    )


@dataclass(frozen=True)
class _Counts:
    """Samples and tokens of one step; None where unknown."""

    samples: float | None
    tokens: float | None

    def scaled(self, times: int, over: int) -> _Counts:
        return _Counts(*(None if count is None else count * times / over for count in (self.samples, self.tokens)))

    def otherwise(self, other: _Counts) -> _Counts:
        return _Counts(
            other.samples if self.samples is None else self.samples,
            other.tokens if self.tokens is None else self.tokens,
        )


def _training_step(
    ctx: RankView, workload: Workload, strategy: Strategy, settings: Settings, warmup: int
) -> tuple[Trainer, Batches, Callable[[], torch.Tensor]]:
    """Model, optimizer and data, built and bound into the step that trains them."""
    trainer = Trainer(ctx, workload, strategy, settings, warmup=warmup)
    seed(DATA_SEED if ctx.mode == "strong" else DATA_SEED + ctx.rank)
    data = batches(ctx, workload, settings.loader if workload.batch is None else None)
    backward, update = trainer.backward, trainer.update

    def run() -> torch.Tensor:
        loss = backward(data)
        update()
        return loss

    if settings.compile == "step":
        run = torch.compile(run, backend=settings.compile_backend)
    return trainer, data, run


def _users_step(ctx: RankView, build: Callable[[Any], Any], given: _Counts) -> Step:
    """The step that the user's function gives back, whatever it is made of."""
    step = build(ctx)
    if not callable(step):
        raise WorkloadError(
            f"{located(build)} returned {a(step)}; it must return a callable that runs one training step"
        )
    problem = unfit(step)
    if problem is not None:
        raise WorkloadError(f"the step of {located(build)}: {problem}")
    counts = given.otherwise(_Counts(getattr(step, "samples", None), getattr(step, "tokens", None)))
    return Step(step, counts.samples, counts.tokens, close=getattr(step, "close", _nothing))


def _nothing() -> None:
    """A workload holds nothing that the end of its process would not give back."""
