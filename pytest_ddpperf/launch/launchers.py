"""The launchers of one side, as many as launches of it run at the same time."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from pytest_ddpperf.launch.launcher import Launcher

if TYPE_CHECKING:
    from collections.abc import Callable


LAUNCHER_BYTES = 300 * 2**20
"""What the process may take that ranks of a launcher are forked from: torch and all that they find imported.

benchmarks/startup.py prints how much it is. A copy of the first shares nearly all of it, until it imports more."""


class Launchers:
    """Launchers that all start the same ranks, made when they are asked for. Safe to use from any thread.

    Args:
        make: gives a new one, which may copy the zygote of the first; None for the first.
    """

    def __init__(self, make: Callable[[Launcher | None], Launcher]) -> None:
        self._make = make
        self._made: list[Launcher] = []
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> Launcher:
        """One of them, always the same by that number; the first runs what runs alone."""
        with self._lock:
            while len(self._made) <= number:
                self._made.append(self._make(self._made[0] if self._made else None))
            return self._made[number]

    def start(self, number: int) -> None:
        """Have torch imported in so many of them, without waiting for it.

        Raises:
            LaunchError: ranks cannot be started here.
        """
        for i in range(number):
            self[i].start()

    def wait(self, number: int) -> None:
        """Return when so many of them can run launches at once.

        Raises:
            LaunchError: torch cannot be imported.
        """
        for i in range(number):
            self[i].wait()

    def keep(self, number: int) -> None:
        """End all but so many, each of which has torch in memory; they start again when they are needed."""
        for one in tuple(self._made[number:]):
            one.close()

    @property
    def pids(self) -> tuple[int | None, ...]:
        """Process ids of what ranks are children of; None for one that has not been started."""
        with self._lock:
            return tuple(one.pid for one in self._made)

    def abort(self) -> None:
        """End the launches that other threads have under way: each raises LaunchError."""
        for one in tuple(self._made):
            one.abort()

    def close(self) -> None:
        """End all of them, and everything below them."""
        with contextlib.ExitStack() as closing:  # all, whatever becomes of one
            for one in tuple(self._made):
                closing.callback(one.close)
