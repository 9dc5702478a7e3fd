"""Blocks of steps with and without synchronisation of gradients, which alternate. Importable without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.instruments.clock import clock_for, collector_paused
from pytest_ddpperf.records.communication import BlockTimes
from pytest_ddpperf.training.steps import blocks_for
from pytest_ddpperf.training.timing import by_period, timed_block

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class UnsynchronisedStep:
    """A step that can run without the gradients of the other ranks.

    Attributes:
        run: runs one step and returns its loss.
        unsynchronised: a context in which steps average no gradients.
        snapshot: saves what training changes; its result restores that.
        snapshot_bytes: the host memory that a snapshot takes.
        still_sent: what an unsynchronised step sends all the same, in words; empty for nothing.
        skipped_steps: the numbers of the steps that overflowed in fp16 so far.
    """

    run: Callable[[], Any]
    unsynchronised: Callable[[], AbstractContextManager[None]]
    snapshot: Callable[[], Callable[[], None]]
    snapshot_bytes: Callable[[], int]
    still_sent: str = ""
    skipped_steps: Sequence[int] = ()


def sides(pairs: int, seed: int) -> tuple[bool, ...]:
    """Which blocks are synchronised, in an order that is the same on all ranks.

    Neighbouring pairs begin with opposite sides, and so do launches with neighbouring seeds. A drift over the blocks
    then affects both sides.
    """
    return tuple((pair + seed + block) % 2 == 0 for pair in range(pairs) for block in (0, 1))


def alternating_blocks(
    step: UnsynchronisedStep, steps: int, period: int, device: torch.device, seed: int
) -> BlockTimes | None:
    """Times both kinds of steps on this rank; None if a step overflowed in fp16, because sides then do not compare.

    A collective, called with the same numbers on all ranks. Ranks begin the timed steps of a block together and meet
    in it only where the steps do. After each block parameters, buffers, the state of optimizer and scaler and the
    number of steps are restored; the learning rate, data and random numbers go on.
    """
    blocks = blocks_for(steps, period)
    times: dict[bool, list[float]] = {True: [], False: []}
    overflowed = len(step.skipped_steps)
    restore = step.snapshot()
    with collector_paused():
        for synchronised in sides(blocks.pairs, seed):
            with nullcontext() if synchronised else step.unsynchronised():
                times[synchronised] += _block(step, blocks.steps, period, device)
            restore()
    if len(step.skipped_steps) > overflowed:
        return None
    return BlockTimes(
        synchronised=tuple(times[True]),
        unsynchronised=tuple(times[False]),
        still_sent=step.still_sent,
        pairs=blocks.pairs,
    )


def _block(step: UnsynchronisedStep, steps: int, period: int, device: torch.device) -> tuple[float, ...]:
    """Times steps after one untimed period."""
    import torch.distributed as dist

    for _ in range(period):
        step.run()
    clock = clock_for(device, marks=steps + 1)
    dist.barrier()
    times, _ = timed_block(step.run, steps, clock)
    return by_period(times, period)
