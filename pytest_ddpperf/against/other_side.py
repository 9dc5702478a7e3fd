"""The sides of a paired run: the files and ranks of a revision, and the launches on both sides."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from pytest_ddpperf.against.environment import prepared
from pytest_ddpperf.against.installed import copies_of
from pytest_ddpperf.against.reference_tests import reference_call
from pytest_ddpperf.against.worktree import Revision, Worktree
from pytest_ddpperf.errors import DdpperfError, LaunchError, OtherSideFailed, SameCode
from pytest_ddpperf.launch.imports import TOOL, Observed, observed, observed_packed
from pytest_ddpperf.launch.launcher import Launcher, LaunchResult
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.launch.redirection import Redirection, interpreter_folders, within
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.settings import KNOBS
from pytest_ddpperf.units import format_count

T = TypeVar("T")


class OtherSide:
    """Owns the files and ranks of a revision, from the first launch that needs them to ``close``.

    Args:
        revision: the revision to check out.
        setup: a command that builds or installs it in a virtual environment of its own; None where nothing is built.
        preload: modules that its ranks find imported.
        tests: whether its ranks use its own test modules in place of this checkout's.
    """

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


class Imports:
    """Runs the launches of a paired benchmark, and keeps which of the project's modules both sides imported.

    Args:
        reference: the side that the benchmark is held against.
        sections: titles and texts for the test's report; the reference's failures are added.
        candidate: the side that is measured, where it is a revision and not this checkout.
    """

    def __init__(
        self, reference: OtherSide, sections: list[tuple[str, str]], candidate: OtherSide | None = None
    ) -> None:
        self._reference = reference
        self._candidate = candidate
        self._sections = sections
        self._of_candidate: dict[str, str] = {}
        self._of_reference: dict[str, str] = {}
        self._shared: dict[str, None] = {}  # functions of test modules that both sides take from this checkout
        self._lock = threading.Lock()  # launches of several variants end in threads of their own

    def run(
        self, launchers: Launchers, slot: int, *call: Any, benchmark: tuple[str, int], other: bool, **group: Any
    ) -> LaunchResult[Any]:
        """Call ``Launcher.run(*call, **group)`` on one side's launcher ``slot``; ``launchers`` are the candidate's.

        Raises:
            OtherSideFailed: the reference's ranks failed.
            SameCode: the ranks of a revision imported a file of this checkout.
            DdpperfError: the candidate's ranks failed.
        """
        __tracebackhide__ = True
        if not other:
            side = self._candidate or self._reference
            result = launchers[slot].run(observed, side.redirection, *call, **group)
            return self._noted(self._of_candidate, result, self._candidate)
        try:
            result = self._run_reference(slot, *call, **group)
        except LaunchError:
            raise
        except DdpperfError as error:
            self._sections.append((f"{benchmark[0]}, revision {self._reference.revision.label}", str(error)))
            raise OtherSideFailed(str(error), benchmark=benchmark) from error
        return self._noted(self._of_reference, result, self._reference)

    def _run_reference(self, slot: int, *call: Any, **group: Any) -> LaunchResult[Any]:
        redirection, run = self._reference.redirection, self._reference.launchers[slot].run
        if not self._reference.tests:
            return run(observed, redirection, *call, **group)
        with self._lock:
            packed_call = reference_call(call, redirection)
            self._of_candidate.update(packed_call.modules)
            self._shared.update(dict.fromkeys(packed_call.kept))
        return run(observed_packed, redirection, packed_call.packed, **group)

    def abort(self) -> None:
        """End the reference's launches that other threads have under way."""
        self._reference.launchers.abort()

    def _noted(
        self, files: dict[str, str], result: LaunchResult[Observed[T]], side: OtherSide | None = None
    ) -> LaunchResult[T]:
        """Add a launch's imports to ``files``; with ``side``, all of them have to be that revision's."""
        with self._lock:
            for of_rank in result.values:
                files.update(of_rank.files)
            if side is not None:
                _require_own(side, files)
        return LaunchResult(tuple(of_rank.value for of_rank in result.values), result.outputs, result.seconds)

    @property
    def modules(self) -> Mapping[str, tuple[str | None, str | None]]:
        """For each module of the project, the candidate's file and the reference's file."""
        tree = self._reference.redirection.target
        names = {*self._of_candidate, *(name for name, file in self._of_reference.items() if within(file, tree))}
        return {name: (self._of_candidate.get(name), self._of_reference.get(name)) for name in sorted(names)}

    def told(self, result: Result) -> Result:
        """Add the imported modules to a paired result, and a finding where they show that both sides are the same."""
        if result.counterpart is None:
            return result
        modules = self.modules
        findings = list(result.findings)
        if result.counterpart.lacking:
            findings.append(f"{result.origin}: {result.counterpart.lacking}")
        if self._shared:
            findings.append(
                f"this checkout's on both sides, for want of a name at the top of a module that "
                f"{KNOBS['against_tests'].option} could look up: {', '.join(self._shared)}"
            )
        if within(str(Path(__file__).resolve().parent), self._reference.redirection.root):
            findings.append(f"{TOOL} itself is what measures: both sides run this checkout's")
        elif not modules and not result.counterpart.lacking:
            findings.append(
                "neither side imported a module from its checkout: both ran the same code; "
                "a module or namespace package that was installed from elsewhere is not looked for there"
            )
        return replace(result, findings=tuple(findings), counterpart=replace(result.counterpart, modules=modules))


def _require_own(side: OtherSide, files: Mapping[str, str]) -> None:
    """Raise SameCode where the ranks of a revision have imported a file that is not the revision's."""
    redirection = side.redirection
    folders = [folder for folder in (redirection.target, redirection.environment) if folder is not None]
    strays = {name: file for name, file in files.items() if not any(within(file, folder) for folder in folders)}
    if strays:
        name, file = min(strays.items())
        more = f" and {format_count(len(strays) - 1, 'other module')}" if len(strays) > 1 else ""
        raise SameCode(
            f"the ranks of {side.revision.label} imported {name} from {file}{more}, which is not "
            "that revision's: both sides would run the same code. Install the project with pip install -e; where that "
            "builds on import (meson-python, scikit-build-core), its hook cannot be pointed elsewhere: then "
            "--ddpperf-against-setup='pip install .' gives the revision an install of its own"
        )
