"""The overlap of FSDP's collectives with computing on accelerators: streams order the work, not waits in Python."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_ddpperf.records.timeline import Moment

_FSDP = "torch.distributed.fsdp"
_ON_THE_WAY = (  # modules between a collective and the code that calls it
    "pytest_ddpperf",
    "contextlib",
    "functools",
    "torch._",
    "torch.library",
    "torch.utils",
    "torch.distributed.distributed_c10d",
    "torch.distributed.c10d_logger",
    "torch.distributed._functional_collectives",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sharded:
    """A collective that FSDP itself calls, for its sharded parameters."""

    transfer: int  # its number
    gathers: bool  # whether it gathers parameters; else it reduces gradients
    forward: bool  # whether no backward is under way


def of_fsdp() -> bool:
    """Returns whether the running collective is called by FSDP itself, not by the model that FSDP wraps."""
    frame = sys._getframe(1)  # noqa: SLF001  public in all but its name
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(_ON_THE_WAY):
            return module.startswith(_FSDP)
        frame = frame.f_back  # type: ignore[assignment]  # None above the first one
    return False


def streamed(moments: Sequence[Moment], sharded: Sequence[Sharded]) -> tuple[Moment, ...]:
    """Reorders the ``moments`` of a step, in which each transfer of FSDP blocks, as FSDP's streams would overlap them.

    Parameters are gathered while the layer before computes, because the host runs ahead and backward prefetches. A
    forward does not prefetch during the backward before it, because the optimizer runs between them. Gradients are
    reduced while the next layer computes; that layer's own reduction waits for them. The wait for the last reduction
    keeps its place. See the source of ``torch.distributed.fsdp._fully_shard`` (torch 2.13), ``FSDPParamGroup.unshard``
    and ``post_backward``.
    """
    found = list(moments)
    gathered = [one for one in sharded if one.gathers]
    for before, one in itertools.pairwise(gathered):
        if one.forward and not before.forward:
            continue
        place, begin = _place(found, one.transfer, waits=False), _place(found, before.transfer, waits=True)
        if begin < place:
            _take(found, place)
            found.insert(begin + 1, Moment(computed=0.0, transfer=one.transfer, waits=False))
    reduced = [one for one in sharded if not one.gathers]
    for one, after in itertools.pairwise(reduced):
        place = _place(found, one.transfer, waits=True)
        if place < _place(found, after.transfer, waits=False):
            _take(found, place)
            end = _place(found, after.transfer, waits=False)
            found.insert(end, Moment(computed=found[end].computed, transfer=one.transfer, waits=True))
            found[end + 1] = replace(found[end + 1], computed=0.0)
    return tuple(found)


def _take(found: list[Moment], place: int) -> None:
    """Removes a moment; its computing is added to the next one."""
    taken = found.pop(place)
    found[place] = replace(found[place], computed=found[place].computed + taken.computed)


def _place(found: Sequence[Moment], transfer: int, *, waits: bool) -> int:
    return next(i for i, moment in enumerate(found) if (moment.transfer, moment.waits) == (transfer, waits))
