"""Runs untimed steps, timed blocks of steps, and blocks with and without averaging of gradients. Needs no torch."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.instruments.clock import Clock, clock_for, collector_paused
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.launch import progress
from pytest_ddpperf.records.phases import BlockTimes
from pytest_ddpperf.training.jobs import BLOCKS, CUDA_WARMUP_SECONDS, LaunchJob, blocks_for

if TYPE_CHECKING:
    import torch

    from pytest_ddpperf.strategies.strategy import RankView
    from pytest_ddpperf.training.step import Separable, Step

_RUN_AHEAD = 5  # steps of a warm-up that nothing waits for, as in timed ones: the allocator needs more memory for them
_MAX_SETTLING_STEPS = 25  # each overflow halves the fp16 scale, which begins at 2 ** 16
MIN_PERIODS = 2  # of a block
MAX_MISSED, NEGLIGIBLE = 0.05, 1e-3  # share of a block's wall time, and seconds, that events may miss of it
DEVICE_BLOCKS, MIN_DEVICE_STEPS = 10, 5  # of a launch on CUDA; in the first step of a block a device waits for its host


def warmup_seconds(device: torch.device, job: LaunchJob) -> float:
    """Returns the least seconds of the warm-up: 0.5 if times on CUDA matter, because GPU clocks rise slowly, else 0."""
    return CUDA_WARMUP_SECONDS if device.type == "cuda" and job.times_matter else 0.0


def keeping_loss(run: Callable[[], Any], number: int, kept: list[Any]) -> Callable[[], Any]:
    """Wraps ``run`` to copy the loss of call ``number`` into ``kept``, because a CUDA graph would overwrite it."""
    made = itertools.count(1)

    def keeping() -> Any:
        loss = run()
        if next(made) == number:
            kept.append(loss.detach().clone() if hasattr(loss, "detach") else loss)
        return loss

    return keeping


def warm_up(ctx: RankView, job: LaunchJob, step: Step, after_each: Callable[[int], object]) -> int:
    """Runs untimed steps, and returns their number, which is the same on all ranks.

    ``after_each`` is called with the number of steps so far, except in additional steps that a GPU needs to raise its
    clocks. If the launch's times are no part of the result, the warm-up lasts until a step updates the parameters.
    """
    run, ran, seconds = checked_run(ctx, step), 0, warmup_seconds(ctx.device, job)
    progress.stage(progress.WARM_UP)
    begun = time.monotonic()

    while ran < job.plan.warmup or (
        not job.counts and on_any_rank(ctx, step, 0 < ran == len(step.skipped_steps))  # all overflowed
    ):
        if ran >= max(job.plan.warmup, _MAX_SETTLING_STEPS):
            reason = f"fp16 gradients overflowed in each of the first {ran} steps, so no step updated the parameters"
            raise WorkloadError(f"{reason}: scale the loss down, or use precision=bf16")
        ran += 1
        run()
        after_each(ran)
        if ran == 1:  # which compiles, and loads kernels
            begun = time.monotonic()
    while seconds and on_any_rank(ctx, step, time.monotonic() - begun < seconds):
        ran += _RUN_AHEAD
        run(_RUN_AHEAD)
    return ran


def checked_run(ctx: RankView, step: Step) -> Callable[..., None]:
    """Returns a function that runs one or several warm-up steps, and raises an error if the last loss is not finite."""
    made = itertools.count(1)

    def run(steps: int = 1) -> None:
        for _ in range(steps):
            loss, number = step.taken(), next(made)
        loss_value(loss, f"at warm-up step {number} on rank {ctx.rank}")

    return run


def on_any_rank(ctx: RankView, step: Step, here: bool) -> bool:  # noqa: FBT001  it is what is asked
    """Returns whether ``here`` is True on at least one rank; all ranks call this function together."""
    import torch
    import torch.distributed as dist

    found = torch.tensor(int(here), device=ctx.device if step.group is None else "cpu")  # a script's group is gloo's
    dist.all_reduce(found, dist.ReduceOp.MAX, group=step.group)
    return bool(found)


def loss_value(loss: Any, when: str) -> float | None:
    """Returns a step's loss, or None; raises a WorkloadError, which says ``when``, if it is no finite number."""
    if loss is None:
        return None
    value = loss.item() if getattr(loss, "numel", lambda: 0)() == 1 else loss
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        shape = getattr(value, "shape", None)
        found = f"a value of type {type(value).__name__}" + ("" if shape is None else f" and shape {tuple(shape)}")
        raise WorkloadError(f"the step returned {found} {when}: return the loss (a number or a scalar tensor) or None")
    if not math.isfinite(value):
        reason = f"loss is {float(value)} {when}, so training diverges and cannot be measured"
        raise WorkloadError(f"{reason}: check the learning rate and the data")
    return float(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedSteps:
    """The timed steps of a rank."""

    seconds: tuple[float, ...]  # of each step
    loss: Any  # what the last step returned
    losses: tuple[Any, ...]  # what each step returned, tensors as numbers; empty on CUDA, where that would wait
    cpu: float  # CPU seconds of the process per step
    cpu_blocks: tuple[float, ...]  # the same of each block


def timed_block(
    run: Callable[[], Any], steps: int, clock: Clock, losses: list[Any] | None = None
) -> tuple[tuple[float, ...], Any]:
    """Calls ``run`` ``steps`` times; returns the seconds of each call, and the last result.

    Results are appended to ``losses``, scalar tensors as numbers, because a tensor might hold memory. A step ends when
    the next step starts, so the times add up. If CUDA events miss work, each step gets an equal part of the wall time.
    """
    loss = None
    mark = clock.mark
    clock.settle()
    begun = 0.0 if clock.wall is None else clock.wall()
    marked = getattr(run, "marked", None)
    if marked is not None:  # a script, whose own thread makes the marks
        marks = marked(steps, mark)
    else:
        marks = [mark()]
        for _ in range(steps):
            progress.step()
            loss = run()
            if losses is not None:
                losses.append(_as_number(loss))
            marks.append(mark())
    if clock.wall is None:
        return clock.seconds(marks), loss
    clock.settle()
    wall = clock.wall() - begun
    seconds = clock.seconds(marks)
    missed = abs(wall - math.fsum(seconds))
    if missed <= max(MAX_MISSED * wall, NEGLIGIBLE):
        return seconds, loss
    clock.missed.append(missed / wall)
    return (wall / steps,) * steps, loss


def _as_number(loss: Any) -> Any:
    if not hasattr(loss, "detach"):
        return loss
    return loss.item() if loss.numel() == 1 else loss.detach()  # which is refused after the steps


def timed_blocks(
    run: Callable[[], Any],
    sizes: Sequence[int],
    clock: Clock,
    begin: Callable[[float], None],
    *,
    keep_losses: bool = False,
) -> TimedSteps:
    """Times blocks of ``sizes`` steps; before each block, calls ``begin`` with the fraction of finished blocks."""
    seconds: list[float] = []
    cpu: list[float] = []
    loss, losses = None, list[Any]() if keep_losses else None
    progress.stage(progress.TIMED)
    for number, size in enumerate(sizes):
        begin(number / len(sizes))
        before = time.process_time()
        times, loss = timed_block(run, size, clock, losses)
        cpu.append(time.process_time() - before)
        seconds += times
    cpu_blocks = tuple(used / size for used, size in zip(cpu, sizes, strict=True))
    return TimedSteps(
        seconds=tuple(seconds),
        loss=loss,
        losses=tuple(losses or ()),
        cpu=math.fsum(cpu) / len(seconds),
        cpu_blocks=cpu_blocks,
    )


def turn_sizes(steps: int, period: int, blocks: int = BLOCKS, least: int = MIN_PERIODS) -> tuple[int, ...]:
    """Divides steps into at most ``blocks`` blocks of at least ``least`` periods; returns the steps of each block."""
    periods = steps // period
    number = min(blocks, max(1, periods // least))
    return tuple(period * (periods * (i + 1) // number - periods * i // number) for i in range(number))


def device_sizes(steps: int, period: int) -> tuple[int, ...]:
    """Returns each timed block's number of steps on CUDA, a multiple of ``period``, after which the work repeats."""
    return turn_sizes(steps, period, DEVICE_BLOCKS, least=math.ceil(MIN_DEVICE_STEPS / period))


def by_period(step_times: Sequence[float], period: int) -> tuple[float, ...]:
    """Returns the mean step time of each period of ``period`` steps."""
    whole = max(1, len(step_times) // period) * period
    periods = [step_times[i : i + period] for i in range(0, min(whole, len(step_times)), period)]
    return tuple(math.fsum(times) / len(times) for times in periods)


def sides(pairs: int, seed: int) -> tuple[bool, ...]:
    """Returns for each block whether its steps synchronise; pairs alternate between (True, False) and (False, True)."""
    return tuple((pair + seed + block) % 2 == 0 for pair in range(pairs) for block in (0, 1))  # so that drifts cancel


def alternating_blocks(
    run: Callable[[], Any], trainer: Separable, device: torch.device, *, steps: int, period: int, seed: int
) -> BlockTimes | None:
    """Times blocks of steps with and without synchronisation; None if a step overflowed in fp16.

    All ranks call this function together, with equal arguments. After each block, the trainer's state is restored,
    except the learning rate, the data and random numbers.
    """
    still_sent = trainer.still_sent(run)
    pairs, of_block = blocks_for(steps, period)
    times: dict[bool, list[float]] = {True: [], False: []}
    overflowed = len(trainer.skipped_steps)
    restore = trainer.snapshot()
    with collector_paused():
        for synchronised in sides(pairs, seed):
            with nullcontext() if synchronised else trainer.unsynchronised():
                times[synchronised] += _block(run, of_block, period, device)
            restore()
    if len(trainer.skipped_steps) > overflowed:
        return None
    whole, alone = tuple(times[True]), tuple(times[False])
    return BlockTimes(synchronised=whole, unsynchronised=alone, still_sent=still_sent, pairs=pairs)


def _block(run: Callable[[], Any], steps: int, period: int, device: torch.device) -> tuple[float, ...]:
    import torch.distributed as dist

    for _ in range(period):
        run()
    clock = clock_for(device, marks=steps + 1)
    clock.settle()  # gloo's barrier does not wait for the device
    dist.barrier()
    times, _ = timed_block(run, steps, clock)
    return by_period(times, period)
