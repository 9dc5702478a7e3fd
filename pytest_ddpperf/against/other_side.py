"""The other side of a run that is held against a revision: its files, its ranks, and what both sides import."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pytest_ddpperf.against.environment import prepared
from pytest_ddpperf.against.installed import copies_of
from pytest_ddpperf.against.other_tests import their_call
from pytest_ddpperf.against.worktree import Revision, Worktree
from pytest_ddpperf.errors import DdpperfError, LaunchError, OtherSideFailed, SameCode
from pytest_ddpperf.launch.imports import TOOL, Observed, observed, observed_theirs
from pytest_ddpperf.launch.launcher import Launcher, LaunchResult
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.launch.redirection import Redirection, interpreter_folders, within
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.settings import KNOBS
from pytest_ddpperf.units import format_count

T = TypeVar("T")


class OtherSide:
    """Owns the other revision's files and ranks, from the first benchmark that needs them to ``close``.

    Args:
        revision: what to check out.
        setup: the command that builds or installs it in an environment of its own; None where nothing has to be.
        preload: modules that its ranks shall find imported.
        tests: whether what test modules define is that revision's too, and not this checkout's.
    """

    def __init__(self, revision: Revision, setup: str | None, preload: Sequence[str], *, tests: bool = False) -> None:
        self.revision = revision
        self.tests = tests
        self._setup = setup
        self._preload = (*preload, *(("pytest",) if tests else ()))  # what test modules import first of all
        self._failure: str | None = None

    @cached_property
    def _worktree(self) -> Worktree:
        return Worktree(self.revision)

    @cached_property
    def redirection(self) -> Redirection:
        """Where the project is there.

        Raises:
            LaunchError: it cannot be checked out or set up; that is tried once.
        """
        if self._failure is not None:
            raise LaunchError(self._failure)
        root = os.path.realpath(self.revision.root)
        try:
            there = os.path.realpath(self._worktree.path)
            plain = Redirection(root, there, interpreter_folders(root), copies=copies_of(root))
            return plain if self._setup is None else prepared(plain, self._worktree.folder, self._setup)
        except LaunchError as error:
            self._failure = str(error)
            raise

    @cached_property
    def launchers(self) -> Launchers:
        """Start ranks that import the project from there.

        Raises:
            LaunchError: as of ``redirection``.
        """
        there = self.redirection
        return Launchers(lambda first: Launcher(preload=self._preload, redirection=there, like=first))

    def start(self, number: int = 1) -> None:
        """Have torch imported for its ranks meanwhile. What stands against that is for who needs them to hear.

        Args:
            number: of launches that are to run at the same time.
        """
        with contextlib.suppress(LaunchError):
            self.launchers.start(number)

    def keep(self, number: int) -> None:
        """End all launchers but so many."""
        if "launchers" in self.__dict__:
            self.launchers.keep(number)

    @property
    def ranks_parents(self) -> tuple[int | None, ...]:
        """Process ids of what its ranks are children of."""
        return self.launchers.pids if "launchers" in self.__dict__ else ()

    def close(self) -> None:
        """End its ranks and remove its files."""
        if "launchers" in self.__dict__:
            self.launchers.close()
        if "_worktree" in self.__dict__:
            self._worktree.close()


class Imports:
    """What both sides of a benchmark have imported of the project so far.

    Args:
        other: the other side.
        sections: titles and texts for the test's report: why the other side failed goes there.
        own: the side that is measured, where that is not this checkout.
    """

    def __init__(self, other: OtherSide, sections: list[tuple[str, str]], own: OtherSide | None = None) -> None:
        self._other = other
        self._own = own
        self._sections = sections
        self._here: dict[str, str] = {}
        self._there: dict[str, str] = {}
        self._left: dict[str, None] = {}
        self._lock = threading.Lock()  # launches of several variants end in threads of their own

    def run(
        self, here: Launchers, seat: int, *call: Any, benchmark: tuple[str, int], other: bool, **group: Any
    ) -> LaunchResult[Any]:
        """Runs a launch of a variant on the ranks of its side, and keeps what they have imported.

        Args:
            here: of this side.
            seat: number of the launcher of either side.
            call: as of ``Launcher.run``.
            benchmark: its name and number of ranks.
            other: whether it is the other side that runs it.
            group: likewise.

        Raises:
            OtherSideFailed: the other side's ranks failed.
            SameCode: they imported a file of this checkout, and were not to.
            DdpperfError: as of ``Launcher.run``, on this side.
        """
        __tracebackhide__ = True
        if not other:
            side = self._own or self._other
            result = here[seat].run(observed, side.redirection, *call, **group)
            return self._noted(self._here, result, self._own)
        try:
            result = self._there_run(seat, *call, **group)
        except LaunchError:
            raise
        except DdpperfError as error:
            self._sections.append((f"{benchmark[0]}, revision {self._other.revision.label}", str(error)))
            raise OtherSideFailed(str(error), benchmark=benchmark) from error
        return self._noted(self._there, result, self._other)

    def _there_run(self, seat: int, *call: Any, **group: Any) -> LaunchResult[Any]:
        redirection, run = self._other.redirection, self._other.launchers[seat].run
        if not self._other.tests:
            return run(observed, redirection, *call, **group)
        with self._lock:
            theirs = their_call(call, redirection)
            self._here.update(theirs.modules)
            self._left.update(dict.fromkeys(theirs.left))
        return run(observed_theirs, redirection, theirs.packed, **group)

    def abort(self) -> None:
        """End launches of the other side that other threads have under way."""
        self._other.launchers.abort()

    def _noted(
        self, files: dict[str, str], result: LaunchResult[Observed[T]], own: OtherSide | None = None
    ) -> LaunchResult[T]:
        """A result, whose imports are kept in ``files``, all of which have to be of the side ``own``, if given."""
        with self._lock:
            for one in result.values:
                files.update(one.files)
            if own is not None:
                _require_own(own, files)
        return LaunchResult(tuple(one.value for one in result.values), result.outputs, result.seconds)

    @property
    def modules(self) -> Mapping[str, tuple[str | None, str | None]]:
        """By module of the project, the file that each side imported."""
        tree = self._other.redirection.other
        names = {*self._here, *(name for name, file in self._there.items() if within(file, tree))}
        return {name: (self._here.get(name), self._there.get(name)) for name in sorted(names)}

    def told(self, result: Result) -> Result:
        """A result with what was imported for it, and a remark where that says that both sides are the same."""
        if result.paired is None:
            return result
        modules = self.modules
        findings = list(result.findings)
        if result.paired.lacking:
            findings.append(Finding("cannot_run", {"origin": result.origin, "reason": result.paired.lacking}))
        if self._left:
            option = KNOBS["against_tests"].option
            findings.append(Finding("no_name_to_look_up", {"option": option, "names": tuple(self._left)}))
        if within(str(Path(__file__).resolve().parent), self._other.redirection.root):
            findings.append(Finding("tool_measured", {"tool": TOOL}))
        elif not modules and not result.paired.lacking:
            findings.append(Finding("same_code", {}))
        return replace(result, findings=tuple(findings), reference=replace(result.paired, modules=modules))


def _require_own(side: OtherSide, files: Mapping[str, str]) -> None:
    """Make sure that the ranks of a side imported nothing of this checkout.

    Raises:
        SameCode: they did.
    """
    redirection = side.redirection
    places = [place for place in (redirection.other, redirection.environment) if place is not None]
    strays = {name: file for name, file in files.items() if not any(within(file, place) for place in places)}
    for name, file in sorted(strays.items()):
        more = f" and {format_count(len(strays) - 1, 'other module')}" if len(strays) > 1 else ""
        raise SameCode(
            f"the ranks of {side.revision.label} imported {name} from {file}{more}, which is not "
            "that revision's: both sides would run the same code. Install the project with pip install -e; where that "
            "builds on import (meson-python, scikit-build-core), its hook cannot be pointed elsewhere: then "
            "--ddpperf-against-setup='pip install .' gives the revision an install of its own"
        )
