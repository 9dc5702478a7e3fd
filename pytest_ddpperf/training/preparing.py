"""Runs on a rank: the preparatory launch before the timed launches, and the profiling launch. Needs no torch."""

from __future__ import annotations

import gc
import math
import re
import threading
import warnings
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.host import shared_memory
from pytest_ddpperf.instruments.memory import most_taken, read_device_memory, watch_memory
from pytest_ddpperf.instruments.torch_internals import compiled_graphs, compiled_since, replaced
from pytest_ddpperf.launch import progress, rank
from pytest_ddpperf.launch.processes import children
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.training import loop, timing
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob, RankPrepared, TraceJob, rank_file, settled_steps

if TYPE_CHECKING:
    from pytest_ddpperf.records.counts import Counts
    from pytest_ddpperf.records.launch import RankLaunch
    from pytest_ddpperf.records.phases import RankProfile
    from pytest_ddpperf.strategies.strategy import RankView
    from pytest_ddpperf.training.step import Step

_SHARED_MEMORY = 2**30  # bytes of /dev/shm; NCCL takes about 10 MB for each pair of ranks, and data workers take more
# What DDP warns of, once in a process: a gradient of other strides than its place in a bucket.
_STRIDES = re.compile(r"Grad strides do not match bucket view strides.*?sizes\(\) = (\[[^]]*\])", re.DOTALL)
_MANY = 3  # warm steps at least lie between two looks at what they leave


def prepare_launch(ctx: RankView, job: PrepareJob) -> RankPrepared:
    """Times, counts and verifies the job's step, in this order, as the job requests; all ranks call this together."""
    if job.traced:
        from pytest_ddpperf.training.correctness.tracing import trace_steps

        begun = time.monotonic()
        trace = trace_steps(ctx, job.training)
        return RankPrepared(trace=trace, verifying=time.monotonic() - begun)
    said, show = list[str](), warnings.showwarning

    def shown(message: Warning | str, *arguments: Any, **others: Any) -> None:
        said.append(str(message))
        show(message, *arguments, **others)

    with replaced(warnings, "showwarning", shown):
        prepared = _prepared(ctx, job)
    strides = next(filter(None, map(_STRIDES.search, said)), None)
    if strides is None:
        return prepared
    return replace(prepared, remarks=(*prepared.remarks, Finding("strided_gradients", {"shape": strides[1]})))


def _prepared(ctx: RankView, job: PrepareJob) -> RankPrepared:
    timed, counts, verification, counting, verifying = None, None, None, 0.0, 0.0
    remarks = small_shared_memory(ctx)
    if job.timed or job.counted:
        timed, counts, counting = _timed_and_counted(ctx, job, remarks)
    if job.verified is not None:
        import torch

        from pytest_ddpperf.training.correctness.verifier import verify_launch

        begun = time.monotonic()
        if job.parts > 1:  # random numbers, memory and compilers get the state of a fresh process
            gc.collect()  # a model and its wrapper hold each other
            if ctx.device.type == "cuda":
                torch.cuda.empty_cache()
            if compiled_graphs():
                torch.compiler.reset()  # else shapes that differ from earlier ones would be compiled as dynamic
            rank.seed_as_at_the_start()
        progress.stage("the comparison with a single process")
        verification = verify_launch(ctx, job.verified)
        verifying = time.monotonic() - begun
    return RankPrepared(
        timed=timed,
        counts=counts if counts is None or job.copied else replace(counts, copy=None),
        verification=verification,
        remarks=tuple(remarks),
        counting=counting,
        verifying=verifying,
    )


def small_shared_memory(ctx: RankView) -> list[Finding]:
    """Returns a finding if /dev/shm is small and several ranks use NCCL, which may send data through /dev/shm."""
    size = shared_memory() if ctx.backend == "nccl" and ctx.local_world_size > 1 else None
    return [] if size is None or size >= _SHARED_MEMORY else [Finding("small_shared_memory", {"size": size})]


def _at_work() -> tuple[int, int]:
    return len(children()), threading.active_count()


def _left_by_steps(before: tuple[int, int]) -> list[Finding]:
    processes, threads = (max(0, now - then) for now, then in zip(_at_work(), before, strict=True))
    found = [Finding("left_by_steps", {"processes": processes, "threads": threads})]
    return found if max(processes, threads) >= _MANY else []


def _timed_and_counted(
    ctx: RankView, job: PrepareJob, remarks: list[Finding]
) -> tuple[RankLaunch | None, Counts | None, float]:
    from pytest_ddpperf.training.seen import Seen
    from pytest_ddpperf.training.step import build_step

    training, plan = job.training, job.training.plan
    begun, seen, timed, counts = time.monotonic(), Seen(plan, timed=job.timed), None, None
    # How many more steps a warm-up takes depends on the machine, and what is counted must not.
    settled = plan.warmup if job.timed else settled_steps(plan)
    memory = watch_memory(ctx.device)  # from here on peaks are the step's own
    with seen.loaders.followed(), loop.within_limit(ctx, training), closing(build_step(ctx, training)) as step:
        first = time.monotonic()
        known = compiled_graphs()
        compiled = compiled_since(known)

        def look(ran: int) -> None:
            nonlocal known, compiled
            known = compiled_graphs() if ran == 1 else known
            compiled = compiled_since(known) if ran == plan.warmup else compiled

        if job.timed:
            warmup = timing.warm_up(ctx, training, step, look)
            before = _at_work()
            timed = loop.time_steps(ctx, training, step, warmup=warmup, turns=None)
            loop.require_within(memory(), training)
            timed = replace(timed, background=loop.works_in_background(), taken=most_taken())
            timed = replace(timed, device_memory=read_device_memory(ctx.device))
            if timed.epoch_steps is None:
                timed = replace(timed, epoch_steps=seen.loaders.epoch_steps(warmup + plan.steps))
            # Work that follows on one rank must not disturb the last timed step of another.
            loop.begin_together(ctx.device, None, step)
            begun = time.monotonic()
            timed = replace(timed, worked=begun - first)
        else:
            progress.stage(progress.WARM_UP)
            run = timing.checked_run(ctx, step)
            for warmup in range(1, settled + 1):
                run()
                look(warmup)
                seen.look(warmup)
            loop.require_within(memory(), training)
            before = _at_work()
        if job.counted:
            progress.stage("the step that is counted")
            counts = seen.counted(ctx, training, step, compiled, remarks)
        remarks += [*step.remarks, *(_left_by_steps(before) if warmup else ())]
        return timed, counts, (time.monotonic() - begun) * job.counted


def profile_launch(ctx: RankView, job: LaunchJob, trace: TraceJob | None = None) -> RankProfile:
    """Profiles a few steps after the warm-up; with ``trace``, also writes a trace and on a GPU a memory snapshot."""
    from pytest_ddpperf.instruments.profile.profiling import profile_steps
    from pytest_ddpperf.training.step import build_step

    shown, steps = max(1, job.settings.profile_warmup), job.settings.profile_steps
    with closing(build_step(ctx, job)) as step:
        progress.stage("the steps that are profiled")
        steps = math.ceil(steps / step.period) * step.period
        # The warm-up has one step more, in which the profiler itself warms up. The first step builds and compiles.
        for _ in range(max(int(trace is not None), job.plan.warmup + 1 - shown)):
            step.run()
        loop.begin_together(ctx.device, None, step)
        if trace is None:
            return profile_steps(step.run, steps, ctx.device, step.modules, warmup=shown)
        return _traced(ctx, step, steps, trace, warmup=shown)


def _traced(ctx: RankView, step: Step, steps: int, trace: TraceJob, *, warmup: int) -> RankProfile:
    from pytest_ddpperf.instruments.phases.phase_hooks import named_ranges
    from pytest_ddpperf.instruments.profile.profiling import profile_steps, write_snapshot, write_trace

    file = Path(trace.folder, rank_file(trace.name, ctx.rank))
    with named_ranges(step.run, step.phase_hooks) as ranges:
        profile = profile_steps(
            step.run,
            steps,
            ctx.device,
            step.modules,
            warmup=warmup,
            exported=lambda document: write_trace(document(), file, ctx.rank, ranges.rates),
        )
    if ctx.device.type != "cuda":
        return profile
    snapshot = file.with_name(f"{trace.name}_rank_{ctx.rank}_memory.pickle")
    return replace(profile, no_snapshot=write_snapshot(step.run, step.period, ctx.device, snapshot))
