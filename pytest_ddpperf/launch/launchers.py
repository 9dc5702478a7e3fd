"""Launchers for several launches at a time, and the modules that their fork servers import in advance."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

from pytest_ddpperf.launch.environment import Variables
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.messages import SeenImport
from pytest_ddpperf.launch.preloading.zygotes import Judged, Wanted

# Upper bounds for memory that a zygote shares with no process: 222 and 23 MiB were measured with four strategies.
LAUNCHER_BYTES = 300 * 2**20  # of a zygote that has imported torch
COPY_BYTES = 40 * 2**20  # of a copy, which has imported a strategy
AUTO = "auto"


class Launchers:
    """A list of equal launchers, as many as there are launches at the same time. Any thread may use the list.

    ``make(first)`` creates a launcher. ``first`` is the list's first launcher, whose fork server can be copied, or
    None. ``preload`` names modules; ``auto`` means the modules that earlier ranks imported.
    """

    def __init__(self, make: Callable[[Launcher | None], Launcher], preload: Sequence[str] = ()) -> None:
        self._make = make
        self._preload = preload
        self._others: dict[Variables, Launchers] = {}
        self._made: list[Launcher] = []
        self._asked = tuple(SeenImport(name, "", 0.0) for name in preload if name != AUTO)
        self._learning = AUTO in preload
        self._seen: dict[str, dict[str, SeenImport]] = {}
        self._judged = Judged()
        self._lock = threading.Lock()

    def __getitem__(self, number: int) -> Launcher:
        """Returns the launcher with this number, from 0; a launch that runs alone uses number 0."""
        with self._lock:
            while len(self._made) <= number:
                self._made.append(self._make(self._made[0] if self._made else None))
            return self._made[number]

    def with_variables(self, variables: Variables) -> Launchers:
        """Returns launchers whose ranks also get these environment variables; ``close`` of ``self`` closes them too."""
        if not variables:
            return self
        if variables not in self._others:
            first = self[0]
            made = Launchers(lambda one: self._make(one or first).having(variables), self._preload)
            made._seen, made._judged = self._seen, self._judged  # their imports are the same
            self._others.setdefault(variables, made)
        return self._others[variables]

    @property
    def every(self) -> list[Launcher]:
        """Returns all launchers made so far, including the launchers that ``with_variables`` made."""
        return [*self._made, *(one for others in tuple(self._others.values()) for one in others.every)]

    def start(self, number: int) -> None:
        """Lets the first ``number`` launchers import torch in the background."""
        for i in range(number):
            self[i].start()

    def wait(self, number: int, scope: str = "", ranks: int = 0) -> None:
        """Waits until the first ``number`` launchers, which must be idle, can start ranks.

        The launchers preload modules that earlier ranks of the test file ``scope`` imported, in ``ranks`` separate fork
        servers if modules read RANK. Raises SettingError if a module that the user named cannot be preloaded.
        """
        wanted = self._wanted(scope, ranks)
        for i in range(number):
            self[i].preload(wanted, self._judged, self[0] if i else None)
        elsewhere = [nodes for i in range(number) if (nodes := self[i].nodes) is not None]
        for wait in [nodes.preload(self._judged.common(wanted.modules)) for nodes in elsewhere]:
            wait()

    def _wanted(self, scope: str, ranks: int) -> Wanted:
        return Wanted(asked=self._asked, seen=tuple(self._seen.get(scope, {}).values()), ranks=ranks)

    def note(self, scope: str, imports: Iterable[SeenImport]) -> None:
        """Records modules that ranks of the test file ``scope`` imported, so that later launches preload them."""
        if self._learning:
            new = [one for one in imports if one.installed and one.module not in self._judged.inner]
            self._seen.setdefault(scope, {}).update({one.module: one for one in new})
            for one in new:
                if one.refused is not None:
                    self._judged.note(one.module, one.refused)

    def why_not(self, one: SeenImport) -> str | None:
        """Returns why no launcher preloads ``one``; "" if unknown, None if the setting ``preload`` lacks ``auto``."""
        if not one.installed:
            return "belongs to no installed package"
        return self._judged.refused.get(one.module, "") if self._learning else None

    def follow(self, other: Launchers) -> None:
        """Adds the imports that another list of launchers has recorded."""
        if self._learning:
            for scope, seen in other._seen.items():
                self._seen.setdefault(scope, {}).update(seen)

    def keep(self, number: int) -> None:
        """Ends all but the first ``number`` fork servers. A later launch starts a new fork server if necessary."""
        for launcher in tuple(self._made[number:]):
            launcher.close()
        for others in tuple(self._others.values()):
            others.keep(number)

    def missing_bytes(self, number: int, scope: str = "", ranks: int = 0) -> int:
        """Returns an upper bound of the memory, in bytes, that starting the first ``number`` launchers will take.

        The bound includes the fork servers that preload modules for ``ranks`` ranks of the test file ``scope``.
        """
        running = sum(launcher.pid is not None for launcher in self._made)
        missing = max(0, number - running)
        copies = max(0, missing - (not running))
        # The copies of the first launcher import, and all others are copies of them.
        wanted = self._wanted(scope, ranks)
        each = self._judged.copies(wanted)
        ready = [launcher.has_preloaded(wanted) for launcher in self._made[:number]]
        importing = LAUNCHER_BYTES if each and not any(ready[:1]) else 0
        copied = copies + each * (number - sum(ready))
        return LAUNCHER_BYTES * (missing - copies) + importing + COPY_BYTES * copied

    @property
    def parents(self) -> tuple[int | None, ...]:
        """Returns the process ids of fork servers and their copies; None means a process that does not run."""
        with self._lock:
            return tuple(pid for launcher in self.every for pid in launcher.parents)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Returns warnings about memory in use on GPUs, and about files that launches left in the project."""
        return tuple({key: text for launcher in self.every for key, text in launcher.remarks.items()}.values())

    def abort(self) -> None:
        """Ends the launches that other threads are running; each raises LaunchError."""
        for launcher in self.every:
            launcher.abort()

    def close(self) -> None:
        """Ends all fork servers and all their descendants."""
        with contextlib.ExitStack() as closing:  # closes all, whatever one of them raises
            for launcher in self.every:
                closing.callback(launcher.close)
