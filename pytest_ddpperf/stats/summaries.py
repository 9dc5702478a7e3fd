"""The steps of one launch in a few numbers: quantiles, long steps, growth from step to step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise

from pytest_ddpperf.records.long_steps import LongSteps

LONG = 2.0  # times the median step of its launch: a longer step is a long one
REGULAR = 0.75  # the share of the distances between long steps that has to be the same for them to have a period
LEAST = 1 / 3
"""The share of a launch's steps that its CPU time is made of: the blocks of them that took least.

A rank that loses its core finds cold caches when it goes on, and pays for these in CPU time. Beside a busy process the
rest of the blocks hide the code's own work.
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


def median_step(step_times: Sequence[float]) -> float:
    """The median of steps: what a step takes that nothing holds up."""
    return quantile(step_times, 0.5)


def long_steps(launches: Sequence[Sequence[float]]) -> LongSteps:
    """The long steps of launches, from the seconds of each launch's steps in order.

    A step is long if it takes more than ``LONG`` times as long as the median step of its launch, and at least half as
    long as the mean second of such steps is in: of pauses of the code and short ones of the machine only those count
    that take the time.
    """
    usual = [median_step(times) for times in launches]
    found = [
        [(place, time) for place, time in enumerate(times) if time > LONG * middle > 0]
        for times, middle in zip(launches, usual, strict=True)
    ]
    seconds = math.fsum(time for launch in found for _, time in launch)
    limit = math.fsum(time * time for launch in found for _, time in launch) / seconds / 2 if seconds else 0.0
    kept = [[(place, time) for place, time in launch if time >= limit] for launch in found]
    number = sum(map(len, kept))
    factors = math.fsum(time / middle for launch, middle in zip(kept, usual, strict=True) for _, time in launch)
    distances = Counter(after - before for launch in kept for (before, _), (after, _) in pairwise(launch))
    whole = math.fsum(math.fsum(times) for times in launches)
    return LongSteps(
        number=number,
        steps=sum(map(len, launches)),
        factor=factors / number if number else 0.0,
        share=math.fsum(time for launch in kept for _, time in launch) / whole if number else 0.0,
        period=_period(distances),
    )


def _period(distances: Counter[int]) -> int | None:
    """The distance that nearly all long steps have from the one before; None of fewer than two distances.

    Long steps in a row are one disturbance, and no period.
    """
    if distances.total() < 2:  # noqa: PLR2004
        return None
    ((distance, times_seen),) = distances.most_common(1)
    return distance if distance > 1 and times_seen >= REGULAR * distances.total() else None


def least(blocks: Sequence[float], sizes: Sequence[int]) -> float:
    """The mean of a step of the blocks that took least, which have the share ``LEAST`` of all steps.

    Args:
        blocks: what a step of each block took, in any unit.
        sizes: the steps of each block.

    Raises:
        ValueError: there are no blocks, or not as many sizes.
    """
    if not blocks:
        raise ValueError("the least blocks need at least one block")
    steps = left = LEAST * sum(sizes)
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
