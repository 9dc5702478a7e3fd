"""Memory over ranks, launches and steps: peaks, growth, and what a reader has to know of them."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from pytest_ddpperf.records import Launch, Measurement
from pytest_ddpperf.stats.growth import growth_per_step
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.units import format_count, format_value

Samples = tuple[float, ...]

GROWTH_SLACK = 64 * 2**10
"""Bytes a step that are no leak. torch's flight recorder keeps some 360 bytes of each collective, up to 2000 of them:
in the eleventh to twentieth step of a launch that can be 48 KiB a step at most. Measured: up to 17 KiB."""


def peak_memory(kind: str) -> Callable[[Measurement], Samples | None]:
    """The samples of one kind of memory: bytes of the rank with the most, for that one runs out of memory first."""

    def samples(measurement: Measurement) -> Samples | None:
        ranks = [[rank.memory.get(kind) for rank in launch.ranks] for launch in measurement.launches]
        known = [[one for one in peaks if one is not None] for peaks in ranks]
        if any(len(some) < len(peaks) for some, peaks in zip(known, ranks, strict=True)):
            return None
        return tuple(max(peaks) for peaks in known)

    return samples


def memory_growth(measurement: Measurement) -> Samples | None:
    """Bytes that each step leaves behind for good, on the rank that grows most; see ``growth_per_step``."""
    ranks = [_growths(launch) for launch in measurement.launches]
    return None if any(growths is None for growths in ranks) else tuple(max(growths) for growths in ranks if growths)


def growing_memory(measurement: Measurement) -> str | None:
    """A sentence where memory grows from step to step, beyond chance and beyond what torch itself keeps; else None."""
    samples = memory_growth(measurement)
    if not samples:
        return None
    value, interval = center(samples, "difference")
    if (value if interval is None else interval.low) <= GROWTH_SLACK:
        return None
    ranks = [growths for growths in map(_growths, measurement.launches) if growths is not None]
    means = [fmean(growths) for growths in zip(*ranks, strict=True)]
    where = "CUDA memory" if measurement.environment.device == "cuda" else "memory"
    return (
        f"{where} grows by {format_value(value, 'B')} a step on rank {means.index(max(means))}, seen in "
        f"{format_count(len(measurement.launches[0].ranks[0].held) - 1, 'step')} of each of "
        f"{format_count(len(samples), 'launch')}: something is kept from step to step"
    )


def _growths(launch: Launch) -> list[float] | None:
    """Of each rank; None where a rank could not read its memory."""
    held = [rank.held for rank in launch.ranks if len(rank.held) > 1]
    return [growth_per_step(readings) for readings in held] if len(held) == len(launch.ranks) else None
