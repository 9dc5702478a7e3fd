"""Summarises a timeout from the stacks of ranks: the lines at which ranks wait, and the rank that they wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from pytest_ddpperf.launch.faults.stacks import GPU_WAIT, minority, position, threads
from pytest_ddpperf.launch.messages import StackPosition, grouped, numbers

_NO_COLLECTIVES = frozenset({"send", "recv", "send_object_list", "recv_object_list", "_new_process_group_helper"})
_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter", "gather_object"})  # ranks may leave before others come
_LEAST_MAJORITY = 3  # ranks: two only contradict each other
_CURES = {  # by a file of torch that all ranks stand in
    "/torch/utils/file_baton.py": "all wait for the build of an extension: a build that was killed leaves a file named "
    "lock in its folder in ~/.cache/torch_extensions; if no other process builds it, delete that file",
    "/torch/multiprocessing/spawn.py": "the plugin sees no steps of processes that a script starts itself (mp.spawn): "
    "run the script under torchrun",
}


def _positions(stacks: Mapping[int, str], *, nccl: bool = False) -> list[tuple[StackPosition | None, list[int]]]:
    """Returns (code position, ranks there) pairs: waiting ranks before other ranks, then more ranks before fewer."""
    found = {rank: threads(text) for rank, text in sorted(stacks.items())}
    positions = grouped((rank, position(each[0], nccl=nccl) if each else None) for rank, each in found.items())
    return sorted(positions.items(), key=lambda item: (not _waits(item[0]), -len(item[1]), item[1]))


def moved(before: Mapping[int, str], after: Mapping[int, str], *, nccl: bool = False) -> dict[int, bool]:
    """Returns, by rank, whether the rank has moved between the stacks ``before`` and ``after``.

    A rank has not moved if both stacks show the same library function, and the same line of the user's code. A rank
    without a stack in ``after`` has finished, so it moved. With ``nccl``, to begin or end a wait for the GPU is a move.
    """
    places = [
        {rank: where for where, ranks in _positions(each, nccl=nccl) for rank in ranks} for each in (before, after)
    ]
    return {
        rank: rank not in after or where != places[1][rank]
        for rank, where in sorted(places[0].items())
        if where is not None and (rank not in after or places[1][rank] is not None)
    }


def waiting(stacks: Mapping[int, str]) -> list[int]:
    """Returns the ranks that wait for other ranks, as their stacks show."""
    return [rank for where, ranks in _positions(stacks) if _waits(where) for rank in ranks]


def suspect(stacks: Mapping[int, str], finished: Sequence[int] = ()) -> int | None:
    """Returns the rank that all others seem to wait for, or None if the stacks show no such rank.

    If exactly one rank has finished, this rank is the suspect. If no rank has finished, the suspect is the only rank
    outside of collectives, or else the only rank at another line.
    """
    order = _positions(stacks)
    several = len(order) > 1 and len(stacks) + len(finished) >= _LEAST_MAJORITY
    if not several or len(finished) > 1 or not all(_waits(where) for where, _ in order):
        return None
    if finished:
        return finished[0]
    outside = [rank for where, ranks in order if where and where.call in _NO_COLLECTIVES for rank in ranks]
    odd = outside if len(outside) == 1 else minority([ranks for _, ranks in order])
    return odd[0] if len(odd) == 1 else None


def confirmed(stacks: Mapping[int, str], finished: Sequence[int], called: Mapping[int, int | None]) -> int | None:
    """Returns the rank that all others seem to wait for, if the numbers of called collectives confirm this, else None.

    ``suspect`` finds this rank by stacks, which may mislead, because some collectives let a rank leave before others
    enter. ``called`` has the number of collectives that each rank called. Apart from the found rank, ranks at the same
    line must have equal numbers, and ranks at different lines must have different numbers.
    """
    odd = suspect(stacks, finished)
    agreed = {(where, called.get(rank)) for where, ranks in _positions(stacks) for rank in ranks if rank != odd}
    numbers = {number for _, number in agreed}
    alike = len(agreed) == len(numbers) == len({where for where, _ in agreed})
    return odd if alike and None not in numbers else None


def heading(
    stacks: Mapping[int, str],
    finished: Sequence[int],
    world_size: int,
    seconds: float,
    called: Mapping[int, int | None] = MappingProxyType({}),
    *,
    nccl: bool = False,
    moved: Mapping[int, bool] = MappingProxyType({}),
    waits_in: Mapping[int, tuple[str, int]] = MappingProxyType({}),
) -> tuple[str, int | None]:
    """Returns the first line of a timeout's message, and the rank to blame, or None if no single rank is to blame.

    Ranks in a collective or in backward wait for others. A rank that does not wait, or has finished, is to blame. All
    mappings are keyed by rank. ``stacks``: faulthandler's text of each unfinished rank. ``called``: the number of
    collectives called. ``nccl``: whether a wait for a GPU counts as a wait for ranks. ``moved``: whether a later stack
    shows another position. ``waits_in``: name and number of the collective.
    """
    order = _positions(stacks, nccl=nccl)
    if world_size == 1:  # then backward waits for nobody
        order = [(at and replace(at, waits=at.waits and at.call != "backward"), ranks) for at, ranks in order]
    parts: list[str] = []
    for where, alike in order:
        for (moving, call), ranks in grouped((rank, (moved.get(rank), waits_in.get(rank))) for rank in alike).items():
            place = _standing(where.numbered(*call) if where is not None and call is not None else where, moving=moving)
            if not parts:
                state = "blocked" if _waits(where) and not moving else "still running"
                place = f"of {world_size} {state} after {seconds:g} s{', ' if place[0] in 'ms' else ' '}{place}"
            parts.append(f"{numbers(ranks)} {place}")
    if finished:
        parts.append(f"{numbers(finished)} had finished")
    if order and all(where is not None and not where.waits for where, _ in order):
        told = (text for file, text in _CURES.items() if all(file in stack for stack in stacks.values()))
        parts.append(next(told, "if the launch is slow, raise timeout"))
    return "; ".join(parts), _guilty(order, list(finished), confirmed(stacks, finished, called))


def mismatch_hint(stacks: Mapping[int, str], finished: Sequence[int], *, nccl: bool = False) -> str:
    """Returns a timeout's likely cause if all ranks wait in one collective, or for GPUs (``nccl``); else empty."""
    found = [threads(text) for text in stacks.values()]
    places = {position(stack[0], nccl=nccl) if stack else None for stack in found}
    where = next(iter(places), None)
    if finished or len(places) != 1 or where is None or not (where.waits and where.call and where.line):
        return ""
    place = "in the same collective: most likely they called it or an earlier one"
    if where.call == GPU_WAIT:
        place = "for their GPUs: most likely they called a collective"
    return (
        f"all ranks wait {place} with tensors of different sizes or types; "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL makes torch name the first collective that differs"
    )


def _guilty(
    order: Sequence[tuple[StackPosition | None, list[int]]], finished: list[int], suspected: int | None
) -> int | None:
    """Returns the rank to blame, which is usually the only rank that does not wait, or None."""
    waiting = [(where, ranks) for where, ranks in order if where is not None and where.waits]
    running = [rank for where, ranks in order if not _waits(where) for rank in ranks]
    if not waiting:  # finished ranks delay nobody, and a rank that waits gives its stack
        unknown = [rank for where, ranks in order if where is None for rank in ranks]
        elsewhere = unknown or minority([ranks for _, ranks in order])
    elif running or len(finished) == len(waiting) == 1:
        elsewhere = running + finished
    elif len(waiting) > 1:
        return suspected
    else:  # in a collective that no other rank has called, unless ranks leave it before others enter
        elsewhere = [] if waiting[0][0].call in _ROOTED else waiting[0][1]
    return elsewhere[0] if len(elsewhere) == 1 else None


def _standing(where: StackPosition | None, *, moving: bool | None) -> str:
    if where is None:
        return "at an unknown place (no stack was received)"
    how = "moving " if moving else "" if moving is None or where.waits else "standing "
    return how + where.text


def _waits(where: StackPosition | None) -> bool:
    return where is not None and where.waits
