"""A launch on a rank: it builds the step, warms it up, times it, and reports. Importable without torch."""

from __future__ import annotations

import math
import multiprocessing
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments import host, memory, torch_internals
from pytest_ddpperf.instruments.clock import clock_for, collector_paused, settle, tracers
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.launch import interleaving, progress
from pytest_ddpperf.launch.faults.flight_recorder import ANSWERING
from pytest_ddpperf.launch.interleaving import TurnClient
from pytest_ddpperf.launch.preloading.imports import end_watch
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.phases import MemoryHeadroom
from pytest_ddpperf.training import timing
from pytest_ddpperf.training.jobs import LaunchJob, growth_steps
from pytest_ddpperf.training.memory_limit import limited
from pytest_ddpperf.units import format_count, format_value

if TYPE_CHECKING:
    import torch

    from pytest_ddpperf.strategies.strategy import RankView
    from pytest_ddpperf.training.step import Step

_MAX_DIAGNOSES = 3  # repeated only while fp16 steps overflow
_UNKNOWN_FREE = 2**62  # bytes; where free memory is not known, every copy fits


def run_launch(ctx: RankView, job: LaunchJob) -> RankLaunch:
    """Builds the job's step, warms it up, times it and measures memory; also diagnoses it if the job requests this."""
    import torch

    from pytest_ddpperf.training.step import build_step

    read_peaks, started = memory.watch_memory(ctx.device), time.monotonic()  # on CUDA, peaks of the timed steps
    with ExitStack() as opened:
        opened.enter_context(within_limit(ctx, job))
        step = opened.enter_context(closing(build_step(ctx, job)))
        built = time.monotonic()  # a script has made its first step
        turns = None
        if job.turns:
            turns = TurnClient(interleaving.asking, threads=torch.get_num_threads() > 1)
            opened.enter_context(closing(turns))
            step = met_by_hosts(ctx, step)
        begun = time.monotonic()
        told_step = job.plan.warmup + math.ceil(job.plan.steps / step.period) * step.period  # whose loss is reported
        kept: list[Any] = []
        if timing.warmup_seconds(ctx.device, job) and not hasattr(step.run, "marked"):  # a script reports no loss
            step = replace(step, run=timing.keeping_loss(step.run, told_step, kept))
        ends = [built] if hasattr(step.run, "marked") else list[float]()
        warmup = timing.warm_up(ctx, job, step, lambda _: ends.append(time.monotonic()))
        compiling = torch_internals.compile_seconds()
        memory.begin_peaks(ctx.device)
        timed = time_steps(ctx, job, step, warmup=warmup, turns=turns)
        peaks = read_peaks()
        require_within(peaks, job)
        # Neither the passes below nor the end of ranks may disturb another launch's steps.
        begin_together(ctx.device, turns, step)
        device_memory = memory.read_device_memory(ctx.device)  # when no rank is in timed steps any more
        if device_memory is not None and turns is not None:  # what is outside is that of all launches on the GPU
            device_memory = replace(device_memory, reserved=None)
        taken = memory.most_taken() if turns is None else None
        held: tuple[int, ...] = ()
        if job.growth:
            progress.stage("the steps that check whether memory grows")
            with collector_paused():
                held = memory.held_after_steps(step.run, growth_steps(job.diagnosed_steps), ctx.device)
        launch = replace(
            timed, memory=peaks, device_memory=device_memory, taken=taken, held=held, background=works_in_background()
        )
        launch = replace(launch, first_step=ends[0] - started if ends else None, compiling=compiling)
        told = _diagnosis(ctx, job, step, turns) if job.diagnosed else {}
        if kept:
            told["loss"] = timing.loss_value(kept[0], f"after {told_step} steps on rank {ctx.rank}")
        return replace(launch, **told, worked=time.monotonic() - begun)


def probe_launch(ctx: RankView, job: LaunchJob, memory_limit: int | None) -> RankLaunch:
    """Runs the launch with at most ``memory_limit`` bytes, or raises MemoryError; only memory peaks are reliable."""
    with limited(ctx.device, memory_limit):
        settings = replace(job.settings, memory_limit=None)  # the peak that the limit is compared with is reported
        return run_launch(ctx, replace(job, settings=settings, growth=False, diagnosed=False, times_matter=False))


def within_limit(ctx: RankView, job: LaunchJob) -> AbstractContextManager[None]:
    """Returns a context in which steps raise MemoryError if they need more memory than the job allows."""
    if job.settings.memory_limit is None:
        return nullcontext()
    return limited(ctx.device, job.settings.memory_limit)


def require_within(peaks: Mapping[str, float], job: LaunchJob) -> None:
    """Raises MemoryError if the peak of resident memory is above the job's ``memory_limit``."""
    limit, peak = job.settings.memory_limit, peaks.get("peak_resident")
    if limit is not None and peak is not None and peak > limit:
        raise MemoryError(f"steps took {format_value(peak, 'B')}, more than memory_limit={format_value(limit, 'B')}")


def time_steps(ctx: RankView, job: LaunchJob, step: Step, *, warmup: int, turns: TurnClient | None) -> RankLaunch:
    """Times the job's steps, rounded up to whole periods of ``step.period`` steps; the result has no memory peaks.

    ``warmup`` steps ran before. Raises WorkloadError if a loss is not finite, if torch.compile compiles in timed steps,
    or if fp16 overflows in every period.
    """
    steps = math.ceil(job.plan.steps / step.period) * step.period
    sizes = (steps,) if ctx.device.type == "cpu" else timing.device_sizes(steps, step.period)
    begin = partial(begin_together, ctx.device, turns, step)
    if turns is not None:
        sizes = timing.turn_sizes(steps, step.period, job.blocks) if ctx.device.type == "cpu" else sizes
    clock = clock_for(ctx.device, marks=steps + len(sizes))
    graphs = torch_internals.compiled_graphs()
    end_watch()
    tracing = tracers()
    begun = time.monotonic()
    with collector_paused():
        timed = timing.timed_blocks(step.run, sizes, clock, begin, keep_losses=ctx.device.type == "cpu")
    window = begun, time.monotonic()
    skipped = tuple(number - warmup for number in step.skipped_steps if number >= warmup)
    losses = [
        timing.loss_value(loss, f"at timed step {number + 1} of {steps} on rank {ctx.rank}")
        for number, loss in enumerate(timed.losses)
        if number not in skipped
    ]
    known_losses = [loss for loss in losses if loss is not None]
    times = timing.by_period(timed.seconds, step.period)
    of_block: tuple[float, ...] = tuple(block for block, size in enumerate(sizes) for _ in range(size // step.period))
    if job.counts:
        if compiled := torch_internals.compiled_graphs() - graphs:
            raise WorkloadError(
                f"torch.compile compiled {format_count(compiled, 'graph')} inside the timed steps, so their times "
                f"include compilation: raise the warm-up (now {format_count(job.plan.warmup, 'step')}), or keep "
                "shapes and Python values the same from step to step"
            )
        times, of_block = (_without_skipped(each, skipped, step.period) for each in (times, of_block))
    on_device = clock.wall is not None
    # A block that lost steps to overflows has no counterpart in the paired launch.
    in_blocks = on_device if turns is None else not skipped
    blocks = tuple(Counter(of_block).values()) if in_blocks else ()
    groups = getattr(step.optimizers[0], "param_groups", ()) if step.optimizers else ()
    rate = groups[0].get("lr") if groups else None
    cpu_known = not skipped and ctx.device.type == "cpu"
    return RankLaunch(
        rank=ctx.rank,
        step_times=times,
        memory={},
        loss=timing.loss_value(timed.loss, f"after {steps} timed steps on rank {ctx.rank}"),
        samples_per_step=step.samples_per_step,
        tokens_per_step=step.tokens_per_step,
        epoch_steps=step.epoch_steps,
        skipped_steps=skipped,
        mean_loss=fmean(known_losses) if known_losses else None,
        learning_rate=None if rate is None else float(rate),
        picked=None if step.data is None else step.data.picked,
        cpu_time=timed.cpu or None if cpu_known else None,
        blocks=blocks,
        cpu_blocks=timed.cpu_blocks if cpu_known and blocks else (),
        tracers=tracing,
        unseen=max(clock.missed, default=0.0) if on_device else None,
        window=window,
    )


def met_by_hosts(ctx: RankView, step: Step) -> Step:
    """Returns the step with a gloo group for barriers, because NCCL's barrier would occupy a shared GPU."""
    import torch.distributed as dist

    if ctx.backend == "gloo" or step.group is not None:
        return step
    return replace(step, group=dist.new_group(backend="gloo"))


def begin_together(device: torch.device, turns: TurnClient | None, step: Step, progress: float = 1.0) -> None:
    """Waits until the device is idle, all ranks arrive and no other launch runs; ``progress``: share of steps done."""
    settle(device)
    if turns is not None:
        turns.rest()
        torch_internals.meet(step.group)
        turns.wait(progress)
    torch_internals.meet(step.group)


def works_in_background() -> bool:
    """Returns whether processes or threads of this rank, such as DataLoader workers, may compute between steps."""
    ours, dummy = {threading.main_thread(), threading.current_thread()}, threading._DummyThread  # noqa: SLF001 - torch's threads that ran a hook
    others = [thread for thread in threading.enumerate() if thread not in ours and not isinstance(thread, dummy)]
    return bool([thread for thread in others if thread.name != ANSWERING] or multiprocessing.active_children())


def _diagnosis(ctx: RankView, job: LaunchJob, step: Step, turns: TurnClient | None) -> dict[str, Any]:
    from pytest_ddpperf.instruments.phases.diagnosed_steps import diagnose, read_rates
    from pytest_ddpperf.training.separable import SynchronisationKept

    steps = job.diagnosed_steps
    progress.stage("the steps that are diagnosed")
    for _ in range(_MAX_DIAGNOSES):
        overflowed = len(step.skipped_steps)
        begin_together(ctx.device, turns, step)
        with collector_paused():
            phases = diagnose(step.run, job.steps_to_diagnose(step.period), ctx.device, step.phase_hooks)
        if not timing.on_any_rank(ctx, step, len(step.skipped_steps) > overflowed):
            break  # a step that overflowed lacks the optimizer's work
    begin_together(ctx.device, turns, step)
    told: dict[str, Any] = {"phases": phases, "rates": read_rates(ctx.device, job.settings.precision)}
    trainer = step.unsynchronised
    if trainer is None or job.settings.communication is False:
        return told
    headroom = headroom_for(trainer.snapshot_bytes(), ctx)
    if not headroom.enough:
        return {**told, "no_headroom": headroom}
    try:
        times = timing.alternating_blocks(step.run, trainer, ctx.device, steps=steps, period=step.period, seed=job.seed)
    except SynchronisationKept as kept:
        return {**told, "kept": str(kept)}
    return {**told, "communication": times}


def headroom_for(nbytes: int, ctx: RankView) -> MemoryHeadroom:
    """Returns the memory that copies of ``nbytes`` bytes on each rank need, and the least free memory of any rank."""
    from pytest_ddpperf.training.step import of_all_ranks

    free = host.free_memory()
    needed, found = zip(*of_all_ranks((nbytes, _UNKNOWN_FREE if free is None else free), ctx), strict=True)
    return MemoryHeadroom(needed=sum(needed), free=min(found))


def _without_skipped(times: tuple[float, ...], skipped: Sequence[int], period: int) -> tuple[float, ...]:
    """Returns step times without the periods in which fp16 overflowed and the optimizer did not step."""
    without = {number // period for number in skipped}
    kept = tuple(time for i, time in enumerate(times) if i not in without)
    if not kept:
        steps = format_count(len(times) * period, "timed step")
        of_each = "" if period == 1 else f", at least one in each update of {period} steps"
        reason = f"fp16 gradients overflowed in {len(skipped)} of {steps}{of_each}, so no complete update was timed"
        raise WorkloadError(f"{reason}: raise the warm-up, in which the loss scale falls, or use precision=bf16")
    return kept
