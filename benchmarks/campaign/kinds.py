"""A kind of fault: what a rank does, and what the report must say. Both are declared before anything is run."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Blame = Literal["rank", "other", "majority", "nobody", "any"]
Ending = Literal["raise", "hang", "exit", "return"]
Passes = Literal["no", "may", "must"]

STEPPED = ("first step", "warm-up", "timed steps", "counted step")
STEPS = ("build", *STEPPED, "turns", "verification", "diagnosis", "close")
LOADED = ("import", *STEPS, "result")
JOINED = ("join", *LOADED)
OF_SESSION = ("import", "build", "warm-up", "counted step", "timed steps", "close")
ANY_MOMENT = "any moment"  # the phase of what the worker does to a session beside a stored baseline
BEFORE = "before the session"
ENDINGS: tuple[Ending, ...] = ("raise", "hang", "exit", "return")
NEVER = r"(?!)"
ENDED: dict[str, str] = {
    "raise": r"ValueError: sabotaged",
    "hang": r"in hang\b",
    "exit": r"exited with status 5\b",
    "return": NEVER,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One fault: a kind at a place."""

    number: int
    seed: int
    kind: str
    phase: str
    ending: Ending | None
    rank: int
    world_size: int
    timeout: float
    way: Literal["suite", "session"]

    @property
    def deadline(self) -> float:
        """The seconds that the launch has: a preparing one counts, times and verifies, and has the time of each.

        A session that is ended by a signal has none.
        """
        return self.timeout * {"verification": 3, "result": 1, "diagnosis": 1, ANY_MOMENT: 0}.get(self.phase, 2)

    @property
    def other(self) -> int:
        """The rank after the guilty one."""
        return (self.rank + 1) % self.world_size


_exit = os._exit
_sleep = time.sleep


def hang() -> None:
    while True:
        _sleep(1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What a fault sees of the rank that it happens in."""

    case: Case
    rank: int
    scratch: str

    def end(self) -> None:
        """Does after a sabotage what the case has drawn."""
        if self.case.ending == "raise":
            raise ValueError("sabotaged")
        if self.case.ending == "exit":
            _exit(5)
        if self.case.ending == "hang":
            hang()

    @property
    def other(self) -> int:
        """The process id of the rank after the guilty one."""
        return int(Path(self.scratch, f"pid.{self.case.other}").read_text(encoding="ascii"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What a rank does at one of ``phases``; ``reason`` is searched in the report.

    With ``endings`` the rank goes on to one of them, which is then the reason. To blame is the drawn rank, the
    ``other``, the drawn one where it is alone against a ``majority``, ``nobody``, or ``any`` rank: it cannot be told.
    """

    act: Callable[[Place], object]
    reason: str = NEVER
    phases: tuple[str, ...] = JOINED
    endings: tuple[Ending, ...] = ()
    blame: Blame = "rank"
    passes: Passes = "no"
    reasons: Mapping[str, str]  # by ending
    session: bool = False  # whether it needs a pytest session of its own
    against: bool = False  # whether that session compares with another revision


KINDS: dict[str, Kind] = {}
Act = Callable[[Place], object]


def declare(name: str, act: Any, reason: str = NEVER, **more: Any) -> None:
    """Declares a kind; stacks show its function by this name."""
    if name in KINDS:
        raise ValueError(name)
    act.__code__ = act.__code__.replace(co_name=name)
    KINDS[name] = Kind(act=act, reason=reason, **{**more, "reasons": {**ENDED, **more.get("reasons", {})}})


def kind(reason: str = NEVER, **more: Any) -> Callable[[Act], Act]:
    """Declares a kind that is named after the function that does it."""

    def decorate(act: Act) -> Act:
        declare(act.__name__, act, reason, **more)
        return act

    return decorate


def kinds(rows: Iterable[tuple[str, str, Act]], **more: Any) -> None:
    """Declares kinds: names, reasons and what they do."""
    for name, reason, act in rows:
        declare(name, act, reason, **more)


def sabotages(rows: Mapping[str, Act], **more: Any) -> None:
    """Declares kinds after which the rank goes on to one of the endings."""
    for name, act in rows.items():
        declare(name, act, **{"endings": ENDINGS, **more})


def fill(path: Path) -> None:
    """Writes to a file until its file system is full."""
    with contextlib.suppress(OSError), path.open("wb") as file:
        while True:
            file.write(bytes(1 << 12))


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def parent(pid: int) -> int:
    """Returns the process id of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
