"""Memory over ranks, launches and steps: peaks, growth, and the findings on both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import fmean

from pytest_ddpperf.metrics.launch_figures import Samples, complete, gpus_of, of_launches, once
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.stats.summaries import growth_per_step

GROWTH_TOLERANCE = 64 * 2**10
"""Bytes a step that are no leak. torch's flight recorder keeps some 360 bytes of each collective, up to 2000 of them:
in the eleventh to twentieth step of a launch that can be 48 KiB a step at most. Measured: up to 17 KiB."""

COMPARED = ("peak_resident", "peak_allocated")
GROWTH_SCATTER = 17 * 2**10
"""Bytes a step: standard deviation of the growth that one launch sees, taken to be the largest that was measured where
nothing leaks. See ``growth_per_step``."""

RESIDENT_FLOOR = 8 * 2**20
"""Bytes of resident memory that come and go with the allocator's arenas, however small the model is.

In the recorded campaigns launches of one model scatter by 0.3, 0.8 and 2.3 MiB around 7, 16 and 51 (standard
deviation). Between two processes that ranks are forked from they may differ by some MiB more, by what was imported
there. Tensors of a step are counted to the byte: peak_tensor_bytes."""

RESIDENT_SCATTER = 0.03  # relative standard deviation of launches with some 20 MiB or more, in perf_tests

UNEVEN = 0.10  # by how much more than the rank with the least the one with the most may use
UNEVEN_BYTES = 16 * 2**20  # resident memory of equal ranks differs by a few MiB


def peak_memory(kind: str) -> Callable[[Measurement], Samples | None]:
    """The samples of one kind of memory: bytes of the rank with the most, because that rank runs out first."""
    return lambda measurement: complete(_peaks(launch).get(kind) for launch in measurement.launches)


@once
def _peaks(launch: Launch) -> dict[str, float]:
    """The most that a rank used of each kind of memory that all ranks know."""
    first, *others = (rank.memory for rank in launch.ranks)
    shared = [kind for kind in first if all(kind in memory for memory in others)]
    return {kind: max(memory[kind] for memory in (first, *others)) for kind in shared}


def fragmentation(measurement: Measurement) -> Samples | None:
    """The share of what CUDA's caching allocator held at its peak that live tensors did not fill at theirs.

    Other allocators split no blocks: what they hold is no measure of it.
    """
    allocated = peak_memory("peak_allocated")(measurement)
    reserved = peak_memory("peak_reserved")(measurement)
    if allocated is None or reserved is None or peak_memory("peak_inactive_split")(measurement) is None:
        return None
    return tuple(1 - live / held if held else 0.0 for live, held in zip(allocated, reserved, strict=True))


@of_launches
def outside_allocator(launch: Launch) -> float | None:
    """Bytes in use on a GPU that no rank's caching allocator holds, on the GPU with the most of them.

    CUDA contexts, NCCL's buffers and libraries' own allocations: the driver tells one sum. None if an allocator
    keeps no statistics, and where processes that are not ours use one of the GPUs: their memory is in the sum.
    """
    known = complete(rank.device_memory for rank in launch.ranks)
    if known is None or any(gpu.others for gpu in gpus_of(launch)):
        return None
    reserved: dict[str, int] = defaultdict(int)  # by all ranks on a GPU; most have one of their own
    for memory in known:
        if memory.reserved is None:
            return None
        reserved[memory.uuid] += memory.reserved
    return float(max(0, *(memory.used - reserved[memory.uuid] for memory in known)))


def no_allocator_statistics(measurement: Measurement) -> Finding | None:
    """CUDA's allocator tells nothing of the memory that it holds."""
    ranks = [rank for launch in measurement.launches for rank in launch.ranks]
    silent = measurement.environment.device == "cuda" and not all(rank.memory for rank in ranks)
    return Finding("no_allocator_statistics", {}) if silent else None


def memory_by_rank(measurement: Measurement) -> dict[str, tuple[float, ...]]:
    """Each kind of memory on each rank, averaged over launches; kinds that a rank does not know are left out."""
    kinds = dict.fromkeys(kind for launch in measurement.launches for rank in launch.ranks for kind in rank.memory)
    ranks = list(zip(*(launch.ranks for launch in measurement.launches), strict=True))
    known = {
        kind: complete(complete(rank.memory.get(kind) for rank in launches) for launches in ranks) for kind in kinds
    }
    return {kind: tuple(map(fmean, values)) for kind, values in known.items() if values is not None}


def uneven_memory(measurement: Measurement) -> Finding | None:
    """Ranks use so unlike amounts of memory that the largest amount does not stand for all ranks."""
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
    """CUDA's caching allocator ran out of memory in timed steps and went on."""
    retries, ooms = (
        sum(rank.memory.get(kind, 0) for launch in measurement.launches for rank in launch.ranks)
        for kind in ("alloc_retries", "ooms")
    )
    if not retries and not ooms:
        return None
    return Finding("full_gpu_memory", {"retries": int(retries), "failures": int(ooms)})


def memory_growth(measurement: Measurement) -> Samples | None:
    """Bytes that each step leaves behind for good, on the rank that grows most; see ``growth_per_step``."""
    return tuple(max(growths) for growths in map(_growths, measurement.every) if growths) or None


def growing_memory(measurement: Measurement) -> Finding | None:
    """Memory grows from step to step, beyond chance and beyond what torch itself keeps."""
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
            "device": measurement.environment.device,
            "least": min(*(means[rank] for rank in growing), value),
            "most": value,
            "ranks": tuple(growing),
            "world_size": len(means),
            "steps": max(len(launch.ranks[0].held) for launch in measurement.every) - 1,
            "launches": len(samples),
        },
    )


def mean_allocated(measurement: Measurement) -> Samples | None:
    """Bytes that the rank with the most holds after a step, averaged over the steps that show growth; of GPUs alone.

    On the CPU the whole heap is read, in which the imports of a process lie too.
    """
    if measurement.environment.device == "cpu":
        return None
    known = (
        complete(fmean(rank.held[1:]) if rank.held[1:] else None for rank in one.ranks) for one in measurement.every
    )
    return tuple(max(means) for means in known if means is not None) or None


@once
def _growths(launch: Launch) -> list[float] | None:
    """The growth of each rank; None if a rank could not read its memory."""
    held = [rank.held for rank in launch.ranks if len(rank.held) > 1]
    return [growth_per_step(readings) for readings in held] if len(held) == len(launch.ranks) else None
