"""A kind of fault: what a rank does, and what the report must say. Both are declared before anything is run."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

Way = Literal["launcher", "copy", "turns", "pytest", "suite"]
Blame = Literal["rank", "other", "majority", "nobody", "any"]
Ending = Literal["raise", "hang", "exit", "return"]

STEPS = ("build", "first step", "warm-up", "timed steps", "counted step", "close")
LOADED = ("import", *STEPS, "result")
JOINED = ("join", *LOADED)
SUDDEN = ("start", *JOINED, "after")
SESSION_PHASES = ("import", "build", "first step", "warm-up", "counted step", "timed steps", "close")
ENDINGS: tuple[Ending, ...] = ("raise", "hang", "exit", "return")
ENDED: dict[str, str] = {
    "raise": r"ValueError: sabotaged",
    "hang": r"in hang\b",
    "exit": r"exited with status 5\b",
    "return": r"(?!)",
}
SAVING = frozenset({"kills_the_session_while_it_saves"})  # done by the worker, not by a rank
FULL = frozenset({"fills_the_disk_of_baselines"})  # baselines are on a small file system of their own
ANY_MOMENT = "any moment"  # the phase of what the worker does to a session beside a stored baseline
TIMEOUTS = (6.0, 7.0, 8.0)
SHARE_OF_COPIES = 0.15


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
    way: Way

    @property
    def deadline(self) -> float:
        """The seconds that the launch has: a preparing one counts, times and verifies, and has the time of each.

        A session that is ended by a signal has none.
        """
        if self.phase == ANY_MOMENT:
            return 0.0
        in_suite = {"verification": 3, "result": 1}.get(self.phase, 2)
        return self.timeout * {"pytest": 2, "suite": in_suite}.get(self.way, 1)

    @property
    def other(self) -> int:
        """The rank after the guilty one."""
        return (self.rank + 1) % self.world_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What a fault sees of the rank that it happens in."""

    case: Case
    rank: int
    scratch: str

    def end(self) -> None:
        """Do after a sabotage what the case has drawn."""
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


_exit = os._exit
_sleep = time.sleep


def hang() -> None:
    while True:
        _sleep(1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """What a rank does at one of ``phases``; ``reason`` is searched in the report.

    With ``endings`` the rank goes on to one of them, which is then the reason. To blame is the drawn rank, the
    ``other``, the drawn one where it is alone against a ``majority``, ``nobody``, or ``any`` rank: it cannot be told.
    """

    name: str
    act: Callable[[Place], object]
    reason: str
    phases: tuple[str, ...]
    endings: tuple[Ending, ...]
    blame: Blame
    passes: Literal["no", "may", "must"]
    ways: tuple[Way, ...]
    session: bool  # whether it needs a pytest session of its own
    reasons: dict[str, str]  # by ending
    against: bool  # whether the session compares with another revision


KINDS: dict[str, Kind] = {}


def kind(
    reason: str = r"(?!)",
    *,
    phases: tuple[str, ...] = JOINED,
    endings: tuple[Ending, ...] = (),
    blame: Blame = "rank",
    passes: Literal["no", "may", "must"] = "no",
    ways: tuple[Way, ...] = ("launcher", "copy", "suite"),
    reasons: dict[str, str] | None = None,
    against: bool = False,
) -> Callable[[Callable[[Place], object]], Callable[[Place], object]]:
    """Declare a kind, named after the function that does it."""

    def declare(act: Callable[[Place], object]) -> Callable[[Place], object]:
        name = act.__name__
        if name in KINDS:
            raise ValueError(name)
        KINDS[name] = Kind(
            name=name,
            act=act,
            reason=reason,
            phases=phases,
            endings=endings,
            blame=blame,
            passes=passes,
            ways=ways,
            session=ways == ("pytest",),
            reasons={**ENDED, **(reasons or {})},
            against=against,
        )
        return act

    return declare


def drawn(seed: int, number: int) -> Case:
    """Case ``number`` of a campaign: all kinds come in turn, and the rest is drawn."""
    names = sorted(KINDS)
    Random(seed).shuffle(names)
    random = Random(f"{seed} {number}")
    kind = KINDS[names[number % len(names)]]
    phase = random.choice(kind.phases)
    ending = random.choice(kind.endings) if kind.endings else None
    world_size = random.choice((2, 2, 3, 4))
    way = _way(kind, phase, random)
    timeout = random.choice(TIMEOUTS)
    return Case(
        number=number,
        seed=seed,
        kind=kind.name,
        phase=phase,
        ending=ending,
        rank=random.randrange(world_size),
        world_size=world_size,
        timeout=timeout,
        way=way,
    )


def _way(kind: Kind, phase: str, random: Random) -> Way:
    ways = set(kind.ways) - {"suite"}
    if len(ways) == 1:
        return ways.pop()
    return "copy" if phase not in {"start", "join"} and random.random() < SHARE_OF_COPIES else "launcher"


def kill_self(number: int) -> None:
    """Send this process a signal whose action nobody has changed."""
    if number not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    _sleep(0.1)


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def parent(pid: int) -> int:
    """The process id of a process's parent."""
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
