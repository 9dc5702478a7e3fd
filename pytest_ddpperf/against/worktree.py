"""A revision of a project: the commit that its name means, and its files in a temporary folder, on any node."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from pytest_ddpperf.against import git, guard
from pytest_ddpperf.against.interpreter import Interpreter, other_interpreter, own_interpreter
from pytest_ddpperf.errors import LaunchError, SettingError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import late
from pytest_ddpperf.instruments.host import abandoned
from pytest_ddpperf.launch.redirection import Redirection
from pytest_ddpperf.settings import KNOBS, Settings

MERGE_BASE = "merge-base:"
HERE = "this checkout"
PREFIX = "ddpperf-against-"
TREE = "checkout"
SHORT = 7
CHECKOUT_SECONDS, _REMOVAL_SECONDS = 600.0, 60.0


@dataclass(frozen=True, slots=True)
class Revision:
    """A commit of the project, or another folder with the project in it."""

    given: str  # the user's name for it
    commit: str | None  # full hash; None for a folder that is no git checkout
    root: Path  # the top folder of the project here
    folder: Path | None = None  # the project's other folder, where nothing has to be checked out
    python: Interpreter | None = None  # of another environment that it runs in; None for this one

    @property
    def here(self) -> bool:
        """Returns whether the revision is the checkout in which the tests run."""
        return self.folder == self.root

    @property
    def label(self) -> str:
        """Returns the revision's name in reports: ``3f2a1c0 (main)``, or only the hash if the user gave a hash."""
        if self.commit is None or self.here:
            return self.given
        short = self.commit[:SHORT]
        return short if self.commit.startswith(self.given) else f"{short} ({self.given})"


def reference(settings: Settings, start: Path, invoked: Path) -> Revision:
    """Returns the reference that the settings name: another revision of the project, another environment, or both.

    ``start`` is a folder of the project; relative paths in the settings start from ``invoked``.
    """
    given = settings.against_python
    if given is None:  # without a revision, too: a calibration
        return this_checkout(start) if settings.against is None else resolve(settings.against, start, invoked)
    python = other_interpreter(given, invoked, ("pytest",) if settings.against and settings.against_tests else ())
    if settings.against is not None:
        return replace(resolve(settings.against, start, invoked), python=python)
    if python.prefixes[0] == own_interpreter().prefixes[0]:
        reason = f"{KNOBS['against_python'].option}={given} is the environment that pytest itself runs in"
        raise SettingError(f"{reason}; name the interpreter of another environment")
    return this_checkout(start, python)


def this_checkout(start: Path, python: Interpreter | None = None) -> Revision:
    """Returns this checkout as a revision: the repository around ``start``, or ``start`` itself if there is none."""
    root = start
    with contextlib.suppress(git.GitError):
        root = git.top_folder(start)
    return Revision(HERE, git.commit_of(root, "HEAD"), root, root, python)


def resolve(given: str, start: Path, invoked: Path) -> Revision:
    """Finds the revision that ``given`` names: a branch, tag or commit (also after ``merge-base:``), or a folder.

    ``start`` is a folder of the project; a relative path in ``given`` starts from ``invoked``.
    """
    folder = invoked / given
    try:
        root = git.top_folder(start)
    except git.GitError as error:
        if not folder.is_dir():
            raise _refused(given, f"{git.no_repository(start, error)}; name the folder of another checkout") from None
        return _elsewhere(given, folder, start)
    if given.startswith(MERGE_BASE):
        return Revision(given, _merge_base(given, root), root)
    commit = git.commit_of(root, given)
    if commit is not None:
        return Revision(given, commit, root)
    if folder.is_dir():
        return _elsewhere(given, folder, root)
    raise _refused(given, f"there is no such branch, tag, commit or folder in {root}; {git.unknown(root, given)}")


def baseline_revision(commit: str, start: Path) -> Revision:
    """Returns a baseline's commit in the repository around ``start``; raises LaunchError if the commit is missing."""
    try:
        root = git.top_folder(start)
    except git.GitError as error:
        raise LaunchError(git.no_commit(start, error)) from None
    if git.commit_of(root, commit) is None:
        raise LaunchError(f"this clone does not have the baseline's commit {commit[:SHORT]}; {git.fetching(root)}")
    return Revision(commit, commit, root)


class Guarded:
    """A temporary folder that exists until ``close`` or the end of this process.

    Then a guard process removes the folder, and the folder's worktree entry in the repository at ``root``. If the guard
    is killed as well, a run at least a day later removes both.
    """

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self._root = folder, root
        self._guard = subprocess.Popen(  # noqa: S603  our own interpreter and file
            [sys.executable, "-I", "-S", guard.__file__, str(folder / TREE), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the tests
        )

    def close(self) -> None:
        """Asks the guard process to remove the files, and waits for its end for a limited time; may be called twice."""
        if self._guard.stdin is None or self._guard.stdin.closed:
            return
        self._guard.stdin.close()
        try:
            if self._guard.wait(_REMOVAL_SECONDS) != 0:  # it was killed
                guard.remove(self.folder / TREE, self._root, late)
        except subprocess.TimeoutExpired as error:  # no context manager: that would wait for good
            late(str(error))


class Worktree(Guarded):
    """The files of a revision in a temporary folder."""

    def __init__(self, revision: Revision) -> None:
        remove_left_over()
        try:
            # It may hold a virtual environment, too.
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=os.path.realpath(tempfile.gettempdir())))
        except OSError as error:
            reason = f"--ddpperf-against={revision.given}: cannot create a folder for checkouts"
            cure = f"{error.strerror}: {error.filename or 'TMPDIR'}; set TMPDIR to a folder that can be written"
            raise LaunchError(f"{reason}: {cure}") from None
        super().__init__(folder, revision.root)
        self.path = revision.folder or folder / TREE  # the top folder of the project in that revision
        if revision.folder is None:
            with _checked_out(self, revision.label, revision.root, ", or name the folder of another checkout"):
                # The user's git hooks are meant for checkouts that somebody works in.
                add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(self.path))
                git.git(revision.root, *add, str(revision.commit), seconds=CHECKOUT_SECONDS)


@contextlib.contextmanager
def _checked_out(made: Guarded, label: str, root: Path, cure: str = "") -> Iterator[None]:
    """Removes the folder ``made`` if the code in this context fails; turns git's errors into a LaunchError."""
    try:
        yield
    except BaseException as error:
        made.close()
        if isinstance(error, git.GitError):
            reason = f"git cannot check out {label} for --ddpperf-against: {error}; {git.lacking(root, error)}{cure}"
            raise LaunchError(reason) from None
        raise


def remove_left_over() -> None:
    """Removes the checkouts of runs that were killed together with their guard processes."""
    until = time.monotonic() + _REMOVAL_SECONDS
    for folder in takewhile(lambda _: time.monotonic() < until, abandoned(PREFIX)):
        guard.remove(folder / TREE, folder / TREE, late)


def _elsewhere(given: str, folder: Path, root: Path) -> Revision:
    """Returns a folder as the reference revision; raises SettingError if the folder lies in or around this checkout."""
    there, here = folder.resolve(), root.resolve()
    if there == here or there in here.parents:
        raise _refused(given, "that folder contains this checkout; name a revision, or the folder of another checkout")
    if here in there.parents and _top_of(there) == here:
        raise _refused(
            given,
            "there is no such branch, tag or commit, and the folder of that name is a part of this checkout; "
            f"{git.fetching(root)}; or name the folder of another checkout",
        )
    return Revision(given, git.commit_of(there, "HEAD"), here, there)


def _top_of(folder: Path) -> Path | None:
    """Returns the top folder of the innermost work tree around ``folder``; None if git does not find one."""
    with contextlib.suppress(git.GitError):
        return git.top_folder(folder).resolve()
    return None


def _merge_base(given: str, root: Path) -> str:
    name = given.removeprefix(MERGE_BASE)
    if git.commit_of(root, name) is None:
        raise _refused(given, f"there is no such branch, tag or commit in {root}; {git.unknown(root, name)}")
    with contextlib.suppress(git.GitError):
        return git.git(root, "merge-base", name, "HEAD")
    raise _refused(given, f"HEAD and {name} have no common commit here; {git.fetching(root)}")


def _refused(given: str, why: str) -> SettingError:
    return SettingError(f"--ddpperf-against={given}: {why}")


def check_out(redirection: Redirection) -> Callable[[], None] | None:
    """Checks out the reference's files if this node lacks them; returns a function that removes them, else None.

    The files come from the repository on this node. No ``git worktree`` is added to this repository, because all nodes
    may share the repository. Raises LaunchError, with reason and advice, if the checkout fails.
    """
    target = Path(redirection.target)
    commit = None if target.is_dir() else _commit_for_node(redirection)
    if commit is None and redirection.revision is not None:
        _require_own(target.parent)
    if redirection.python is not None and not Path(redirection.python).exists():
        raise LaunchError(f"{redirection.python} does not exist on this node: create that environment on each node")
    return None if commit is None else _made_on_node(target, Path(redirection.root), commit)


def _commit_for_node(redirection: Redirection) -> str:
    """Returns the commit to check out; raises LaunchError if the repository on this node lacks it."""
    root = Path(redirection.root)
    if redirection.environment is not None:
        fact = f"--ddpperf-against-setup made {redirection.environment} on the node of rank 0 only"
        raise LaunchError(f"{fact}: set TMPDIR to a folder that all nodes share")
    commit = redirection.revision
    if commit is None:
        raise LaunchError(
            f"--ddpperf-against: {redirection.target} does not exist on this node: put the checkout there on each node"
        )
    try:
        git.top_folder(root)
    except git.GitError as error:
        raise LaunchError(f"--ddpperf-against: {git.no_repository(root, error)}") from None
    if git.commit_of(root, commit) is None:
        raise LaunchError(f"--ddpperf-against: there is no commit {commit[:SHORT]} in {root}; {git.fetching(root)}")
    return commit


def _made_on_node(target: Path, root: Path, commit: str) -> Callable[[], None]:
    remove_left_over()
    try:
        target.parent.mkdir(mode=0o700)
    except OSError as error:
        reason = f"--ddpperf-against: cannot create a folder for checkouts: {error.strerror}: {target.parent}"
        cure = "set TMPDIR to a folder that all nodes share, or that is local on each node"
        raise LaunchError(f"{reason}; {cure}") from None
    made = Guarded(target.parent, target.parent)  # which is no repository, so the guard leaves that of the node alone
    with _checked_out(made, commit[:SHORT], root):
        part = target.parent / "part"
        part.mkdir()
        arguments = (f"--work-tree={part}", "read-tree", "--reset", "-u", commit)
        git.git(root, *arguments, seconds=CHECKOUT_SECONDS, index=target.parent / "index")
        part.rename(target)
    return made.close


def _require_own(folder: Path) -> None:
    """Raises LaunchError if another user owns a checkout's folder or can write in it, because ranks run its code."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = f"--ddpperf-against: {folder} is not a folder that only you own and can write to"
        raise LaunchError(f"{reason}: remove it, or set TMPDIR to a folder that only you can write to")
