"""Several GPUs: bandwidths of NCCL's collectives, who is blamed for a hang, weak scaling."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.gpu_pieces.failures import AS_IT_SHOULD, Case, stays_out, tried
from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from benchmarks.gpu_pieces.plugin import job_of, launcher, timed
from benchmarks.gpu_pieces.work import WAITS, workloads
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.training.jobs import LaunchJob

SIZES = (2**20, 2**24, 2**27, 2**29)  # bytes
TIMES = 20
DRY_GPUS = 2


def bandwidth(place: Place, notes: Notes) -> None:
    ranks = max(place.gpus, DRY_GPUS)
    with launcher() as started:
        for size in place.chosen(SIZES, SIZES[:1]):
            values = started.run(
                collectives, size, world_size=ranks, device=place.device, backend=place.backend, timeout=120
            ).values
            slowest = {name: max(rank[name] for rank in values) for name in values[0]}
            notes(ranks=ranks, sizes={**notes.found.get("sizes", {}), str(size): slowest})


def collectives(ctx: RankContext, size: int) -> dict[str, float]:
    """The seconds of each collective of so many bytes on this rank, the mean of several."""
    import torch
    import torch.distributed as dist

    from pytest_ddpperf.instruments.clock import clock_for

    whole = torch.ones(size // 4 // ctx.world_size * ctx.world_size, device=ctx.device)
    part = torch.ones(whole.numel() // ctx.world_size, device=ctx.device)
    parts = list(whole.chunk(ctx.world_size))
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_gather": lambda: dist.all_gather(parts, part),
    }
    if ctx.backend == "nccl":
        calls["all_gather"] = lambda: dist.all_gather_into_tensor(whole, part)
        calls["reduce_scatter"] = lambda: dist.reduce_scatter_tensor(part, whole)
    seconds = {}
    for name, call in calls.items():
        for _ in range(5):
            call()
        clock = clock_for(ctx.device, marks=2)
        clock.settle()
        dist.barrier()
        clock.settle()
        marks = [clock.mark()]
        for _ in range(TIMES):
            call()
        seconds[name] = clock.seconds([*marks, clock.mark()])[0] / TIMES
    return seconds


def bus_bandwidth(name: str, size: float, ranks: int, seconds: float) -> float:
    """Bytes per second on the slowest link, by the factors of nccl-tests."""
    factor = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0}.get(name, (ranks - 1) / ranks)
    return factor * size / seconds


def bandwidth_lines(found: Mapping[str, Any]) -> list[str]:
    return [
        f"{int(size) / 2**20:6.0f} MiB, {found['ranks']} ranks: "
        + ", ".join(
            f"{name} {1e6 * seconds:.0f} us, {bus_bandwidth(name, int(size), found['ranks'], seconds) / 1e9:.1f} GB/s"
            for name, seconds in times.items()
        )
        for size, times in found.get("sizes", {}).items()
    ]


def waits_alone(ctx: RankContext) -> None:
    """Rank 1 runs into another collective than the others, of another size."""
    import torch

    tensor = torch.ones(1000 if ctx.rank == 1 else 2000, device=ctx.device)
    if ctx.rank == 1:
        time.sleep(600)
    for _ in range(3):
        torch.distributed.all_reduce(tensor)
    print(tensor.sum().item())


def blame(place: Place, notes: Notes) -> None:
    ranks = max(place.gpus, DRY_GPUS)
    cases = (
        Case("a rank sleeps before an all-reduce, the others wait for the GPU", stays_out, "RanksTimedOut"),
        Case("a rank sleeps before three, the others wait in .item()", waits_alone, "RanksTimedOut"),
    )
    with launcher() as started:
        for case in cases:
            told = tried(started, place, Case(case.title, case.function, case.error, case.says, ranks, guilty=1))
            notes(cases=[*notes.found.get("cases", []), told])


def blame_lines(found: Mapping[str, Any]) -> list[str]:
    told = []
    for case in found.get("cases", []):
        told.append(f"{case['title']}: {AS_IT_SHOULD[case['right']]}")
        told += [f"  {line}" for line in case["error"]["text"].splitlines()[:6]]
    return told


def scaling(place: Place, notes: Notes) -> None:
    most = max(place.gpus, DRY_GPUS)
    sizes = [size for size in (1, 2, 4, 8, 16) if size <= most]
    with launcher() as started:
        for name, work in workloads(place).items():
            for _ in range(place.chosen(3, 1)):
                for size in sizes:
                    job = job_of(work, steps=place.chosen(100, 5), warmup=place.chosen(12, 2))
                    launched = _launched(started, place, job, size)
                    key = f"{name} {size}"
                    notes(**{key: [*notes.found.get(key, []), launched]})


def _launched(started: Any, place: Place, job: LaunchJob, ranks: int) -> dict[str, float]:
    """A step by the maximum of each step over ranks, and by the maximum over ranks of the whole block."""
    values, _ = timed(started, place, job, ranks)
    steps = [rank.step_times for rank in values]
    return {
        "of steps": statistics.fmean(max(each) for each in zip(*steps, strict=True)),
        "of blocks": max(sum(each) for each in steps) / len(steps[0]),
    }


def scaling_lines(found: Mapping[str, Any]) -> list[str]:
    told = []
    for name in dict.fromkeys(key.split()[0] for key in found):
        alone = found[f"{name} 1"]
        told.append(f"{name}, {WAITS[name]}: efficiency in weak mode by maxima of steps, and by the maximum of blocks")
        for key, launches in found.items():
            if key.split()[0] == name:
                by = [_middle(alone, way) / _middle(launches, way) for way in ("of steps", "of blocks")]
                step = f"{1e3 * _middle(launches, 'of blocks'):.3f} ms a step"
                told.append(f"  {key.split()[1]} ranks: {by[0]:.3f}, {by[1]:.3f}; {step}")
    return told


def _middle(launches: Sequence[Mapping[str, float]], way: str) -> float:
    return sorted(launch[way] for launch in launches)[len(launches) // 2]


PIECES = (
    Piece(
        name="bandwidth",
        question="How fast are NCCL's collectives? Compare with nccl-tests.",
        seconds=60,
        run=bandwidth,
        lines=bandwidth_lines,
        gpus=2,
    ),
    Piece(
        name="blame",
        question="Is the right rank blamed for a hang of NCCL?",
        seconds=90,
        run=blame,
        lines=blame_lines,
        gpus=2,
    ),
    Piece(
        name="scaling",
        question="How does the step scale from 1 to all GPUs, and do maxima of steps bias that?",
        seconds=240,
        run=scaling,
        lines=scaling_lines,
        gpus=2,
    ),
)
