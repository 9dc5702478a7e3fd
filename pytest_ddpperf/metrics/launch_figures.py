"""Figures of single launches, and the scatter of a figure between the blocks of steps in a launch.

Each figure is computed once for a launch, because the judge examines the same launches after each new launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import accumulate
from statistics import fmean, median
from typing import Any, TypeVar

from pytest_ddpperf.records.launch import GpuHealth, Launch, LongSteps, RankLaunch
from pytest_ddpperf.records.measurement import Better, Measurement, MetricRules, Scale, Series
from pytest_ddpperf.records.phases import BACKWARD, GRADIENT_SYNC, PHASES, PhaseTimes
from pytest_ddpperf.stats import launches
from pytest_ddpperf.stats.intervals import ANY, center, possible

PART_OF_LONG = 0.5  # a phase with this share of the extra time of long steps makes them long

T = TypeVar("T")
Samples = tuple[float, ...]
Moved = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Within:
    """The scatter of a metric between blocks of steps in a launch, and the additional scatter between launches."""

    moved: tuple[Moved, ...]  # for each launch ``influences`` of its blocks; on logarithms for ratios
    own: float  # the standard deviation between launches that their blocks do not show, on the same scale


Knows = Callable[[Measurement], "Within | None"]


def series_from(
    samples: Samples, within: Within | None, *, scale: Scale, better: Better, rules: MetricRules, **columns: Any
) -> Series:
    """Returns a metric's series with its value and interval.

    The value of a timed metric is the mean of times, or the harmonic mean of rates. Its interval is the
    geometric mean's interval multiplied by (value / geometric mean). ``columns`` has further fields of the series, and
    the entry ``bounds``: the range to which value and interval are limited.
    """
    within, bounds = within or Within((), 0.0), columns.pop("bounds", ANY)
    expectation = launches.expected(within.moved, within.own)
    value, interval = center(samples, scale, expectation, robust=rules.partnered)
    if rules.timed and scale == "ratio" and min(samples) > 0:
        whole = fmean(samples) if better == "lower" else len(samples) / math.fsum(1 / sample for sample in samples)
        if interval is not None:
            moved = whole / value
            interval = replace(interval, low=moved * interval.low, high=moved * interval.high)
        value = whole
    return Series(
        samples=samples,
        value=min(max(value, bounds[0]), bounds[1]),
        interval=possible(interval, *bounds),
        within=within.moved,
        own=within.own,
        scale=scale,
        better=better,
        rules=rules,
        **columns,
    )


def complete(values: Iterable[T | None]) -> tuple[T, ...] | None:
    """Returns all values; None if one of them is missing."""
    found = tuple(values)
    known = tuple(value for value in found if value is not None)
    return known if len(known) == len(found) else None


def phases_of(launch: Launch) -> tuple[PhaseTimes, ...] | None:
    """Returns the phase times of each rank; None if a rank has none."""
    return complete(rank.phases for rank in launch.ranks)


def once(figure: Callable[[Launch], T]) -> Callable[[Launch], T]:
    """Wraps a function of a launch so that its result is computed once and stored in the launch."""
    name = f"{figure.__module__}.{figure.__qualname__}"

    @wraps(figure)
    def kept(launch: Launch) -> T:
        if name not in launch.figures:
            launch.figures[name] = figure(launch)
        found: T = launch.figures[name]
        return found

    return kept


def of_launches(figure: Callable[[Launch], float | None]) -> Callable[[Measurement], Samples | None]:
    """Turns a function of a launch into a metric: one sample for each timed launch, or None if a sample is missing."""
    kept = once(figure)
    return lambda measurement: complete(map(kept, measurement.launches))


def gpus_of(launch: Launch) -> tuple[GpuHealth, ...]:
    """Returns the health of the GPUs that the ranks computed on, without GPUs whose health was not read."""
    used = used_gpus(launch)
    return () if launch.health is None else tuple(gpu for gpu in launch.health.gpus if gpu.device in used)


def used_gpus(launch: Launch) -> set[str | None]:
    """Returns the PCI ids of the GPUs that the ranks computed on; None for a GPU that torch does not identify."""
    return {rank.device_memory.device for rank in launch.ranks if rank.device_memory is not None}


@once
def mean_step(launch: Launch) -> float:
    """Returns the seconds of a step of the group, the mean of all timed steps.

    If the host timed the steps, each step lasts as long as on its slowest rank. If device events timed blocks, a block
    lasts as long as on its slowest rank: taking the slowest rank of every single step would add up the events' jitter.
    """
    return _mean_of_blocks(_device_blocks(launch) or [(seconds, 1) for seconds in launch.step_times])


def _mean_of_blocks(blocks: Sequence[tuple[float, int]]) -> float:
    return math.fsum(seconds for seconds, _ in blocks) / sum(steps for _, steps in blocks)


def long_steps_of(measurement: Measurement) -> LongSteps:
    """Returns the long steps of all launches, with the phase that makes them long if long steps recur regularly."""
    found = launches.long_steps([launch.step_times for launch in measurement.launches])
    return found if found.period is None else replace(found, phase=_phase_of_long_steps(measurement))


def _phase_of_long_steps(measurement: Measurement) -> str | None:
    """Returns the phase with at least half of the extra time of long steps, or None if there is no such phase.

    In backward and in the synchronisation of gradients, a rank waits for slower ranks. So only one rank counts in each
    step: the rank whose other phases have the most extra time.
    """
    more = dict.fromkeys(PHASES, 0.0)  # seconds
    for launch in measurement.every:
        ranks = phases_of(launch) or ()
        times = tuple(map(max, zip(*(rank.step_times for rank in ranks), strict=True)))
        usual = [{phase: median(rank.seconds[phase]) for phase in PHASES} for rank in ranks]
        for place in (place for place, time in enumerate(times) if time > launches.LONG * median(times)):
            longer = [
                {phase: rank.seconds[phase][place] - of_rank[phase] for phase in PHASES}
                for rank, of_rank in zip(ranks, usual, strict=True)
            ]
            slowest = max(longer, key=lambda each: math.fsum(each.values()) - each[BACKWARD] - each[GRADIENT_SYNC])
            more = {phase: seconds + slowest[phase] for phase, seconds in more.items()}
    whole, most = math.fsum(more.values()), max(PHASES, key=lambda phase: more[phase])
    return most if 0 < PART_OF_LONG * whole <= more[most] else None


def _device_blocks(launch: Launch) -> list[tuple[float, int]]:
    """Returns (seconds on the slowest rank, steps) of each block of steps; empty if the host timed the steps."""
    if launch.ranks[0].unseen is None:
        return []
    sizes = _sizes_of_steps(launch)
    return [
        (max(math.fsum(rank.step_times[end - size : end]) for rank in launch.ranks), size)
        for size, end in zip(sizes, accumulate(sizes), strict=True)
    ]


def of_steps(measurement: Measurement) -> Within:
    """Returns the scatter of log(mean step time) within launches."""
    return Within(tuple(map(moved_step, measurement.launches)), launches.OWN_ALONE)


def of_rates(measurement: Measurement) -> Within:
    """Returns the scatter of log(rate) within launches."""
    moved = tuple(tuple(-influence for influence in moved_step(launch)) for launch in measurement.launches)
    return Within(moved, launches.OWN_ALONE)


def of_cpu(measurement: Measurement) -> Within:
    """Returns the scatter of log(CPU time) within launches."""
    return Within(tuple(map(_moved_cpu, measurement.launches)), launches.OWN_ALONE)


@once
def moved_step(launch: Launch) -> Moved:
    """Returns the jackknife influence of each block of steps on the logarithm of a launch's mean step time."""
    sizes = _sizes_of_steps(launch)
    places = zip(sizes, accumulate(sizes), strict=True)
    on_host = [(math.fsum(launch.step_times[end - size : end]), size) for size, end in places]
    return _without_each(_device_blocks(launch) or on_host, _mean_of_blocks)


@once
def busiest_cpu(launch: Launch) -> float | None:
    """Returns the busiest rank's CPU seconds per step, in the third of steps with least CPU time; None if unknown."""
    times = complete(map(_cpu_of, launch.ranks))
    return None if times is None else max(times)


def _cpu_of(rank: RankLaunch) -> float | None:
    if rank.cpu_time is None or not rank.cpu_blocks:
        return rank.cpu_time
    return launches.cheapest_mean(rank.cpu_blocks, rank.blocks)


@once
def _moved_cpu(launch: Launch) -> Moved:
    """Returns the jackknife influence of each block of steps on the logarithm of ``busiest_cpu``; empty if unknown."""
    known = [rank for rank in launch.ranks if rank.cpu_time is not None and len(rank.cpu_blocks) >= launches.MIN_BLOCKS]
    if len(known) < len(launch.ranks):
        return ()
    busiest = max(known, key=lambda rank: _cpu_of(rank) or 0.0)
    blocks = list(zip(busiest.cpu_blocks, busiest.blocks, strict=True))
    return _without_each(
        blocks, lambda others: launches.cheapest_mean([cpu for cpu, _ in others], [size for _, size in others])
    )


def _without_each(blocks: Sequence[tuple[float, int]], figure: Callable[[Sequence[tuple[float, int]]], float]) -> Moved:
    """Returns the jackknife influence of each (cost, steps) block on the logarithm of ``figure``; empty if unknown."""
    if len(blocks) < launches.MIN_BLOCKS:
        return ()
    without = [figure([*blocks[:left_out], *blocks[left_out + 1 :]]) for left_out in range(len(blocks))]
    return launches.influences(list(map(math.log, without))) if min(without) > 0 else ()


def _sizes_of_steps(launch: Launch) -> Sequence[int]:
    """Returns the number of steps in each timed block; divides steps evenly if they were not timed in blocks."""
    sizes, steps = launch.ranks[0].blocks, len(launch.step_times)
    return sizes if sizes and sum(sizes) == steps else launches.even_sizes(steps)
