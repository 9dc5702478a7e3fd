"""The preparing launch on a rank: time a few steps, count one, verify training against a single process.

Importable without torch.
"""

from __future__ import annotations

import gc
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from pytest_ddpperf.instruments.memory import most_taken, watch_memory
from pytest_ddpperf.instruments.torch_internals import compiled_graphs, warmed_up
from pytest_ddpperf.launch.rank import seed_as_at_the_start
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.training.loop import (
    begin_together,
    loss_value,
    picked_text,
    time_steps,
    whole_periods,
    works_in_background,
)
from pytest_ddpperf.training.prepare_job import PrepareJob, RankPrepared

if TYPE_CHECKING:
    from pytest_ddpperf.instruments.counting.counting import Countable, Details
    from pytest_ddpperf.records.counts import Counts
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.training.job import LaunchJob
    from pytest_ddpperf.training.step import Step

MIN_WARMUP = 2  # before counting: DDP rebuilds its buckets after the first step


def prepare_launch(ctx: RankView, job: PrepareJob) -> RankPrepared:
    """Does the tasks of the job on this rank; a collective, called on every rank of a launch of its own.

    Timing comes first, so that its memory figure is that of steps alone; counting continues with the same step.
    Verification builds its own models and finds random numbers, memory and compilers as in a fresh process.
    """
    timed, counts, verification = None, None, None
    if job.timed:
        timed, counts, seconds = _timed_and_counted(ctx, job)
    else:
        begun = time.monotonic()
        # Counts the step of the training that would be counted if steps had been timed before.
        plan = job.training.plan
        later = replace(job.training, plan=replace(plan, warmup=plan.warmup + plan.steps))
        counts = count_launch(ctx, later) if job.counted else None
        seconds = time.monotonic() - begun
    if job.verified is not None:
        from pytest_ddpperf.training.correctness.verifier import verify_launch

        begun = time.monotonic()
        if job.parts > 1:
            _clean_up(ctx)
        verification = verify_launch(ctx, job.verified)
        seconds += time.monotonic() - begun
    return RankPrepared(timed, counts, verification, seconds)


def count_launch(ctx: RankView, job: LaunchJob) -> Counts:
    """Counts what one step of the job does on this rank after the warm-up; the number of timed steps is ignored."""
    from pytest_ddpperf.instruments.counting.counting import count_step
    from pytest_ddpperf.training.step import build_step

    with closing(build_step(ctx, job)) as step:
        return count_step(step.run, _countable(ctx, step), warmup=max(MIN_WARMUP, job.plan.warmup))


def _countable(ctx: RankView, step: Step) -> Countable:
    from pytest_ddpperf.instruments.counting.counting import Countable

    return Countable(ctx.device, step.modules, step.optimizers, step.work_period)


def _timed_and_counted(ctx: RankView, job: PrepareJob) -> tuple[RankLaunch, Counts | None, float]:
    """Returns the timed steps, the counts of a later step, and the seconds that counting took."""
    from pytest_ddpperf.instruments.counting.counting import count_warm_step
    from pytest_ddpperf.training.step import build_step

    watch_memory(ctx.device)  # from here on peaks are the step's own
    with closing(build_step(ctx, job.training)) as step:
        timed, compiled = _timed(ctx, job.training, step)
        begun, counts = time.monotonic(), None
        if job.counted:
            plan = job.training.plan
            for _ in range(MIN_WARMUP - plan.warmup - plan.steps):
                step.run()
            counts = count_warm_step(step.run, _countable(ctx, step), compiled)
        return timed, counts, time.monotonic() - begun


def _timed(ctx: RankView, job: LaunchJob, step: Step) -> tuple[RankLaunch, Details]:
    """Times a few steps after the warm-up; returns them, and what torch.compile did in the warm-up."""
    ran = 0

    def warm_up() -> None:
        nonlocal ran
        ran += 1
        loss_value(step.run(), f"at warm-up step {ran} on rank {ctx.rank}")

    compiled = warmed_up(warm_up, job.plan.warmup)
    sizes = (whole_periods(job.plan.steps, step),)
    timed = time_steps(ctx, job, step, sizes, warmup=ran, begin=partial(begin_together, None))
    launch = RankLaunch(
        rank=ctx.rank,
        step_times=timed.times,
        skipped_steps=timed.skipped,
        picked=picked_text(step),
        memory={},
        loss=timed.loss,
        samples_per_step=step.samples_per_step,
        tokens_per_step=step.tokens_per_step,
        background=works_in_background(),
        taken=most_taken() if ctx.device.type == "cpu" else None,
    )
    begin_together(None)  # work that follows on one rank must not disturb the last timed step of another
    return launch, compiled


def _clean_up(ctx: RankView) -> None:
    """Restores random numbers, memory and compilers to the state of a fresh process."""
    gc.collect()  # a model and its wrapper hold each other
    if ctx.device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
    if compiled_graphs():
        import torch

        torch.compiler.reset()  # else shapes that differ from earlier ones would be compiled as dynamic
    seed_as_at_the_start()
