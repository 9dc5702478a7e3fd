"""One side of a paired run whose code is a revision: its files and its ranks."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence

from pytest_ddpperf.against.environment import prepared
from pytest_ddpperf.against.installed import copies_of
from pytest_ddpperf.against.worktree import Revision, Worktree
from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.launch.redirection import Redirection, interpreter_folders


class RevisionSide:
    """Owns the files and ranks of a revision, from the first launch that needs them to ``close``."""

    def __init__(self, revision: Revision, setup: str | None, preload: Sequence[str], *, tests: bool = False) -> None:
        self.revision = revision
        self.tests = tests
        preload = (*preload, *(("pytest",) if tests else ()))  # the first import of test modules
        self.launchers = Launchers(lambda first: Launcher(preload=preload, redirection=self.redirection, like=first))
        self._setup = setup
        self._lock = threading.Lock()
        self._worktree: Worktree | None = None
        self._redirection: Redirection | None = None
        self._failure: str | None = None

    @property
    def redirection(self) -> Redirection:
        """The paths of the checked-out project; a checkout that failed fails again with the same message."""
        with self._lock:
            if self._failure is not None:
                raise LaunchError(self._failure)
            if self._redirection is None:
                try:
                    self._redirection = self._checked_out()
                except LaunchError as error:
                    self._failure = str(error)
                    raise
            return self._redirection

    def _checked_out(self) -> Redirection:
        root = os.path.realpath(self.revision.root)
        worktree = self._worktree = self._worktree or Worktree(self.revision)
        target = os.path.realpath(worktree.path)
        plain = Redirection(root, target, interpreter_folders(root), copies=copies_of(root))
        return plain if self._setup is None else prepared(plain, worktree.folder, self._setup)

    def start(self, number: int = 1) -> None:
        """Let ``number`` launchers import torch in the background; the first launch raises what prevents that."""
        with contextlib.suppress(LaunchError):
            self.launchers.start(number)

    def keep(self, number: int) -> None:
        """End all but the first ``number`` zygotes."""
        self.launchers.keep(number)

    @property
    def ranks_parents(self) -> tuple[int | None, ...]:
        """Process ids of the zygotes, which are the parents of ranks."""
        return self.launchers.pids

    def close(self) -> None:
        """End the ranks and remove the files."""
        self.launchers.close()
        if self._worktree is not None:
            self._worktree.close()
