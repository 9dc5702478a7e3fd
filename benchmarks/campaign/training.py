"""A training that every rank runs, and the places in it where a fault happens. Importable without torch."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.campaign import (
    blocking,
    collectives,
    ending,
    of_sessions,
    own_parts,
    raising,
    resources,
    returning,
    sabotage,
)
from benchmarks.campaign.kinds import KINDS, Case, Place

if TYPE_CHECKING:
    from pytest_ddpperf.launch.interleaving import TurnSlot

ALL_KINDS = (
    blocking,
    collectives,
    ending,
    of_sessions,
    own_parts,
    raising,
    resources,
    returning,
    sabotage,
)  # all declare kinds
PARAMETERS, STEPS = 84, 6
_getpid = os.getpid  # a fault may break the module's


def written(case: Case) -> str:
    return json.dumps(asdict(case))


def read(text: str) -> Case:
    return Case(**json.loads(text))


def reach(case: Case, rank: int, phase: str, scratch: str) -> object:
    """Do what the case says where this rank is at its place; a mark in ``scratch`` tells that it was done."""
    if (phase, rank) != (case.phase, case.rank):
        return None
    place = Place(case=case, rank=rank, scratch=scratch)
    Path(scratch, "acted").write_text(repr(time.time()), encoding="ascii")
    return KINDS[case.kind].act(place)


def train(ctx: Any, case: Case, scratch: str) -> object:
    """Train for some steps of every sort; the sum of the parameters."""
    import torch
    import torch.distributed as dist
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    def at(phase: str) -> bool:
        return reach(case, ctx.rank, phase, scratch) == collectives.SKIP

    def step(phase: str = "") -> None:
        loss = (weight @ torch.ones(12, 3)).square().mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        if not at(phase):
            dist.all_reduce(gradient)
        with torch.no_grad():
            weight.sub_(gradient, alpha=0.01)

    Path(scratch, f"pid.{ctx.rank}").write_text(str(_getpid()), encoding="ascii")
    dist.barrier()
    weight = torch.ones(7, 12, requires_grad=True)
    if not at("build"):
        dist.broadcast(weight.detach(), 0)
    step("first step")
    step()
    step("warm-up")
    step()
    for number in range(STEPS):
        step("timed steps" if number == 2 else "")
    with Counting():  # type: ignore[no-untyped-call]
        step("counted step")
    dist.all_reduce(torch.ones(2))
    if not at("close"):
        dist.barrier()
    if case.phase == "after":
        return _after(ctx, case, scratch)
    return reach(case, ctx.rank, "result", scratch) or {"rank": ctx.rank, "sum": weight.sum().item()}


def _after(ctx: Any, case: Case, scratch: str) -> object:
    """Let the fault happen once the guilty rank has reported; the others are still at work."""
    main = threading.main_thread().ident or 0

    def act() -> None:
        while "wait_for_dismissal" not in _functions(main):
            time.sleep(0.002)
        reach(case, ctx.rank, "after", scratch)

    if ctx.rank == case.rank:
        threading.Thread(target=act, daemon=True).start()
    else:
        time.sleep(0.6)
    return ctx.rank


def _functions(thread: int) -> list[str]:
    frame, names = sys._current_frames().get(thread), []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def take_turns(ctx: Any, case: Case, slot: TurnSlot, guilty: int, scratch: str) -> int:
    """Take turns with the other launch; the fault is in the launch of the slot ``guilty``."""
    import torch.distributed as dist

    from pytest_ddpperf.launch.interleaving import TurnClient

    client = TurnClient(slot, asking=ctx.rank == 0)
    for number in range(6):
        dist.barrier()
        client.wait(number / 6)
        dist.barrier()
        if slot.slot == guilty and number in {0, 3}:
            reach(case, ctx.rank, "first turn" if number == 0 else "later turn", scratch)
        time.sleep(0.01)
    dist.barrier()
    client.wait()
    client.close()
    return number


def add_up(ctx: Any) -> float:
    """A good launch: the sum over all ranks."""
    import torch
    import torch.distributed as dist

    total = torch.ones(1) * (ctx.rank + 1)
    dist.all_reduce(total)
    return float(total)
