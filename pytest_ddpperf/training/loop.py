"""One launch, as a rank lives it: build the step, warm it up, time it, report. Importable without torch."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments.clock import clock_for
from pytest_ddpperf.instruments.collector import collector_paused
from pytest_ddpperf.instruments.compilation import compiled_graphs
from pytest_ddpperf.instruments.growth import held_after_steps
from pytest_ddpperf.instruments.memory import begin_peaks, read_device_memory, watch_memory
from pytest_ddpperf.records import Plan, RankLaunch
from pytest_ddpperf.training.exposed import alternating_blocks
from pytest_ddpperf.training.room import room_for
from pytest_ddpperf.training.timing import by_period, timed_block
from pytest_ddpperf.units import format_count

if TYPE_CHECKING:
    from pytest_ddpperf.communication import BlockTimes, Room
    from pytest_ddpperf.loader_settings import LoaderSettings
    from pytest_ddpperf.phases import PhaseTimes
    from pytest_ddpperf.settings import Settings
    from pytest_ddpperf.strategies import Strategy
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.training.step import Step
    from pytest_ddpperf.training.workload import Workload

DIAGNOSED_STEPS = 5
FEWEST_GROWTH_STEPS, MOST_GROWTH_STEPS = 7, 10  # as many as are timed, within these


@dataclass(frozen=True)
class LaunchJob:
    """What every rank of a launch has to do.

    Attributes:
        subject: a workload, or a function ``build(ctx)`` that gives back one step.
        strategy: how the ranks of a workload are synchronised; None for a function of the user's, which sees to that
            itself.
        settings: what else decides how a workload is trained.
        plan: how many steps.
        samples_per_step: as the test gave it; None to ask the subject. ``tokens_per_step`` likewise.
        seed: of the order of blocks of steps with and without synchronisation; the same on all ranks.
        growth: whether steps that tell if memory grows follow the timed ones.
        diagnosed: whether steps that tell where the time goes follow the timed ones.
    """

    subject: Workload | Callable[[Any], Any]
    strategy: Strategy | None
    settings: Settings
    plan: Plan
    samples_per_step: float | None = None
    tokens_per_step: float | None = None
    seed: int = 0
    growth: bool = True
    diagnosed: bool = True


def run_launch(ctx: RankView, job: LaunchJob) -> RankLaunch:
    """What this rank measured: step times in seconds, memory peaks in bytes, the last loss.

    Memory is watched from before the model is built to the end of the timed steps, on CUDA from the end of the warm-up;
    no instrument is in timed steps.

    Raises:
        WorkloadError: the subject does not keep its contract, or a loss is no finite number.
        SettingError: there is no such strategy, or not for this world size.
    """
    import torch.distributed as dist

    from pytest_ddpperf.training.step import build_step

    memory = watch_memory(ctx.device)
    step = build_step(ctx, job)
    try:
        for number in range(1, job.plan.warmup + 1):
            loss_value(step.run(), f"at warm-up step {number} on rank {ctx.rank}")
        steps = math.ceil(job.plan.steps / step.period) * step.period
        begin_peaks(ctx.device)
        clock = clock_for(ctx.device, marks=steps + 1)
        graphs = compiled_graphs()
        with collector_paused():
            dist.barrier()  # all ranks begin together: the first step must not pay for the others' warm-up
            step_times, loss = timed_block(step.run, steps, clock)
        _refuse_compiling(compiled_graphs() - graphs, job.plan)
        skipped = tuple(number - job.plan.warmup for number in step.skipped_steps if number >= job.plan.warmup)
        updated = by_period(_without_skipped(step_times, skipped), step.period)
        last_loss = loss_value(loss, f"after {steps} timed steps on rank {ctx.rank}")
        peaks, device_memory = memory(), read_device_memory(ctx.device)
        held: tuple[int, ...] = ()
        if job.growth:
            with collector_paused():
                dist.barrier()
                held = held_after_steps(step.run, _growth_steps(job.plan), ctx.device)
        diagnosis = _diagnosis(ctx, job, step) if job.diagnosed else _Diagnosis()
    finally:
        step.close()
    return RankLaunch(
        rank=ctx.rank,
        step_times=updated,
        skipped_steps=skipped,
        phases=diagnosis.phases,
        communication=diagnosis.communication,
        no_room=diagnosis.no_room,
        held=held,
        picked=None if step.data is None or step.data.picked is None else _in_words(step.data.picked),
        memory=peaks,
        device_memory=device_memory,
        loss=last_loss,
        samples_per_step=step.samples_per_step,
        tokens_per_step=step.tokens_per_step,
    )


@dataclass(frozen=True)
class _Diagnosis:
    """Where the time of a rank goes; see ``RankLaunch``."""

    phases: PhaseTimes | None = None
    communication: BlockTimes | None = None
    no_room: Room | None = None


def _diagnosis(ctx: RankView, job: LaunchJob, step: Step) -> _Diagnosis:
    """One pass after the other, each with steps of its own."""
    import torch.distributed as dist

    from pytest_ddpperf.instruments.phases.diagnosis import diagnose

    with collector_paused():
        dist.barrier()
        phases = diagnose(step.run, min(job.plan.steps, DIAGNOSED_STEPS), ctx.device, step.seams)
    if step.local is None or job.settings.communication is False:
        return _Diagnosis(phases)
    room = room_for(step.local.snapshot_bytes(), ctx.device)
    if not room.enough:
        return _Diagnosis(phases, no_room=room)
    return _Diagnosis(phases, alternating_blocks(step.local, job.plan.steps, step.period, ctx.device, job.seed))


def _growth_steps(plan: Plan) -> int:
    return max(FEWEST_GROWTH_STEPS, min(plan.steps, MOST_GROWTH_STEPS))


def _in_words(picked: tuple[LoaderSettings, str]) -> tuple[str, str]:
    settings, sentence = picked
    return str(settings), sentence


def _refuse_compiling(graphs: int, plan: Plan) -> None:
    if graphs:
        raise WorkloadError(
            f"torch.compile compiled {format_count(graphs, 'graph')} inside the timed steps, so their times are not "
            f"those of training: raise the warm-up (now {format_count(plan.warmup, 'step')}), or keep shapes and "
            "Python values the same from step to step"
        )


def _without_skipped(step_times: tuple[float, ...], skipped: Sequence[int]) -> tuple[float, ...]:
    """The times of the steps that updated the parameters: a step that overflowed leaves the optimizer's work out."""
    kept = tuple(time for i, time in enumerate(step_times) if i not in skipped)
    if not kept:
        raise WorkloadError(
            f"the gradients of all {len(step_times)} timed steps overflowed in fp16, so that none updated the "
            "parameters: raise the warm-up until the scale has settled, or use precision=bf16"
        )
    return kept


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
