"""A training step that is ready to be called, made from a workload, or by a user's function."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments.phases.phase_hooks import CLIPPING, SCHEDULING, PhaseHook
from pytest_ddpperf.launch import progress
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.faults.exceptions import frames_of
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import SIMULATED, Mode
from pytest_ddpperf.records.phases import DATA_WAIT, FORWARD, GRADIENT_SYNC, OPTIMIZER, OTHER
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import RankView, Strategy, mesh_of, share_of_samples
from pytest_ddpperf.training.data import Batches, batches, contradicting_size
from pytest_ddpperf.training.jobs import LaunchJob
from pytest_ddpperf.training.model import DATA_SEED, describe_value, seed, size_of
from pytest_ddpperf.training.script_run import ScriptRun
from pytest_ddpperf.training.separable import OwnSynchronisation, own_synchronisation
from pytest_ddpperf.training.subject import Script, Workload, located, unfit
from pytest_ddpperf.training.trainer import Trainer, choose_kernels

Separable: TypeAlias = "Trainer | OwnSynchronisation"
"""The type of training code that can skip its averaging of gradients over the ranks."""
_UNKNOWN = -1  # the size of a batch without tensors


@dataclass(frozen=True, kw_only=True)
class Step:
    """A training step as a function, with the known facts about it."""

    run: Callable[[], Any]  # returns the loss: a number, a scalar tensor, or None
    samples_per_step: float | None  # of this rank; None if unknown
    tokens_per_step: float | None  # of this rank; None if unknown
    close: Callable[[], object]  # releases what the step holds
    skipped_steps: Sequence[int] = ()  # the steps so far, from 0, that updated nothing because fp16 overflowed
    epoch_steps: float | None = None  # for which the data of this rank last; None if they have no end or no length
    data: Batches | None = None  # where a workload's batches come from
    modules: Sequence[nn.Module] = ()  # the models, if known
    size: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of the whole model, as of ``size_of``
    optimizers: Sequence[torch.optim.Optimizer] = ()  # if known
    period: int = 1  # steps after which work and times of data loading repeat; the same on all ranks
    work_period: int = 1  # steps after which the work repeats; data loading runs ahead of the steps
    phase_hooks: Sequence[PhaseHook] = ()  # functions that a diagnosis watches to separate phases
    group_kept: Callable[[], AbstractContextManager[None]] = nullcontext  # around steps that may touch the group
    group: dist.ProcessGroup | None = None  # where the ranks that measure meet; None for the default group
    remarks: Sequence[Finding] = ()  # on what was given to be trained
    unsynchronised: Separable | None = None  # what can train without the gradients of other ranks

    def taken(self) -> Any:
        """Runs one step, and returns its loss."""
        progress.step()
        with self.group_kept():
            return self.run()


def build_step(ctx: RankView, job: LaunchJob) -> Step:
    """Builds the job's step; all ranks call this together. The job's sample and token counts override the subject's."""
    progress.stage(progress.BUILD)
    subject, settings = job.subject, job.settings
    if not isinstance(subject, Workload):
        assert not isinstance(subject, Script)  # noqa: S101  its run has taken its place
        return _script_step(ctx, subject, job) if isinstance(subject, ScriptRun) else _users_step(ctx, subject, job)
    assert job.strategy is not None  # noqa: S101  only a step of the user's own has none
    trainer, data, run = _training_step(ctx, subject, job.strategy, settings, job.plan.warmup)
    own_period = math.lcm(trainer.parallel.period, data.burst)
    periods, sizes = zip(*of_all_ranks((own_period, _UNKNOWN if data.size is None else data.size), ctx), strict=True)
    try:
        _require_equal(sizes, subject)
    except WorkloadError:
        data.close()
        raise
    samples = subject.samples_per_step if job.samples_per_step is None else job.samples_per_step
    tokens = subject.tokens_per_step if job.tokens_per_step is None else job.tokens_per_step
    # In compiled training synchronisation is part of the graph, and there would be another graph without it. The state
    # of an optimizer that is none of torch's could not be restored.
    separable = settings.compile == "no" and isinstance(trainer.optimizer, torch.optim.Optimizer)
    return Step(
        run=run,
        samples_per_step=_of_rank(samples, ctx, settings.accumulation_steps),
        tokens_per_step=_of_rank(tokens, ctx, settings.accumulation_steps),
        close=data.close,
        skipped_steps=trainer.skipped_steps,
        epoch_steps=None if data.length is None else data.length / settings.accumulation_steps,
        data=data,
        modules=[trainer.parallel.module],
        size=trainer.size,
        optimizers=[trainer.optimizer],
        # Loaders may differ between ranks. Periods must not: ranks would wait for one that ran fewer steps.
        period=math.lcm(*periods),
        work_period=trainer.parallel.period,
        phase_hooks=_phase_hooks(trainer, data, settings),
        remarks=(*_remarks(trainer, data, subject, samples), *_tf32_override(ctx, settings)),
        unsynchronised=trainer if separable else None,
    )


def _remarks(trainer: Trainer, data: Batches, subject: Workload, samples: float) -> tuple[Finding, ...]:
    found = []
    size = contradicting_size(data.shapes, samples)
    if size is not None:
        found.append(Finding("other_batch_size", {"size": size, "samples": samples, "passes": 1}))
    if trainer.evaluating:
        found.append(Finding("evaluating", {"model": located(subject.model)}))
    return tuple(found)


def other_batch_size(counts: Counts, step: Step, settings: Settings, mode: Mode | None) -> list[Finding]:
    """Returns a finding if the number of rows in a user's step contradicts the test's ``samples_per_step``."""
    rows, samples = counts.totals.get("batch_rows"), step.samples_per_step
    # A workload's batches are known before; and ranks may have parts of samples, or of batches.
    if not rows or samples is None or step.data is not None or settings.mesh is not None or mode == "strong":
        return []
    passes = int(counts.totals["backward_passes"])
    shapes = [tuple(map(int, shape.split()[2::2])) for shape in counts.details["batch_rows"]]
    size, second = contradicting_size(shapes, samples / passes), [shape[1:2] for shape in shapes]
    # PPO, for example, optimizes several times on the same samples, and a GAN once for each of its models.
    if counts.totals.get("optimizer_steps", 0) > 1 and size is not None and samples % size == 0:
        return []
    # One graph, one packed row, a mean of packed ones, a row for each token, or samples along the second dimension.
    if size is None or samples <= 1 or samples % 1 or rows == step.tokens_per_step or (samples,) in second:
        return []
    return [Finding("other_batch_size", {"size": size, "samples": samples, "passes": passes})]


def _tf32_override(ctx: RankView, settings: Settings) -> tuple[Finding, ...]:
    """Returns a finding if an environment variable makes NVIDIA's libraries ignore torch's setting of TF32."""
    value = os.environ.get("NVIDIA_TF32_OVERRIDE") if ctx.device.type == "cuda" else None
    return (Finding("tf32_override", {"value": value, "precision": settings.precision}),) if value else ()


def _of_rank(count: float | None, ctx: RankView, batches_per_step: int = 1) -> float | None:
    ranks = ctx.world_size if ctx.mode == "strong" else 1
    return None if count is None else count * batches_per_step / ranks


def of_all_ranks(own: Sequence[int], ctx: RankView) -> list[list[int]]:
    """Gathers the numbers ``own`` of every rank, in the order of ranks; every rank has to pass equally many numbers."""
    if ctx.backend == SIMULATED:
        return [list(own)]
    mine = torch.tensor(own, device=ctx.device)
    found = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(found, mine)
    return [numbers.tolist() for numbers in found]


def _require_equal(sizes: Sequence[int], workload: Workload) -> None:
    """Raises an error if ranks have batches of different sizes: the mean over ranks would weight samples unequally."""
    given = workload.batch if workload.loader is None else workload.loader
    if given is not None and len({size for size in sizes if size != _UNKNOWN}) > 1:
        told = ", ".join(f"rank {rank}: {size}" for rank, size in enumerate(sizes) if size != _UNKNOWN)
        raise WorkloadError(
            f"{located(given)} gave the ranks batches of different sizes ({told}), but averaging weighs the gradients "
            "of all ranks equally, and samples_per_step holds for each rank: give all ranks batches of the same size"
        )


def _phase_hooks(trainer: Trainer, data: Batches, settings: Settings) -> tuple[PhaseHook, ...]:
    """Returns hooks that mark the phases of a workload's step; none if hooks would make the step recompile."""
    if settings.compile == "step":
        return ()
    return (
        *([PhaseHook(data, "next_batch", DATA_WAIT)] if data.loads else []),
        PhaseHook(trainer, trainer.computes_loss, FORWARD),
        PhaseHook(trainer, "synchronise", GRADIENT_SYNC),
        PhaseHook(trainer, "clip", OPTIMIZER, CLIPPING),
        *([PhaseHook(trainer, "rise", OTHER, SCHEDULING)] if trainer.rise is not None else []),
        PhaseHook(trainer, "schedule", OPTIMIZER, SCHEDULING),
    )


def _training_step(
    ctx: RankView, workload: Workload, strategy: Strategy, settings: Settings, warmup: int
) -> tuple[Trainer, Batches, Callable[[], torch.Tensor]]:
    trainer = Trainer(ctx, workload, strategy, settings, warmup=warmup)
    seed(DATA_SEED if ctx.mode == "strong" else DATA_SEED + ctx.rank)
    data = batches(ctx, workload, settings.loader if workload.batch is None else None)
    choose_kernels(settings, ctx.device)  # again: batch or loader may have chosen others
    backward, update = trainer.backward, trainer.update

    def run() -> torch.Tensor:
        loss = backward(data)
        update()
        return loss

    if settings.compile == "step":
        run = torch.compile(run, backend=settings.compile_backend)
    return trainer, data, run


def _users_step(ctx: RankView, build: Callable[[Any], Any], job: LaunchJob) -> Step:
    share, group_kept, given = 1.0, partial(_group_kept, located(build)), ctx
    if job.settings.mesh is not None:
        mesh = mesh_of(ctx, job.settings.mesh)
        share = 1.0 if mesh is None else share_of_samples(job.settings.mesh)
        given = replace(cast("RankContext", ctx), mesh=mesh)
    with group_kept():
        step = build(given)
    if not callable(step) or isinstance(step, nn.Module):
        raise WorkloadError(
            f"{located(build)} returned {describe_value(step)}: return a function that runs one training step, or, to "
            "measure a function that trains by itself, give Script(function)"
        )
    word = "yield" if inspect.isgeneratorfunction(step) else "async" if inspect.iscoroutinefunction(step) else ""
    if word:
        reason = f"the step of {located(build)} is a function with {word}, so calling it runs nothing"
        raise WorkloadError(f"{reason}: return a plain function that runs one training step")
    problem = unfit(step)
    if problem is not None:
        raise WorkloadError(f"the step of {located(build)}: {problem}")
    module, offered = getattr(step, "module", None), getattr(step, "unsynchronised", None)

    def count(of_call: float | None, word: str) -> float | None:
        if of_call is not None and ctx.mode == "strong":
            return _of_rank(of_call, ctx)
        own = getattr(step, word, None) if of_call is None else of_call
        return None if own is None else own * share

    return Step(
        run=step,
        unsynchronised=None if offered is None else own_synchronisation(located(build), offered),
        samples_per_step=count(job.samples_per_step, "samples"),
        tokens_per_step=count(job.tokens_per_step, "tokens"),
        close=getattr(step, "close", lambda: None),  # the end of its process releases the rest
        size=size_of(module) if isinstance(module, nn.Module) else {},
        group_kept=group_kept,
    )


def _script_step(ctx: RankView, script: ScriptRun, job: LaunchJob) -> Step:
    script.begin()
    return Step(
        run=script,
        samples_per_step=_of_rank(job.samples_per_step, ctx),
        tokens_per_step=_of_rank(job.tokens_per_step, ctx),
        close=script.close,
        group=script.group,
        remarks=script.gpu_calls.remarks,
    )


@contextmanager
def _group_kept(who: str) -> Iterator[None]:
    """Raises an error if ``who``, the user's code, changes the default process group, because ranks would then hang."""
    ours, cure = dist.group.WORLD, "; leave that call out, or give the whole training as Script(function)"
    try:
        yield
    except Exception as error:
        if dist.group.WORLD is not ours:
            raise WorkloadError(f"{who} ended the process group that the plugin made{cure}") from error
        if dist.init_process_group.__name__ in {frame.function for frame in frames_of(error)}:
            raise WorkloadError(f"{who} calls init_process_group, but the plugin has called it{cure}") from error
        raise
    if dist.group.WORLD is not ours:
        done = "ended" if dist.group.WORLD is None else "replaced"
        raise WorkloadError(f"{who} {done} the process group that the plugin made{cure}")
