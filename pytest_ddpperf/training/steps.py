"""How many steps each part of a launch takes, and into how many blocks they are divided. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MIN_GROWTH_STEPS, MAX_GROWTH_STEPS = 7, 10
MIN_PAIRS, MAX_PAIRS = 4, 8  # enough to know their scatter; parameters are restored after each


BLOCKS = 45
"""Blocks of a launch that takes turns: some 10 to 20 ms each.

A disturbance of a shared machine lasts for some tenths of a second, and then another one follows. It hits both sides
alike only if they alternate faster. benchmarks/turns.py prints by how much two sides of the same code differ."""


DIAGNOSED_STEPS = 5


def growth_steps(steps: int) -> int:
    """How many steps show if memory grows, in a launch that times ``steps``."""
    return max(MIN_GROWTH_STEPS, min(steps, MAX_GROWTH_STEPS))


SHARE = 0.5  # of the timed steps


BLOCK_STEPS = 4


@dataclass(frozen=True)
class Blocks:
    """The number of pairs of blocks, and of timed steps in each block; an untimed period precedes every block."""

    pairs: int
    steps: int


def blocks_for(steps: int, period: int = 1) -> Blocks:
    """The blocks for a launch with ``steps`` timed steps: about half as many, at least four pairs of one period."""
    periods = int(steps * SHARE) // (2 * period)  # for each side
    pairs = min(MAX_PAIRS, max(MIN_PAIRS, periods * period // (BLOCK_STEPS + period)))
    return Blocks(pairs, max(1, periods // pairs - 1) * period)
