"""How far each block of a launch's steps moves the launch's figures, which tells the scatter of those figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pytest_ddpperf.metrics.launches import once
from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.stats.blocks import OWN_ALONE, OWN_OF_TAIL, even_sizes, influences
from pytest_ddpperf.stats.summaries import tail, typical

Moved = tuple[float, ...]
_NOTHING: Moved = ()


@dataclass(frozen=True)
class Within:
    """What launches know of the scatter of a metric.

    Attributes:
        moved: for each launch the influences of its blocks, on the scale of analysis.
        own: standard deviation that a launch adds of its own, on the same scale.
    """

    moved: tuple[Moved, ...]
    own: float


Knows = Callable[[Measurement], "Within | None"]


def of_steps(measurement: Measurement) -> Within:
    """What launches know of the scatter of the typical step's logarithm."""
    return Within(tuple(map(moved_step, measurement.launches)), OWN_ALONE)


def of_rates(measurement: Measurement) -> Within:
    """What launches know of the scatter of a rate's logarithm, which falls where a step gets longer."""
    moved = tuple(tuple(-influence for influence in moved_step(launch)) for launch in measurement.launches)
    return Within(moved, OWN_ALONE)


def of_tails(measurement: Measurement) -> Within:
    """What launches know of the scatter of the tail's logarithm."""
    return Within(tuple(map(_moved_tail, measurement.launches)), OWN_OF_TAIL)


def of_cpu(measurement: Measurement) -> Within:
    """What launches know of the scatter of the CPU time's logarithm."""
    return Within(tuple(map(_moved_cpu, measurement.launches)), OWN_ALONE)


@once
def moved_step(launch: Launch) -> Moved:
    """How far each block of a launch moves the logarithm of its typical step."""
    return _moved(launch, typical)


@once
def _moved_tail(launch: Launch) -> Moved:
    """How far each block of a launch moves the logarithm of its tail."""
    return _moved(launch, tail)


@once
def _moved_cpu(launch: Launch) -> Moved:
    """How far each block moves the logarithm of the CPU time of the busiest rank, which is the launch's."""
    known = [rank for rank in launch.ranks if rank.cpu_time is not None and len(rank.cpu_blocks) > 1]
    if len(known) < len(launch.ranks):
        return _NOTHING
    busiest = max(known, key=lambda rank: rank.cpu_time or 0.0)
    weights = _weights(busiest)
    blocks = [seconds * size for seconds, size in zip(busiest.cpu_blocks, weights, strict=True)]
    steps, work = sum(weights), math.fsum(blocks)
    without = [(work - block) / (steps - size) for block, size in zip(blocks, weights, strict=True)]
    return influences(list(map(math.log, without))) if min(without) > 0 else _NOTHING


def _weights(rank: RankLaunch) -> tuple[int, ...]:
    """The number of steps in each block of CPU time; one where the blocks are not known."""
    return rank.blocks if len(rank.blocks) == len(rank.cpu_blocks) else (1,) * len(rank.cpu_blocks)


def _moved(launch: Launch, figure: Callable[[Sequence[float]], float]) -> Moved:
    """How far each block moves the logarithm of a figure: the jackknife leaves out one block after the other."""
    steps = launch.step_times
    ends = list(accumulate(_sizes(launch)))
    if len(ends) < 2 or min(steps) <= 0:  # noqa: PLR2004 - one block tells nothing
        return _NOTHING
    starts = [0, *ends[:-1]]
    return influences(
        [math.log(figure((*steps[:start], *steps[end:]))) for start, end in zip(starts, ends, strict=True)]
    )


def _sizes(launch: Launch) -> tuple[int, ...]:
    """The sizes of the blocks that took turns; equal sizes for a launch that took none."""
    sizes = launch.ranks[0].blocks
    return sizes if sizes and sum(sizes) == len(launch.step_times) else even_sizes(len(launch.step_times))
