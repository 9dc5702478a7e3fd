"""What the plugin reports where ranks fail on a GPU, and whether the next launch works."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.common.project import ROOT
from benchmarks.gpu_pieces.piece import Piece, Place
from pytest_ddpperf.errors import DdpperfError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.run.session.sides import PRELOADED

HELD = 0.5  # of the free memory of a GPU
DRY_BYTES = 2**26
AS_IT_SHOULD = {True: "as it should", False: "NOT AS IT SHOULD"}


def stays_out(ctx: RankContext) -> None:
    """Rank 1 sleeps while rank 0 reduces."""
    import torch

    if ctx.rank == 1:
        time.sleep(600)
    torch.distributed.all_reduce(torch.ones(1, device=ctx.device))
    _wait(ctx)


def runs_on(ctx: RankContext) -> None:
    """A kernel that does not end within the deadline; on the CPU a sleep."""
    import torch

    if ctx.device.type == "cuda":
        torch.cuda._sleep(2**40)  # type: ignore[no-untyped-call]  # noqa: SLF001  some ten minutes
        _wait(ctx)
    time.sleep(600)


def needs_too_much(ctx: RankContext) -> None:
    """More memory than any device has."""
    import torch

    torch.empty(2**50, dtype=torch.uint8, device=ctx.device)


def asserts(ctx: RankContext) -> None:
    """An index that a kernel finds to be out of range; on the CPU torch does."""
    import torch

    torch.zeros(4, device=ctx.device)[torch.full((4,), 9, device=ctx.device)].sum()
    _wait(ctx)


def dies_with_memory(ctx: RankContext) -> None:
    """The rank is killed while it holds half of the free memory."""
    held = _held(ctx)
    _wait(ctx)
    os.kill(os.getpid(), signal.SIGKILL)
    del held


def holds_as_much(ctx: RankContext) -> float:
    """The share of the memory that is free before as much is held again."""
    import torch

    free, total = torch.cuda.mem_get_info(ctx.device) if ctx.device.type == "cuda" else (1, 1)
    _held(ctx)
    _wait(ctx)
    return float(free / total)


def _held(ctx: RankContext) -> Any:
    import torch

    free = torch.cuda.mem_get_info(ctx.device)[0] if ctx.device.type == "cuda" else 0
    return torch.ones(int(HELD * free) or DRY_BYTES, dtype=torch.uint8, device=ctx.device)


def _wait(ctx: RankContext) -> None:
    import torch

    if ctx.device.type == "cuda":
        torch.cuda.synchronize(ctx.device)


def adds(ctx: RankContext) -> float:
    """A good launch: the sum over ranks of 1."""
    import torch

    one = torch.ones(1, device=ctx.device)
    torch.distributed.all_reduce(one)
    return float(one.item())


@dataclass(frozen=True)
class Case:
    """A fault, and the report that it should have."""

    title: str
    function: Callable[..., Any]
    error: str  # its type
    says: tuple[str, ...] = ("",)  # the report has one of these texts
    ranks: int = 1
    guilty: int = 0


CASES = (
    Case("a rank stays out of a collective", stays_out, "RanksTimedOut", ranks=2, guilty=1),
    Case("a kernel does not end", runs_on, "RanksTimedOut"),
    Case(
        "out of memory", needs_too_much, "RankFailed", ("out of memory", "can't allocate memory", "not enough memory")
    ),
    Case("device-side assert", asserts, "RankFailed", ("device-side assert", "out of range", "out of bounds")),
    Case("killed with memory held", dies_with_memory, "RankFailed", ("SIGKILL", "killed")),
)


def lines(place: Place) -> Iterator[str]:
    """Tries all faults, and says what was reported of each."""
    with Launcher(preload=PRELOADED) as started:
        for case in CASES:
            yield from told(tried(started, place, case))
        free = started.run(holds_as_much, world_size=1, device=place.device, backend=place.backend, timeout=60).rank(0)
    yield f"a launch right after a kill with memory held found {free:.0%} of the memory free"


def tried(started: Launcher, place: Place, case: Case) -> dict[str, Any]:
    """What was reported of a fault, and what the next launch did."""
    # Two ranks of NCCL need a GPU each.
    backend = place.backend if case.ranks <= place.gpus else "gloo"
    deadline = place.chosen(20.0, 3.0)
    error = reported(
        lambda: started.run(
            case.function, world_size=case.ranks, device=place.device, backend=backend, timeout=deadline
        )
    )
    begun = time.monotonic()
    again = reported(lambda: started.run(adds, world_size=1, device=place.device, backend=place.backend, timeout=60))
    right = error["type"] == case.error and any(text in error["text"] for text in case.says)
    return {
        "title": f"{case.title} ({backend}, {case.ranks} ranks)",
        "right": right and error["rank"] == case.guilty,
        "error": error,
        "late": error["seconds"] - deadline if case.error == "RanksTimedOut" else None,
        "next": again["text"],
        "next_seconds": time.monotonic() - begun,
    }


def reported(call: Callable[[], object]) -> dict[str, Any]:
    """The error of a call in words; empty if there was none."""
    begun, error = time.monotonic(), None
    try:
        call()
    except DdpperfError as raised:
        error = raised
    return {
        "type": "" if error is None else type(error).__name__,
        "rank": getattr(error, "rank", None),
        "memory": bool(getattr(error, "out_of_memory", False)),
        "text": "" if error is None else str(error)[:4000].replace(f"{ROOT}/", ""),
        "seconds": time.monotonic() - begun,
    }


def told(found: Mapping[str, Any]) -> list[str]:
    """Returns what was reported of a fault, in lines."""
    error, late = found["error"], "" if found["late"] is None else f", {found['late']:.1f} s after the deadline"
    works = f"works, {found['next_seconds']:.1f} s"
    return [
        f"{found['title']}: {AS_IT_SHOULD[found['right']]}, {error['seconds']:.1f} s{late}",
        f"  {error['type'] or 'no error'}: {error['text'].partition(chr(10))[0][:160]}",
        f"  the next launch {found['next'].partition(chr(10))[0] or works}",
    ]


PIECE = Piece(
    name="failures",
    question="Are failures on a GPU reported in time and with their cause, and does the next launch work?",
    seconds=150,
    lines=lines,
)
