"""The launchers of one side of a comparison, one for each launch that runs at the same time."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from pytest_ddpperf.launch.launcher import Launcher

if TYPE_CHECKING:
    from collections.abc import Callable


LAUNCHER_BYTES = 300 * 2**20
"""An upper bound for a zygote's memory: torch and all modules that ranks find imported.

benchmarks/startup.py prints the figure. A copy of the first zygote shares nearly all of it, until it imports more."""


class Launchers:
    """Launchers of like ranks, each made when it is first asked for. Any thread may use them.

    ``make`` gets the first launcher, whose zygote the new one may copy; it gets None for the first one itself.
    """

    def __init__(self, make: Callable[[Launcher | None], Launcher]) -> None:
        self._make = make
        self._made: list[Launcher] = []
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> Launcher:
        """The launcher of this number; number 0 runs the launches that run alone."""
        with self._lock:
            while len(self._made) <= number:
                self._made.append(self._make(self._made[0] if self._made else None))
            return self._made[number]

    def start(self, number: int) -> None:
        """Let the first ``number`` launchers import torch in the background."""
        for i in range(number):
            self[i].start()

    def wait(self, number: int) -> None:
        """Wait until the first ``number`` launchers can run launches at once."""
        for i in range(number):
            self[i].wait()

    def keep(self, number: int) -> None:
        """End all but the first ``number`` zygotes; launchers start new ones when they need them."""
        for launcher in tuple(self._made[number:]):
            launcher.close()

    @property
    def pids(self) -> tuple[int | None, ...]:
        """Process ids of the zygotes, which are the parents of ranks; None for one that does not run."""
        with self._lock:
            return tuple(launcher.pid for launcher in self._made)

    def abort(self) -> None:
        """End the launches that other threads have under way; each raises LaunchError."""
        for launcher in tuple(self._made):
            launcher.abort()

    def close(self) -> None:
        """End all zygotes and everything below them."""
        with contextlib.ExitStack() as closing:  # closes all, whatever one of them raises
            for launcher in tuple(self._made):
                closing.callback(launcher.close)
