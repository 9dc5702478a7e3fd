"""One launch, as a rank lives it: build the step, warm it up, time it, report. Importable without torch."""

from __future__ import annotations

import gc
import math
import numbers
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments.clock import Clock, clock_for
from pytest_ddpperf.instruments.memory import watch_memory
from pytest_ddpperf.records import Plan, RankLaunch

if TYPE_CHECKING:
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.training.workload import Workload


@dataclass(frozen=True)
class LaunchJob:
    """What every rank of a launch has to do.

    Attributes:
        subject: a workload, or a function ``build(ctx)`` that gives back one step.
        strategy: how the ranks of a workload are synchronised; a function of the user's sees to that itself.
        plan: how many steps.
        samples_per_step: as the test gave it; None to ask the subject. ``tokens_per_step`` likewise.
    """

    subject: Workload | Callable[[Any], Any]
    strategy: str
    plan: Plan
    samples_per_step: float | None = None
    tokens_per_step: float | None = None


def run_launch(ctx: RankView, job: LaunchJob) -> RankLaunch:
    """What this rank measured: step times in seconds, memory peaks in bytes, the last loss.

    Memory is watched from before the model is built to the end of the timed steps; no instrument is in those.

    Raises:
        WorkloadError: the subject does not keep its contract, or a loss is no finite number.
        SettingError: there is no such strategy, or not for this world size.
    """
    import torch.distributed as dist

    from pytest_ddpperf.training.step import build_step

    memory = watch_memory(ctx.device)
    step = build_step(ctx, job.subject, job.strategy, job.samples_per_step, job.tokens_per_step)
    try:
        for number in range(1, job.plan.warmup + 1):
            loss_value(step.run(), f"at warm-up step {number} on rank {ctx.rank}")
        clock = clock_for(ctx.device, marks=job.plan.steps + 1)
        with collector_paused():
            dist.barrier()  # all ranks begin together: the first step must not pay for the others' warm-up
            step_times, loss = timed_block(step.run, job.plan.steps, clock)
        last_loss = loss_value(loss, f"after {job.plan.steps} timed steps on rank {ctx.rank}")
        peaks = memory()
    finally:
        step.close()
    return RankLaunch(
        rank=ctx.rank,
        step_times=step_times,
        memory=peaks,
        loss=last_loss,
        samples_per_step=step.samples_per_step,
        tokens_per_step=step.tokens_per_step,
    )


def timed_block(run: Callable[[], Any], steps: int, clock: Clock) -> tuple[tuple[float, ...], Any]:
    """The seconds of each of ``steps`` calls of ``run``, and what the last one gave back.

    Consecutive marks, so that the loop's own time is inside and the times add up to the block's.
    """
    loss = None
    mark = clock.mark
    clock.settle()
    marks = [mark()]
    for _ in range(steps):
        loss = run()
        marks.append(mark())
    return clock.seconds(marks), loss


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside: first collect, then set aside what is left, so that none is due."""
    enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def loss_value(loss: Any, when: str) -> float | None:
    """A step's loss as a number; None where the step gave none.

    Raises:
        WorkloadError: it is no number, or not a finite one.
    """
    if loss is None:
        return None
    value = loss.item() if getattr(loss, "numel", lambda: 0)() == 1 else loss
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise WorkloadError(
            f"the step gave back {_shape_or_type(loss)} {when}; "
            "it must give back the loss (a number or a scalar tensor) or None"
        )
    if not math.isfinite(value):
        raise WorkloadError(
            f"loss is {float(value)} {when}: a training that diverges is not worth timing; "
            "look at its learning rate and its data"
        )
    return float(value)


def _shape_or_type(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"a value of type {type(value).__name__}" + ("" if shape is None else f" and shape {tuple(shape)}")
