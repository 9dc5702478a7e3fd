"""Launches of simulated ranks, each in a separate process, to count or time a step. Importable without torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

from pytest_ddpperf.errors import DdpperfError, in_a_line
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.host import free_memory
from pytest_ddpperf.instruments.torch_internals import warmed_up
from pytest_ddpperf.launch import progress
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.rank import seed_as_at_the_start
from pytest_ddpperf.planner.hardware import ACCELERATORS
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import SIMULATED
from pytest_ddpperf.records.predictions import Timeline
from pytest_ddpperf.strategies.table import row_of
from pytest_ddpperf.training.jobs import MIN_WARMUP, LaunchJob, PrepareJob, RankPrepared
from pytest_ddpperf.training.memory_limit import limited

T = TypeVar("T")


def simulate_launch(ctx: RankContext, job: PrepareJob, rank: int, world_size: int) -> RankPrepared:
    """Counts one step of the job on a single simulated rank of ``world_size`` ranks, without other processes.

    The rank uses FakeTensors, which take no memory. If the job needs real tensors, a finding in the result says why.
    """
    begun = time.monotonic()
    counted = partial(_counted, _as_rank(ctx, rank, world_size), job.training)
    (counts, remarks), reason = _with_few_values(job.training, counted)
    if reason:
        remarks = (*remarks, Finding("simulated_with_values", {"reason": reason}))
    return RankPrepared(counts=counts, remarks=remarks, counting=time.monotonic() - begun)


def timeline_launch(ctx: RankContext, job: LaunchJob, world_size: int, tf32: bool) -> Timeline:  # noqa: FBT001
    """Returns the timeline of a step (computing and collectives) on a simulated rank of ``world_size`` ranks.

    Computing is timed on this machine's device with real tensors, or modelled for the setting ``accelerator``, whose
    fp32 matrix products may use TF32 (``tf32``). Several ranks of a launch compute at the same time.
    """
    free, here = free_memory(), ctx.local_world_size
    room = None if free is None else free // here
    timed = partial(_timed, _as_rank(ctx, ctx.rank, world_size), job, room, tf32=tf32)
    return timed(values=True) if job.settings.accelerator is None else _with_few_values(job, timed)[0]


def _as_rank(ctx: RankContext, rank: int, world_size: int) -> RankContext:
    """Returns the context of the simulated rank ``rank``, or of the last rank if the group has fewer ranks."""
    rank = min(rank, world_size - 1)
    return replace(
        ctx, rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size, backend=SIMULATED
    )


def _with_few_values(job: LaunchJob, simulated: Callable[..., T]) -> tuple[T, str]:
    """Calls ``simulated``, if possible with FakeTensors; returns the result, and the reason for real tensors or ""."""
    reason = needs_values(job)
    if not reason:
        try:
            return simulated(values=False), ""
        except DdpperfError:
            raise
        except Exception as error:  # noqa: BLE001  whatever code does that reads values
            reason = in_a_line(error)
    seed_as_at_the_start()
    return simulated(values=True), reason


def _timed(ctx: RankContext, job: LaunchJob, room: int | None, *, values: bool, tf32: bool) -> Timeline:
    """Returns the timeline of a step after warm-up. ``room`` limits memory; ``values``: whether to use real tensors."""
    from pytest_ddpperf.instruments.clock import clock_for, collector_paused
    from pytest_ddpperf.planner.simulate.group import grouped_as_on_gpus, rank_of, without_values
    from pytest_ddpperf.planner.simulate.timeline import Roofline, TimelineRecorder, timeline_of
    from pytest_ddpperf.training.step import build_step

    progress.stage("the simulated step")
    accelerator = job.settings.accelerator
    with ExitStack() as opened:
        if accelerator is None:
            recorder = TimelineRecorder(clock_for(ctx.device, marks=0))
        else:
            roofline = Roofline(ACCELERATORS[accelerator], tf32=tf32)
            recorder = roofline.recorder()
            opened.enter_context(grouped_as_on_gpus())
        kernels = () if accelerator is not None else (ctx.device.type.upper(),)
        opened.enter_context(limited(ctx.device, room))
        opened.enter_context(rank_of(ctx.rank, ctx.world_size, recorder, kernels))
        opened.enter_context(nullcontext() if values else without_values())
        step = opened.enter_context(closing(build_step(ctx, job)))
        for _ in range(max(MIN_WARMUP, job.plan.warmup)):
            step.taken()
        opened.enter_context(recorder.watching_waits())
        if accelerator is not None:
            opened.enter_context(roofline)
        with collector_paused():  # modelled operators always take the same time
            timeline = timeline_of(recorder, step.taken, step.work_period, once=accelerator is not None)
        return replace(timeline, samples=step.samples_per_step)


def needs_values(job: LaunchJob) -> str:
    """Returns the reason why a job needs real tensors; empty if FakeTensors (without values) may be enough."""
    settings = job.settings
    if job.strategy is not None and row_of(job.strategy).reads_values:
        return f"the C++ code of {job.strategy.name} reads the values of tensors"
    if settings.compile != "no":
        return f"compile={settings.compile} compiles only for real tensors"
    return "the gradient scaler of precision=fp16 reads the values of gradients" if settings.precision == "fp16" else ""


def _counted(ctx: RankContext, job: LaunchJob, *, values: bool) -> tuple[Counts, tuple[Finding, ...]]:
    """Returns the counts of a step after warm-up, and findings; ``values``: whether to use real tensors or FakeTensors.

    With FakeTensors, the warm-up is short. It is long only if the setting ``clip_steps`` lets just the first steps clip
    gradients, because the counted step has to be a later step.
    """
    from pytest_ddpperf.instruments.counting.counting import count_warm_step
    from pytest_ddpperf.instruments.counting.sites import making_noted
    from pytest_ddpperf.planner.simulate.group import rank_of, without_values
    from pytest_ddpperf.training.seen import countable
    from pytest_ddpperf.training.step import build_step

    warmup = max(MIN_WARMUP, job.plan.warmup if values or job.settings.clip_steps is not None else 0)
    progress.stage("the simulated step")
    with ExitStack() as opened:
        opened.enter_context(limited(ctx.device, free_memory() if values else None))
        opened.enter_context(rank_of(ctx.rank, ctx.world_size))
        opened.enter_context(making_noted())
        opened.enter_context(nullcontext() if values else without_values())
        step = opened.enter_context(closing(build_step(ctx, job)))
        compiled = warmed_up(step.taken, warmup)
        return count_warm_step(step.taken, countable(ctx, step, job), compiled, steps=0), tuple(step.remarks)
