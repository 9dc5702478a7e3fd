"""How much of the machine other processes use, as the kernel counts it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

STAT = Path("/proc/stat")
WATCHED = 3.0  # s, in which nobody else may be busy before a run that takes a quiet machine


@dataclass(frozen=True)
class Ticks:
    """Time of all cores since the start of the machine, and of children of this process that have ended."""

    whole: int
    idle: int
    own: float

    def others(self, later: Ticks) -> float:
        """The share of the cores that neither was idle until ``later`` nor went to children that ended meanwhile."""
        used = later.whole - self.whole - (later.idle - self.idle) - (later.own - self.own)
        return max(0.0, used / max(1, later.whole - self.whole))


def ticks() -> Ticks:
    """Now; all zero if the system does not tell."""
    if not STAT.exists():
        return Ticks(0, 0, 0.0)
    cores = [int(tick) for tick in STAT.read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    ended = os.times()
    own = (ended.children_user + ended.children_system) * os.sysconf("SC_CLK_TCK")
    return Ticks(sum(cores), cores[3] + cores[4], own)  # idle, and waiting for a disk


def others_now(seconds: float = WATCHED) -> float:
    """The share of the cores that is in use now; 0 if the system does not tell."""
    before = ticks()
    time.sleep(seconds)
    return before.others(ticks())
