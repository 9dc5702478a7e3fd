"""Where blocked ranks stand: faulthandler's text, read, and the roll-call that follows from it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.launch.exceptions import in_library, is_machinery

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_THREAD = re.compile(r"^(?=(?:Current thread|Thread) 0x)", re.MULTILINE)
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_BACKWARD = "_engine_run_backward"  # below it there is no Python, but hooks that wait for the other ranks' gradients
_TURNS = str(Path(__file__).with_name("turns.py"))
# Functions that torch wraps around those that a user calls by name.
_WRAPPERS = frozenset({"wrapper", "inner", "_fn", "decorate_context", "_call_impl", "_wrapped_call_impl"})


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Place:
    """Where a rank stands.

    Attributes:
        line: the user's innermost line, as ``file:line in function``.
        call: the function of a library that was called there; empty where the rank is in the user's own code.
        waits: whether that waits for other ranks: a collective, a backward pass, or the queue for a turn.
    """

    line: str
    call: str
    waits: bool

    @property
    def text(self) -> str:
        """As it reads in a sentence."""
        if self.call and self.line:
            return f"in {self.call} ({self.line})"
        return f"in {self.call}" if self.call else f"at {self.line}"


def numbers(ranks: Iterable[int]) -> str:
    """``rank 1``, or ``ranks 0, 2``."""
    listed = sorted(ranks)
    return f"rank{'s' if len(listed) > 1 else ''} {', '.join(map(str, listed))}"


def threads(text: str) -> list[list[Frame]]:
    """The stacks that faulthandler wrote, innermost frame first; the main thread's comes first.

    faulthandler lists threads from the youngest to the oldest, and the main thread is the oldest.
    """
    stacks = [
        [Frame(found["file"], int(found["line"]), found["function"]) for found in _FRAME.finditer(part)]
        for part in _THREAD.split(text)
        if part.startswith(("Current thread", "Thread"))
    ]
    return stacks[::-1]


def place(stack: Sequence[Frame]) -> Place | None:
    """Where a stack stands; None where it does not say."""
    if any(frame.file == _TURNS for frame in stack):
        return Place("", "the queue for its turn", waits=True)
    own = [frame for frame in stack if not _carries(frame)]
    user = next((frame for frame in own if not in_library(frame.file)), None)
    inner = own[: own.index(user)] if user is not None else own
    line = f"{_shown(user.file)}:{user.line} in {user.function}" if user is not None else ""
    collective = next((frame.function for frame in inner if frame.file.endswith(_COLLECTIVES)), "")
    called = next((frame.function for frame in reversed(inner) if frame.function not in _WRAPPERS), "")
    if line or called:
        return Place(line, collective or called, bool(collective) or own[0].function == _BACKWARD)
    return Place("", "the start of the rank", waits=False) if stack else None


def roll_call(
    stacks: Mapping[int, str], finished: Sequence[int], world_size: int, seconds: float
) -> tuple[str, int | None]:
    """The first line of a timeout, and the rank to blame where it is a single one.

    Ranks that wait, in a collective or in backward, wait for the others: to blame is who stands elsewhere or has
    already left.

    Args:
        stacks: what faulthandler wrote of each rank that has not finished.
        finished: the ranks whose function had returned.
        world_size: how many ranks there are in all.
        seconds: after which the deadline passed.
    """
    places: dict[Place | None, list[int]] = {}
    for rank, text in sorted(stacks.items()):
        found = threads(text)
        places.setdefault(place(found[0]) if found else None, []).append(rank)
    # The largest group of those that wait first: it is the one that has a point.
    order = sorted(places.items(), key=lambda item: (not _waits(item[0]), -len(item[1]), item[1]))
    said = [f"{numbers(ranks)} {_standing(where)}" for where, ranks in order]
    if order:
        where, ranks = order[0]
        state = "blocked" if _waits(where) else "still running"
        said[0] = f"{numbers(ranks)} of {world_size} {state} after {seconds:g} s {_standing(where)}"
    if finished:
        said.append(f"{numbers(finished)} had finished")
    return "; ".join(said), _guilty(order, list(finished))


def _guilty(order: Sequence[tuple[Place | None, list[int]]], finished: list[int]) -> int | None:
    """Who keeps the others waiting: whoever is not with the largest group of those that wait."""
    waiting = [ranks for where, ranks in order if _waits(where)]
    elsewhere = [rank for where, ranks in order if not _waits(where) for rank in ranks] + finished
    if not waiting:
        elsewhere = finished or _minority([ranks for _, ranks in order])
    elif not elsewhere:
        elsewhere = _minority(waiting)
    return elsewhere[0] if len(elsewhere) == 1 else None


def _minority(groups: Sequence[list[int]]) -> list[int]:
    """Everybody outside the largest group; a lone group is to blame as a whole, and equal ones are not at all."""
    if len(groups) == 1:
        return groups[0]
    first, second, *_ = sorted(groups, key=len, reverse=True)
    return [rank for group in groups if group is not first for rank in group] if len(first) > len(second) else []


def listing(stacks: Mapping[int, str], guilty: int | None = None) -> str:
    """The stacks of all ranks, equal ones once; that of the rank to blame comes first."""
    groups: dict[str, list[int]] = {}
    for rank, text in sorted(stacks.items(), key=lambda item: (item[0] != guilty, item[0])):
        groups.setdefault(written(text), []).append(rank)
    return "\n\n".join(f"{numbers(ranks)}:\n{text}" for text, ranks in groups.items())


def written(text: str) -> str:
    """What faulthandler wrote of one process, in the order of a traceback and without the frames of this plugin."""
    found = threads(text)
    if not found:
        return "  gave no stack: it was stopped, or in a system call that cannot be interrupted"
    parts = []
    for number, stack in enumerate(found):
        lines = [f'  File "{_shown(f.file)}", line {f.line} in {f.function}' for f in stack if not _carries(f)]
        title = [f"  another thread ({number}):"] if number else []
        parts.append("\n".join([*title, *lines[::-1]]))
    waiting = any(frame.file == _TURNS for stack in found for frame in stack)
    return "\n".join(filter(None, parts)) or ("  in the queue for its turn" if waiting else "  the start of the rank")


def _carries(frame: Frame) -> bool:
    """Whether a frame belongs to what brings the user's function to its rank."""
    return is_machinery(frame.file) or frame.file == "<string>"


def _standing(where: Place | None) -> str:
    return where.text if where is not None else "at an unknown place (it gave no stack)"


def _waits(where: Place | None) -> bool:
    return where is not None and where.waits


def _shown(file: str) -> str:
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
