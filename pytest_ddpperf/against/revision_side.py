"""A revision that takes part in a comparison: its files, its virtual environment (if it needs one), its ranks."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.against import guard
from pytest_ddpperf.against.git import untracked
from pytest_ddpperf.against.interpreter import Interpreter, copies_of, foreign_entries
from pytest_ddpperf.against.worktree import Revision, Worktree
from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.launch.payload import travels_by_value
from pytest_ddpperf.launch.processes import printed_by
from pytest_ddpperf.launch.redirection import PACKAGES, Redirection, editable_folders, interpreter_folders, within

if TYPE_CHECKING:
    from pytest_ddpperf.launch.nodes.launchers import NodeLaunchers
    from pytest_ddpperf.launch.rank_processes import Echo

_SHOWN_LINES = 20
_SETUP_SECONDS = 3600.0  # compilers take their time


class RevisionSide:
    """The files and ranks of a revision; they exist from the first launch that needs them until ``close``."""

    def __init__(
        self,
        revision: Revision,
        setup: str | None,
        preload: Sequence[str],
        *,
        asked: Sequence[str] = (),  # the setting ``preload``
        threads: Mapping[str, str] | None = None,  # as of a launcher
        tests: bool = False,
        echo: Echo | None = None,
        nodes: Callable[[Sequence[str], Redirection | None], NodeLaunchers | None] | None = None,
        opposite: bool = False,  # whether to start launchers of this checkout, too, at the same time
        opposite_echo: Echo | None = None,
    ) -> None:
        self.revision = revision
        self.tests = tests
        preload = (*preload, *(("pytest",) if tests else ()))  # the first import of test modules

        def make(first: Launcher | None, *, redirected: bool) -> Launcher:
            own = self.redirection if redirected else None
            others = None if nodes is None else nodes(preload, own)
            told = echo if redirected else opposite_echo
            return Launcher(threads=threads, preload=preload, redirection=own, echo=told, like=first, nodes=others)

        self.launchers = Launchers(partial(make, redirected=True), asked)
        # What a process has done before is in the memory of all that are forked from it, and shows in their CPU time.
        self.opposite = Launchers(partial(make, redirected=False), asked) if opposite else None
        self._setup = setup
        self._lock = threading.Lock()
        self._worktree: Worktree | None = None
        self._redirection: Redirection | None = None
        self._failure: str | None = None

    def check_out(self) -> None:
        """Checks out the revision's files; raises LaunchError if git cannot."""
        if not self.revision.here:
            with self._lock:
                self._worktree = self._worktree or Worktree(self.revision)

    @property
    def redirection(self) -> Redirection:
        """Returns the paths of the checked-out project; raises LaunchError, in every call, if the checkout failed."""
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
        root, python = os.path.realpath(self.revision.root), self.revision.python
        if python is not None and self.revision.here:
            return under(python, Redirection(root=root, target=root))
        worktree = self._worktree = self._worktree or Worktree(self.revision)
        target = os.path.realpath(worktree.path)
        plain = Redirection(root=root, target=target, kept=interpreter_folders(root), copies=copies_of(root))
        commit = self.revision.commit if self.revision.folder is None else None
        plain = replace(plain, untracked=untracked(Path(root)), revision=commit)
        if python is not None:
            return under(python, plain)
        return plain if self._setup is None else _with_environment(plain, worktree.folder, self._setup)

    @property
    def lacks_submodules(self) -> bool:
        """Returns whether the revision has submodules that neither git nor a setup command checks out."""
        return (
            self.revision.folder is None
            and self._setup is None
            and Path(self.redirection.target, ".gitmodules").exists()
        )

    def start(self, number: int = 1) -> None:
        """Lets ``number`` launchers import torch in the background; if this fails, the first launch raises an error."""
        with contextlib.suppress(LaunchError):
            self.launchers.start(number)

    @property
    def every(self) -> tuple[Launchers, ...]:
        """Returns the revision's launchers, followed by this checkout's launchers (``opposite``) if there are any."""
        return (self.launchers, *filter(None, [self.opposite]))

    def close(self) -> None:
        """Ends the revision's ranks and removes its files."""
        for launchers in self.every:
            launchers.close()
        if self._worktree is not None:
            self._worktree.close()


def under(python: Interpreter, project: Redirection) -> Redirection:
    """Returns ``project`` with another interpreter, whose packages replace this environment's packages."""
    root = project.root
    return replace(
        project,
        python=python.python,
        kept=tuple({*interpreter_folders(root), *python.folders(root)}),
        copies=tuple(sorted({*copies_of(root), *copies_of(root, python.path)})),
        first=tuple(project.path(folder) for folder in editable_folders(root)),
        without=foreign_entries(root),
        last=python.path,
    )


def _with_environment(redirection: Redirection, folder: Path, command: str) -> Redirection:
    """Runs ``command`` in a new virtual environment in ``folder``; returns ``redirection`` with this environment."""
    environment = folder / guard.ENVIRONMENT
    _run([sys.executable, "-m", "venv", str(environment)], folder, None, "making a virtual environment failed")
    python, packages = str(environment / "bin" / "python"), next((environment / "lib").glob("python*/site-packages"))
    if (packages / "setuptools").is_dir() and importlib.util.find_spec("setuptools") is not None:
        # Before Python 3.12 an environment brings a setuptools as old as Python; builds here use the installed one.
        remove = [python, "-m", "pip", "uninstall", "-q", "-y", "setuptools"]
        _run(remove, folder, None, "uninstalling the new environment's setuptools failed")
    # The name sorts last, so import hooks of editable installs in the environment itself come first.
    installed_here = [entry for entry in sys.path if Path(entry).name in PACKAGES]
    lines = (f"import site; site.addsitedir({entry!r})\n" for entry in installed_here)
    (packages / "zz_installed_here.pth").write_text("".join(lines), encoding="utf-8")
    variables = {
        **redirection.environ(os.environ),
        "PATH": os.pathsep.join((str(environment / "bin"), os.environ.get("PATH", os.defpath))),
        "VIRTUAL_ENV": str(environment),  # the guard finds these processes by it
    }
    variables.pop("PYTHONHOME", None)
    target = Path(redirection.target)
    cure = ": the command has to work in a checkout of the reference revision"
    _run(["/bin/sh", "-c", command], target, variables, f"{command!r} failed", cure)
    search = [python, "-c", "import sys; print(*sys.path, sep=chr(10))"]
    path = _run(search, target, {**variables, "PYTHONPATH": ""}, "the new environment's python failed")
    own = (str(environment), redirection.target)
    first = tuple(entry for entry in path.splitlines() if entry and any(within(entry, folder) for folder in own))
    return replace(redirection, python=python, first=first, environment=str(environment))


def _run(command: list[str], folder: Path, variables: Mapping[str, str] | None, failed: str, cure: str = "") -> str:
    """Runs a command and returns its output; if it fails, raises LaunchError with the texts ``failed`` and ``cure``."""
    try:
        status, printed = printed_by(command, _SETUP_SECONDS, cwd=folder, env=variables)
    except subprocess.TimeoutExpired:
        reason = f"it had not ended after {_SETUP_SECONDS:g} s; run it by hand to see what it waits for"
        raise LaunchError(f"--ddpperf-against-setup: {failed}: {reason}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(f"--ddpperf-against-setup: {failed}: {error}") from None
    if status:
        tail = "\n".join(printed.splitlines()[-_SHOWN_LINES:])
        raise LaunchError(f"--ddpperf-against-setup: {failed} with status {status}{cure}\n{tail}".rstrip())
    return printed


def alike(here: str, there: str) -> bool:
    """Returns whether two files have the same content, whatever their line ends; False if a file is missing."""
    try:
        contents = [Path(file).read_bytes().replace(b"\r\n", b"\n") for file in (here, there)]
        return contents[0] == contents[1]
    except OSError:
        return False


def modules_of_tests(redirection: Redirection) -> dict[str, str]:
    """Returns the files, by module name, of test modules, conftests and other modules that are pickled by value."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not travels_by_value(name, module):
            continue
        real = os.path.realpath(file)
        if within(real, redirection.root) and not any(within(real, folder) for folder in redirection.kept):
            found[name] = real
    return found


def other_tests(test: str, redirection: Redirection) -> tuple[str, ...]:
    """Returns the names of the test's file and conftests whose contents differ in the other checkout."""
    path = test.partition("::")[0]
    files = [file for file in modules_of_tests(redirection).values() if file.endswith((f"/{path}", "/conftest.py"))]
    there = {file: redirection.path(file) for file in files}
    return tuple(Path(file).name for file in files if Path(there[file]).is_file() and not alike(file, there[file]))
