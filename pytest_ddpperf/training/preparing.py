"""The preparing launch, as a rank lives it: time a few steps, count one, compare training with a single process.

Importable without torch.
"""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_ddpperf.instruments.clock import clock_for
from pytest_ddpperf.instruments.collector import collector_paused
from pytest_ddpperf.instruments.compilation import compiled_graphs
from pytest_ddpperf.instruments.memory import most_taken, watch_memory
from pytest_ddpperf.launch.rank import seed_as_at_the_start
from pytest_ddpperf.records.measurement import RankLaunch
from pytest_ddpperf.training.correctness.verification import verify_launch
from pytest_ddpperf.training.counting import LEAST_WARMUP, count_launch
from pytest_ddpperf.training.loop import (
    begin_together,
    in_words,
    loss_value,
    refuse_compiling,
    without_skipped,
    works_in_background,
)
from pytest_ddpperf.training.timing import by_period, timed_blocks

if TYPE_CHECKING:
    from pytest_ddpperf.records.counts import Counts
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.training.correctness.verification import Verification, VerifyJob
    from pytest_ddpperf.training.loop import LaunchJob
    from pytest_ddpperf.training.step import Step

_Details = dict[str, dict[str, float]]


@dataclass(frozen=True)
class PrepareJob:
    """What every rank of a preparing launch has to find out.

    Attributes:
        training: what is built and stepped; without ``timed``, the steps of its plan belong to the warm-up.
        timed: whether the steps of its plan are timed: they tell how long steps and launches take.
        counted: whether it is counted what a step does.
        verified: what is compared with a single process; None for nothing.
    """

    training: LaunchJob
    timed: bool = False
    counted: bool = False
    verified: VerifyJob | None = None

    @property
    def parts(self) -> int:
        """How many things there are to find out, each of which used to take a launch."""
        return self.timed + self.counted + (self.verified is not None)


@dataclass(frozen=True)
class RankPrepared:
    """What one rank of a preparing launch found out; None for what was not asked.

    Attributes:
        timed: of the timed steps, with no more than a plan of launches needs: no peaks of memory, no diagnosis.
        counts: what one step does on this rank.
        verification: how the training compares with a single process.
        seconds: that counting and comparing took.
    """

    timed: RankLaunch | None
    counts: Counts | None
    verification: Verification | None
    seconds: float


def prepare_launch(ctx: RankView, job: PrepareJob) -> RankPrepared:
    """Find out on this rank what the job asks for. A collective: called on every rank of a launch of its own.

    Timing comes first, so that what it tells of memory is that of steps alone; counting goes on with the same step.
    The comparison builds models of its own, and finds random numbers, memory and compilers as in a fresh process.

    Raises:
        WorkloadError: the subject does not keep its contract, or a loss is no finite number.
        SettingError: there is no such strategy, or not for this world size.
        RankSkipped: this device cannot do what the settings ask for.
    """
    timed, counts, verification = None, None, None
    if job.timed:
        timed, counts, seconds = _timed_and_counted(ctx, job)
    else:
        begun = time.monotonic()
        # The same step of a training is counted as where others are timed before.
        plan = job.training.plan
        later = replace(job.training, plan=replace(plan, warmup=plan.warmup + plan.steps))
        counts = count_launch(ctx, later) if job.counted else None
        seconds = time.monotonic() - begun
    if job.verified is not None:
        begun = time.monotonic()
        if job.parts > 1:
            _clean_up(ctx)
        verification = verify_launch(ctx, job.verified)
        seconds += time.monotonic() - begun
    return RankPrepared(timed, counts, verification, seconds)


def _timed_and_counted(ctx: RankView, job: PrepareJob) -> tuple[RankLaunch, Counts | None, float]:
    """The timed steps, the counts of later ones, and the seconds that these took."""
    from pytest_ddpperf.instruments.counting.counting import Countable, count_warm_step
    from pytest_ddpperf.training.step import build_step

    watch_memory(ctx.device)  # from here on peaks are the step's own
    step = build_step(ctx, job.training)
    try:
        timed, compiled = _timed(ctx, job.training, step)
        begun, counts = time.monotonic(), None
        if job.counted:
            plan = job.training.plan
            for _ in range(LEAST_WARMUP - plan.warmup - plan.steps):
                step.run()
            subject = Countable(ctx.device, step.modules, step.optimizers, step.work_period)
            counts = count_warm_step(step.run, subject, compiled)
        return timed, counts, time.monotonic() - begun
    finally:
        step.close()


def _timed(ctx: RankView, job: LaunchJob, step: Step) -> tuple[RankLaunch, _Details]:
    """A few steps timed after the warm-up, as those that are measured; and what was compiled in the warm-up."""
    from pytest_ddpperf.instruments.counting.graphs import warmed_up

    warmup = job.plan.warmup
    ran = 0

    def warm_up() -> None:
        nonlocal ran
        ran += 1
        loss_value(step.run(), f"at warm-up step {ran} on rank {ctx.rank}")

    compiled = warmed_up(warm_up, warmup)
    steps = math.ceil(job.plan.steps / step.period) * step.period
    clock = clock_for(ctx.device, marks=steps + 1)
    graphs = compiled_graphs()
    with collector_paused():
        timed = timed_blocks(step.run, (steps,), clock, lambda progress: begin_together(None, progress))
    refuse_compiling(compiled_graphs() - graphs, job.plan)
    skipped = tuple(number - warmup for number in step.skipped_steps if number >= warmup)
    launch = RankLaunch(
        rank=ctx.rank,
        step_times=without_skipped(by_period(timed.seconds, step.period), skipped, step.period),
        skipped_steps=skipped,
        picked=None if step.data is None or step.data.picked is None else in_words(step.data.picked),
        memory={},
        loss=loss_value(timed.loss, f"after {steps} timed steps on rank {ctx.rank}"),
        samples_per_step=step.samples_per_step,
        tokens_per_step=step.tokens_per_step,
        background=works_in_background(),
        taken=most_taken() if ctx.device.type == "cpu" else None,
    )
    begin_together(None)  # what follows on one rank must not disturb the last timed step of another
    return launch, compiled


def _clean_up(ctx: RankView) -> None:
    """Leave the process as a fresh one, as far as what was run here before has changed it."""
    gc.collect()  # a model and what is wrapped around it hold each other
    if ctx.device.type == "cuda":
        import torch

        torch.cuda.empty_cache()
    if compiled_graphs():
        import torch

        torch.compiler.reset()  # else shapes that differ from those seen before would be compiled as variable ones
    seed_as_at_the_start()
