"""The memory of ranks: its peaks, its growth from step to step, and the findings on both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import fmean

from pytest_ddpperf.metrics.launch_figures import Samples, complete, gpus_of, of_launches, once
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.stats.launches import growth_per_step

GROWTH_TOLERANCE = 64 * 2**10
"""Growth up to this, in bytes a step, is no leak. torch's flight recorder keeps some 360 bytes per collective, up to
2000 times: at most 48 KiB a step in the eleventh to twentieth step of a launch. Measured: up to 17 KiB."""

COMPARED = ("peak_resident", "peak_allocated")
GROWTH_SCATTER = 17 * 2**10
"""Standard deviation of ``memory_growth`` between launches, in bytes a step: the largest growth that was measured
without a leak; see ``growth_per_step``."""

RESIDENT_FLOOR = 8 * 2**20
"""Bytes by which resident memory varies with the allocator's arenas, however small the model is.

In recorded series of runs, launches of one model scatter by 0.3, 0.8 and 2.3 MiB around 7, 16 and 51 MiB (standard
deviation). Ranks that two processes forked may differ by some MiB more, because these imported different modules.
Tensors of a step are counted to the byte: peak_tensor_bytes."""

RESIDENT_SCATTER = 0.03  # relative standard deviation of launches with some 20 MiB or more, in perf_tests

UNEVEN = 0.10  # share by which the largest rank's memory may exceed the smallest rank's
UNEVEN_BYTES = 16 * 2**20  # resident memory of equal ranks differs by a few MiB


def peak_memory(kind: str) -> Callable[[Measurement], Samples | None]:
    """Returns a metric of a memory ``kind``, such as ``peak_allocated``: the bytes of the rank that uses most."""
    return lambda measurement: complete(_peaks(launch).get(kind) for launch in measurement.launches)


@once
def _peaks(launch: Launch) -> dict[str, float]:
    """Returns the most bytes of any rank for each memory metric that all ranks have, such as ``peak_reserved``."""
    first, *others = (rank.memory for rank in launch.ranks)
    shared = [kind for kind in first if all(kind in memory for memory in others)]
    return {kind: max(memory[kind] for memory in (first, *others)) for kind in shared}


def fragmentation(measurement: Measurement) -> Samples | None:
    """Returns 1 - peak of live tensors / peak of reserved memory, by launch; None if the allocator splits no blocks."""
    allocated = peak_memory("peak_allocated")(measurement)
    reserved = peak_memory("peak_reserved")(measurement)
    if allocated is None or reserved is None or peak_memory("peak_inactive_split")(measurement) is None:
        return None
    return tuple(1 - live / held if held else 0.0 for live, held in zip(allocated, reserved, strict=True))


@of_launches
def outside_allocator(launch: Launch) -> float | None:
    """Returns the bytes in use outside the ranks' caching allocators, on the GPU with the most such bytes.

    This memory holds CUDA contexts, NCCL's buffers and allocations of libraries. Returns None if an allocator keeps no
    statistics, or if other processes use one of the GPUs.
    """
    known = complete(rank.device_memory for rank in launch.ranks)
    if known is None or any(gpu.others for gpu in gpus_of(launch)):
        return None
    reserved: dict[str, int] = defaultdict(int)  # by all ranks on a GPU
    for memory in known:
        if memory.reserved is None:
            return None
        reserved[memory.uuid] += memory.reserved
    return float(max(0, *(memory.used - reserved[memory.uuid] for memory in known)))


def no_allocator_statistics(measurement: Measurement) -> Finding | None:
    """Reports that CUDA's allocator keeps no statistics of its memory."""
    ranks = [rank for launch in measurement.launches for rank in launch.ranks]
    silent = measurement.environment.device == "cuda" and not all(rank.memory for rank in ranks)
    read_again = "peak_allocated" in measurement  # from a file, which has no ranks' memory
    return Finding("no_allocator_statistics", {}) if silent and not read_again else None


def memory_by_rank(measurement: Measurement) -> dict[str, tuple[float, ...]]:
    """Returns, by memory metric such as ``peak_resident``, the bytes of each rank, averaged over launches."""
    kinds = dict.fromkeys(kind for launch in measurement.launches for rank in launch.ranks for kind in rank.memory)
    ranks = list(zip(*(launch.ranks for launch in measurement.launches), strict=True))
    known = {
        kind: complete(complete(rank.memory.get(kind) for rank in launches) for launches in ranks) for kind in kinds
    }
    return {kind: tuple(map(fmean, values)) for kind, values in known.items() if values is not None}


def uneven_memory(measurement: Measurement) -> Finding | None:
    """Reports that ranks' memory differs so much that the largest amount does not represent all ranks."""
    for kind, ranks in memory_by_rank(measurement).items():
        least, most = min(ranks), max(ranks)
        if kind in COMPARED and most > (1 + UNEVEN) * least and most - least > UNEVEN_BYTES:
            return Finding(
                "uneven_memory",
                {
                    "metric": kind,
                    "least": least,
                    "least_rank": ranks.index(least),
                    "most": most,
                    "most_rank": ranks.index(most),
                },
            )
    return None


def full_gpu_memory(measurement: Measurement) -> Finding | None:
    """Reports that CUDA's caching allocator ran out of memory in timed steps and went on."""
    memories = [rank.memory for launch in measurement.launches for rank in launch.ranks]
    retries, ooms = (int(sum(memory.get(kind, 0) for memory in memories)) for kind in ("alloc_retries", "ooms"))
    return Finding("full_gpu_memory", {"retries": retries, "failures": ooms}) if retries or ooms else None


def memory_growth(measurement: Measurement) -> Samples | None:
    """Returns memory growth on the rank that grows most, in bytes per step, for each launch that measured it."""
    return tuple(max(growths) for growths in map(_growths, measurement.every) if growths) or None


def growing_memory(measurement: Measurement) -> Finding | None:
    """Reports that memory grows from step to step, by more than chance and the growth of torch's flight recorder."""
    samples = memory_growth(measurement)
    if not samples:
        return None
    value, interval = center(samples, "difference")
    if (value if interval is None else interval.low) <= GROWTH_TOLERANCE:
        return None
    ranks = [growths for growths in map(_growths, measurement.every) if growths is not None]
    means = [fmean(growths) for growths in zip(*ranks, strict=True)]
    growing = [rank for rank, mean in enumerate(means) if mean > GROWTH_TOLERANCE] or [means.index(max(means))]
    return Finding(
        "memory_growth",
        {
            "least": min(*(means[rank] for rank in growing), value),
            "most": value,
            "device": measurement.environment.device,
            "ranks": tuple(growing),
            "world_size": len(means),
            "steps": max(len(launch.ranks[0].held) for launch in measurement.every) - 1,
            "launches": len(samples),
        },
    )


def mean_allocated(measurement: Measurement) -> Samples | None:
    """Returns bytes of live CUDA tensors after a step (mean of steps) on the rank with most, for each measured launch.

    None on the CPU: the reading would cover the whole heap, including a process's imports.
    """
    if measurement.environment.device == "cpu":
        return None
    held = ([rank.held[1:] for rank in launch.ranks] for launch in measurement.every)
    return tuple(max(map(fmean, readings)) for readings in held if all(readings)) or None


@once
def _growths(launch: Launch) -> list[float] | None:
    """Returns the growth of each rank's memory in bytes per step; None if a rank could not read its memory."""
    held = [rank.held for rank in launch.ranks if len(rank.held) > 1]
    return [growth_per_step(readings) for readings in held] if len(held) == len(launch.ranks) else None
