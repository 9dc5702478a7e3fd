"""One launch, as a rank lives it: build the step, warm it up, time it, report. Importable without torch."""

from __future__ import annotations

import math
import multiprocessing
import numbers
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments.clock import clock_for
from pytest_ddpperf.instruments.collector import collector_paused
from pytest_ddpperf.instruments.compilation import compiled_graphs
from pytest_ddpperf.instruments.growth import held_after_steps
from pytest_ddpperf.instruments.memory import begin_peaks, most_taken, read_device_memory, watch_memory
from pytest_ddpperf.launch.interleaving import Waiting
from pytest_ddpperf.records.measurement import Plan, RankLaunch
from pytest_ddpperf.training.exposed import alternating_blocks
from pytest_ddpperf.training.memory_headroom import headroom_for
from pytest_ddpperf.training.timing import BLOCKS, by_period, timed_blocks, turn_sizes
from pytest_ddpperf.units import format_count

if TYPE_CHECKING:
    from pytest_ddpperf.launch.interleaving import Turns
    from pytest_ddpperf.records.communication import BlockTimes, MemoryHeadroom
    from pytest_ddpperf.records.loader_settings import LoaderSettings
    from pytest_ddpperf.records.phases import PhaseTimes
    from pytest_ddpperf.settings import Settings
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.strategies.strategy import Strategy
    from pytest_ddpperf.training.step import Step
    from pytest_ddpperf.training.workload import Workload

DIAGNOSED_STEPS = 5
_DIAGNOSES = 3  # at most, where steps overflow in fp16
_SETTLING_STEPS = 25  # each halves the scale of fp16 gradients, which begins at 2 ** 16
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
        growth: whether steps of their own tell if memory grows.
        diagnosed: whether steps of their own tell where the time goes.
        times_matter: whether times are asked for; else the steps only have to be of full size in memory.
        turns: where to ask for turns at timing, beside launches that run at the same time; None to be alone.
        blocks: how many turns the timed steps take, at most, where they do.
        stands_for: timed steps of the launches that a diagnosis stands for; it goes by their number. None for its own.
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
    times_matter: bool = True
    turns: Turns | None = None
    blocks: int = BLOCKS
    stands_for: int | None = None

    @property
    def counts(self) -> bool:
        """Whether anybody goes by the times of its timed steps."""
        return self.times_matter and self.stands_for is None

    @property
    def diagnosed_plan(self) -> Plan:
        """The plan of the launches that a diagnosis stands for."""
        return self.plan if self.stands_for is None else Plan(warmup=self.plan.warmup, steps=self.stands_for)


def run_launch(ctx: RankView, job: LaunchJob) -> RankLaunch:
    """What this rank measured: step times in seconds, memory peaks in bytes, the last loss.

    Memory is watched from before the model is built to the end of the timed steps, on CUDA from the end of the warm-up;
    no instrument is in timed steps.

    Raises:
        WorkloadError: the subject does not keep its contract, or a loss is no finite number.
        SettingError: there is no such strategy, or not for this world size.
    """
    from pytest_ddpperf.training.step import build_step

    memory = watch_memory(ctx.device)
    turns = None if job.turns is None else Waiting(job.turns, asking=ctx.rank == 0)
    begin = partial(begin_together, turns)
    step = build_step(ctx, job)
    try:
        warmup = _warm_up(ctx, job, step)
        steps = math.ceil(job.plan.steps / step.period) * step.period
        begin_peaks(ctx.device)
        sizes = (steps,) if job.turns is None else turn_sizes(steps, step.period, job.blocks)
        clock = clock_for(ctx.device, marks=max(sizes) + 1)
        graphs = compiled_graphs()
        with collector_paused():
            timed = timed_blocks(step.run, sizes, clock, begin)
        skipped = tuple(number - warmup for number in step.skipped_steps if number >= warmup)
        step_times = by_period(timed.seconds, step.period)
        # Blocks that lost steps have no partners in the other launch.
        blocks = () if job.turns is None or skipped else tuple(size // step.period for size in sizes)
        if job.counts:
            refuse_compiling(compiled_graphs() - graphs, job.plan)
            step_times = without_skipped(step_times, skipped, step.period)
        last_loss = loss_value(timed.loss, f"after {steps} timed steps on rank {ctx.rank}")
        peaks, device_memory = memory(), read_device_memory(ctx.device)
        begin()  # what follows, the end of the ranks too, disturbs no timed step of another launch
        taken = most_taken() if job.turns is None and ctx.device.type == "cpu" else None
        held: tuple[int, ...] = ()
        if job.growth:
            with collector_paused():
                held = held_after_steps(step.run, growth_steps(job.diagnosed_plan.steps), ctx.device)
        background = works_in_background()
        diagnosis = _diagnosis(ctx, job, step, begin) if job.diagnosed else _Diagnosis()
    finally:
        if turns is not None:
            turns.close()
        step.close()
    knows_cpu = not skipped and ctx.device.type == "cpu"
    return RankLaunch(
        rank=ctx.rank,
        step_times=step_times,
        skipped_steps=skipped,
        phases=diagnosis.phases,
        communication=diagnosis.communication,
        no_headroom=diagnosis.no_headroom,
        held=held,
        picked=None if step.data is None or step.data.picked is None else in_words(step.data.picked),
        memory=peaks,
        device_memory=device_memory,
        loss=last_loss,
        samples_per_step=step.samples_per_step,
        tokens_per_step=step.tokens_per_step,
        background=background,
        taken=taken,
        cpu_time=timed.cpu or None if knows_cpu else None,
        blocks=blocks,
        cpu_blocks=timed.cpu_blocks if knows_cpu and blocks else (),
    )


@dataclass(frozen=True)
class _Diagnosis:
    """Where the time of a rank goes; see ``RankLaunch``."""

    phases: PhaseTimes | None = None
    communication: BlockTimes | None = None
    no_headroom: MemoryHeadroom | None = None


def _warm_up(ctx: RankView, job: LaunchJob, step: Step) -> int:
    """Untimed steps; gives how many there were.

    As many as planned. Where times do not matter, they are so few that in fp16 all may overflow, and as many more
    follow as it takes for one to update the parameters: before that the optimizer has no state.

    Raises:
        WorkloadError: a loss is no finite number, or all overflow.
    """
    ran = 0

    def all_overflowed() -> bool:
        return not job.counts and _on_any_rank(ctx, 0 < ran == len(step.skipped_steps))

    while ran < job.plan.warmup or all_overflowed():
        if ran >= max(job.plan.warmup, _SETTLING_STEPS):
            raise WorkloadError(
                f"the gradients of the first {ran} steps all overflowed in fp16, so that none updated the parameters: "
                "scale the loss down, or use precision=bf16"
            )
        ran += 1
        loss_value(step.run(), f"at warm-up step {ran} on rank {ctx.rank}")
    return ran


def _on_any_rank(ctx: RankView, here: bool) -> bool:  # noqa: FBT001  it is what is asked
    """Whether something is so on this rank or another; all have to ask together."""
    import torch
    import torch.distributed as dist

    found = torch.tensor(int(here), device=ctx.device)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return bool(found)


def begin_together(turns: Waiting | None, progress: float = 1.0) -> None:
    """Return on all ranks together: no step must pay for what the others still do.

    Beside other launches, when it is this one's turn; the last turn ends when no rank is at work any more.

    Args:
        turns: where this launch waits for its own.
        progress: as of ``Waiting.wait``.
    """
    import torch.distributed as dist

    if turns is not None:
        dist.barrier()
        turns.wait(progress)
    dist.barrier()


def works_in_background() -> bool:
    """Whether this rank has processes or threads of its own, such as those that load data."""
    main, dummy = threading.main_thread(), threading._DummyThread  # noqa: SLF001 - torch's threads that ran a hook
    threads = [one for one in threading.enumerate() if one is not main and not isinstance(one, dummy)]
    return bool(threads or multiprocessing.active_children())


def _diagnosis(ctx: RankView, job: LaunchJob, step: Step, begin: Callable[[], None]) -> _Diagnosis:
    """One pass after the other, each with steps of its own."""
    from pytest_ddpperf.instruments.phases.diagnosis import diagnose

    plan = job.diagnosed_plan
    for _ in range(_DIAGNOSES):
        overflowed = len(step.skipped_steps)
        begin()
        with collector_paused():
            phases = diagnose(step.run, min(plan.steps, DIAGNOSED_STEPS), ctx.device, step.seams)
        if not _on_any_rank(ctx, len(step.skipped_steps) > overflowed):
            break  # else the optimizer's work is missing in some
    if step.local is None or job.settings.communication is False:
        return _Diagnosis(phases)
    room = headroom_for(step.local.snapshot_bytes(), ctx.device)
    if not room.enough:
        return _Diagnosis(phases, no_headroom=room)
    return _Diagnosis(phases, alternating_blocks(step.local, plan.steps, step.period, ctx.device, job.seed))


def growth_steps(steps: int) -> int:
    """How many steps tell if memory grows, in a launch that times so many."""
    return max(FEWEST_GROWTH_STEPS, min(steps, MOST_GROWTH_STEPS))


def in_words(picked: tuple[LoaderSettings, str]) -> tuple[str, str]:
    """The settings of data loading that were picked as the text of a knob, and the sentence on them."""
    settings, sentence = picked
    return str(settings), sentence


def refuse_compiling(graphs: int, plan: Plan) -> None:
    """Make sure that nothing was compiled while steps were timed.

    Raises:
        WorkloadError: so many graphs were.
    """
    if graphs:
        raise WorkloadError(
            f"torch.compile compiled {format_count(graphs, 'graph')} inside the timed steps, so their times are not "
            f"those of training: raise the warm-up (now {format_count(plan.warmup, 'step')}), or keep shapes and "
            "Python values the same from step to step"
        )


def without_skipped(times: tuple[float, ...], skipped: Sequence[int], period: int) -> tuple[float, ...]:
    """The times of the periods whose steps all updated the parameters: one that overflowed leaves out the optimizer's.

    Args:
        times: of each period.
        skipped: numbers of the steps that overflowed.
        period: steps of each.

    Raises:
        WorkloadError: none is left.
    """
    without = {number // period for number in skipped}
    kept = tuple(time for i, time in enumerate(times) if i not in without)
    if not kept:
        steps = format_count(len(times) * period, "timed step")
        of_each = "" if period == 1 else f", at least once in every {period} of them"
        raise WorkloadError(
            f"fp16 gradients overflowed in {len(skipped)} of {steps}{of_each}, so that no time of a whole update is "
            "left: raise the warm-up until the scale has settled, or use precision=bf16"
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
