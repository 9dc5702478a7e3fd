"""Steps with and without synchronisation of gradients, in blocks that alternate. Importable without torch."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_ddpperf.instruments.clock import clock_for
from pytest_ddpperf.instruments.collector import collector_paused
from pytest_ddpperf.records.communication import BlockTimes
from pytest_ddpperf.training.timing import by_period, timed_block

if TYPE_CHECKING:
    import torch

    from pytest_ddpperf.training.step import Local

SHARE = 0.5  # of the timed steps; one launch tells for all
BLOCK_STEPS = 4
FEWEST_PAIRS, MOST_PAIRS = 4, 8  # they know their scatter; parameters are put back after each


@dataclass(frozen=True)
class Blocks:
    """How many pairs of blocks, and how many timed steps in each; an untimed period of steps leads in to every one."""

    pairs: int
    steps: int


def blocks_for(steps: int, period: int = 1) -> Blocks:
    """The blocks beside so many timed steps: about half of them, but at least four pairs of one period a side.

    Args:
        steps: timed steps of the launch.
        period: after how many steps what they do repeats; blocks are whole periods.
    """
    periods = int(steps * SHARE) // (2 * period)  # for each side
    pairs = min(MOST_PAIRS, max(FEWEST_PAIRS, periods * period // (BLOCK_STEPS + period)))
    return Blocks(pairs, max(1, periods // pairs - 1) * period)


def sides(pairs: int, seed: int) -> tuple[bool, ...]:
    """Which blocks are synchronised, in order: both sides of each pair, in an order that is the same on all ranks.

    Neighbouring pairs begin with the other side, and so do launches whose seeds are neighbours: what drifts over the
    blocks then drifts for both sides.
    """
    return tuple((pair + seed + block) % 2 == 0 for pair in range(pairs) for block in (0, 1))


def alternating_blocks(local: Local, steps: int, period: int, device: torch.device, seed: int) -> BlockTimes | None:
    """The times of both kinds of steps on this rank; None where a step overflowed in fp16, so that they do not compare.

    All ranks have to call it together, with the same numbers. They begin the timed steps of a block together and meet
    nowhere in it but where the steps do. After each block parameters, buffers, what optimizer and scaler keep and the
    number of steps are again what they were at first; the learning rate, data and random numbers go on.

    Args:
        local: the step, and the way to keep its gradients on this rank.
        steps: timed steps of the launch, of which the number of these follows.
        period: after how many steps what they do repeats.
        device: where the steps compute.
        seed: of the order of the blocks; the same on all ranks.
    """
    blocks = blocks_for(steps, period)
    times: dict[bool, list[float]] = {True: [], False: []}
    overflowed = len(local.skipped_steps)
    restore = local.snapshot()
    with collector_paused():
        for synchronised in sides(blocks.pairs, seed):
            with nullcontext() if synchronised else local.unsynchronised():
                times[synchronised] += _block(local, blocks.steps, period, device)
            restore()
    if len(local.skipped_steps) > overflowed:
        return None
    return BlockTimes(
        synchronised=tuple(times[True]),
        unsynchronised=tuple(times[False]),
        still_sent=local.still_sent,
        pairs=blocks.pairs,
    )


def _block(local: Local, steps: int, period: int, device: torch.device) -> tuple[float, ...]:
    """The seconds of steps, after a period of them that leads in."""
    import torch.distributed as dist

    for _ in range(period):
        local.run()
    clock = clock_for(device, marks=steps + 1)
    dist.barrier()
    times, _ = timed_block(local.run, steps, clock)
    return by_period(times, period)
