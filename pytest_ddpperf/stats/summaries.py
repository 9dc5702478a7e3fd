"""The steps of one launch in one number: typical step, tail, quantiles, growth from step to step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

USUAL = 0.75  # the share of a launch's steps that a typical one is made of
LONGEST = 2.0  # times the typical step
LEAST = 1 / 3
"""The share of a launch's steps that its CPU time is made of: the blocks of them that took least.

A rank that loses its core finds cold caches when it goes on, and pays for these in CPU time. Beside a busy process the
rest of the blocks hide the code's own work (benchmarks/cpu_blocks.py).
"""
OUTLYING_INCREASES = 2  # so many increases are left out at either end


def quantile(values: Sequence[float], q: float) -> float:
    """The ``q`` quantile of ``values``, interpolated linearly between its neighbours.

    Definition 7 of Hyndman and Fan, "Sample Quantiles in Statistical Packages" (1996): numpy's and R's default.

    Args:
        values: at least one number, in any order.
        q: between 0 (the minimum) and 1 (the maximum).

    Raises:
        ValueError: there are no values, or ``q`` lies outside 0 to 1.
    """
    if not values:
        raise ValueError("a quantile needs at least one value")
    if not 0 <= q <= 1:
        raise ValueError(f"a quantile lies between 0 and 1, not at {q}")
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def typical(step_times: Sequence[float]) -> float:
    """The step time in seconds that stands for a whole launch: the mean of its usual steps.

    A mean of many steps scatters less from launch to launch than one quantile of them, above all where steps last one
    or two ticks of the scheduler (``benchmarks/verdict_quality.py`` prints by how much). It is blind to a slowdown of
    a quarter of the steps or fewer.

    Raises:
        ValueError: there are no steps.
    """
    if not step_times:
        raise ValueError("a typical step needs at least one step")
    usual = usual_steps(step_times)
    return math.fsum(step_times[i] for i in usual) / len(usual)


def typical_of_blocks(blocks: Sequence[tuple[float, int]]) -> float:
    """The step time that stands for a launch, from seconds and steps of its blocks: the mean step of the usual ones.

    A quarter of the blocks, rounded down, is left out: the slowest. Work that comes back within a block is in all of
    them, and so in the mean, however few steps have it.
    """
    usual = sorted(blocks, key=lambda block: block[0] / block[1])[: len(blocks) - int((1 - USUAL) * len(blocks))]
    return math.fsum(seconds for seconds, _ in usual) / sum(steps for _, steps in usual)


def tail(step_times: Sequence[float]) -> float:
    """The mean step over the typical one: what the typical step is blind to, such as a pause in every tenth step.

    No step counts as longer than twice the typical one: a single long pause of the machine says nothing about the code.

    Raises:
        ValueError: there are no steps.
    """
    usual = typical(step_times)
    return math.fsum(min(step / usual, LONGEST) for step in step_times) / len(step_times) if usual > 0 else 1.0


def usual_steps(step_times: Sequence[float]) -> list[int]:
    """The numbers of the faster three quarters of steps, rounded: other load only ever makes steps longer."""
    fastest_first = sorted(range(len(step_times)), key=step_times.__getitem__)
    return fastest_first[: max(1, math.ceil(USUAL * len(step_times) - 0.5))]


def least(blocks: Sequence[float], sizes: Sequence[int], share: float = LEAST) -> float:
    """The mean of a step of the blocks that took least, which have a ``share`` of all steps.

    Args:
        blocks: what a step of each block took, in any unit.
        sizes: the steps of each block.
        share: more than 0, and 1 at most; of the last block as much as fits.

    Raises:
        ValueError: there are no blocks, or not as many sizes.
    """
    if not blocks:
        raise ValueError("the least blocks need at least one block")
    steps = left = share * sum(sizes)
    total = 0.0
    for taken, size in sorted(zip(blocks, sizes, strict=True)):
        part = min(size, left)
        total, left = total + part * taken, left - part
    return total / steps


def step_summary(step_times: Sequence[float]) -> dict[str, float]:
    """The shape of a launch's step times, in seconds: ``min``, ``p25``, ``p50``, ``p75``, ``p90``, ``max``, ``mean``.

    Raises:
        ValueError: there are no steps.
    """
    summary = {
        name: quantile(step_times, q)
        for name, q in (("min", 0), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("max", 1))
    }
    return {**summary, "mean": math.fsum(step_times) / len(step_times)}


def growth_per_step(readings: Sequence[float]) -> float:
    """The slope of a robust line through readings, one a step: what each step adds for good, in the readings' unit.

    What a step leaves behind never goes away again, so a reading counts only as far as no later one lies below it:
    buffers that are there after some steps and not after others drop out. Of the increases that remain, the two largest
    and the two smallest are left out, and the rest is averaged: a table that doubled, a cache that filled up in a step
    or two is no growth; what every third step leaves behind is, given ten of them.

    A line by least squares has neither property, one by the median of pairwise slopes (Theil 1950; Sen 1968) not the
    second. In 5800 stretches of ten steps that leak nothing, of 18 strategies and settings, they showed up to 152 KiB
    and 129 KiB a step; this one 17 KiB at most.

    Raises:
        ValueError: there are fewer than two readings.
    """
    if len(readings) < 2:  # noqa: PLR2004 - an increase is between two
        raise ValueError("growth needs at least two readings")
    lasting = [*accumulate(reversed(readings), min)][::-1]
    increases = sorted(after - before for before, after in pairwise(lasting))
    cut = min(OUTLYING_INCREASES, (len(increases) - 1) // 2)
    kept = increases[cut : len(increases) - cut]
    return math.fsum(kept) / len(kept)
