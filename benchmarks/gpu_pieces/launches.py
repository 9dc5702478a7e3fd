"""Where the seconds of a launch go on a GPU: fork, CUDA, NCCL, libraries, end."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.gpu_pieces.piece import Notes, Piece, Place
from benchmarks.gpu_pieces.plugin import job_of, launcher, timed, workloads
from pytest_ddpperf.launch.context import RankContext

PARTS = {
    "fork": "fork, start of the rank",
    "cuda": "CUDA: driver, context, first tensor",
    "group": "process group",
    "collective": "first collective",
    "handles": "cuBLAS and cuDNN: handles, first kernels",
    "leave": "end of the process group",
    "end": "end of the process, sweeping",
}
TIMED_STEPS = 10


def run(place: Place, notes: Notes) -> None:
    rounds = place.chosen(6, 2)
    with launcher() as started:
        begun = time.monotonic()
        started.wait()
        notes(zygote=time.monotonic() - begun)
        parts: list[dict[str, float]] = []
        for _ in range(rounds):
            begun = time.monotonic()
            result = started.run(
                taken_apart,
                place.device,
                place.backend,
                world_size=1,
                device="cpu",  # the plugin would begin with CUDA before the function does
                backend="gloo",
                own_group=True,
                timeout=120,
            )
            own, first, last = result.rank(0)
            parts.append({"fork": first - begun, **own, "end": time.monotonic() - last})
            notes(parts=parts)
        for name, work in workloads(place).items():
            launches = [timed(started, place, job_of(work, TIMED_STEPS)) for _ in range(rounds)]
            whole = [
                {"whole": seconds, "steps": sum(ranks[0].step_times), "worked": ranks[0].worked}
                for ranks, seconds in launches
            ]
            notes(launches={**notes.found.get("launches", {}), name: whole})


def taken_apart(_ctx: RankContext, device: str, backend: str) -> tuple[dict[str, float], float, float]:
    """The seconds of the parts on this rank, and this machine's clock at their begin and end."""
    import torch
    import torch.distributed as dist

    first = last = time.monotonic()
    seconds: dict[str, float] = {}
    cuda = device == "cuda"
    where = torch.device("cuda", 0) if cuda else torch.device("cpu")

    def part(name: str, work: Callable[[], object]) -> None:
        nonlocal last
        work()
        if cuda:
            torch.cuda.synchronize(where)
        begun, last = last, time.monotonic()
        seconds[name] = last - begun

    def handles() -> None:
        square = torch.ones(256, 256, device=where)
        torch.mm(square, square)
        picture = torch.ones(1, 3, 32, 32, device=where)
        torch.nn.functional.conv2d(picture, torch.ones(8, 3, 3, 3, device=where))

    if cuda:
        part("cuda", lambda: torch.ones(1, device=where))
        torch.cuda.set_device(where)
    part("group", lambda: dist.init_process_group(backend, device_id=where if cuda else None))
    part("collective", lambda: dist.all_reduce(torch.ones(1, device=where)))
    part("handles", handles)
    part("leave", dist.destroy_process_group)
    return seconds, first, last


def lines(found: Mapping[str, Any]) -> list[str]:
    told = [f"torch is imported after {found['zygote']:.1f} s, once"] if "zygote" in found else []
    parts = found.get("parts", [])
    if parts:
        told.append("launches with one rank, seconds: the first one, then the median and the most of the others")
        told += [
            f"  {text:<42} {_spread([each[name] for each in parts if name in each])}" for name, text in PARTS.items()
        ]
    for name, launches in found.get("launches", {}).items():
        beside = [launch["whole"] - launch["steps"] for launch in launches]
        told.append(f"  {f'{name}: all but {TIMED_STEPS} timed steps':<42} {_spread(beside)}")
    return told


def _spread(seconds: list[float]) -> str:
    if not seconds:
        return "-"
    first, others = seconds[0], seconds[1:]
    return f"{first:7.3f} {statistics.median(others):7.3f} {max(others):7.3f}" if others else f"{first:7.3f}"


PIECE = Piece(
    name="launch_costs",
    question="What does a launch cost with CUDA and NCCL, so how long should it time?",
    seconds=150,
    run=run,
    lines=lines,
    dry="the same with gloo; CUDA is left out",
)
