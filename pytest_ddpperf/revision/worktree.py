"""Another revision of a project: found before anything is measured, checked out in a temporary folder, then removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess  # git has no other interface in the standard library
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpperf.errors import LaunchError, SettingError
from pytest_ddpperf.revision import guard

MERGE_BASE = "merge-base:"
PREFIX = "ddpperf-against-"
_TREE, _LOCK = "checkout", "lock"
_SHORT = 7
_ANSWER_SECONDS, _CHECKOUT_SECONDS, _REMOVAL_SECONDS = 20.0, 600.0, 60.0


@dataclass(frozen=True)
class Revision:
    """What a run is held against.

    Attributes:
        given: as the user named it.
        commit: full hash; None for a folder that is no git checkout.
        root: the top folder of the project here.
        folder: the project there, where it need not be checked out.
    """

    given: str
    commit: str | None
    root: Path
    folder: Path | None = None

    @property
    def label(self) -> str:
        """In words: ``3f2a1c0 (main)``; the hash alone where that is what was given."""
        if self.commit is None:
            return self.given
        short = self.commit[:_SHORT]
        return short if self.commit.startswith(self.given) else f"{short} ({self.given})"


def resolve(given: str, start: Path, invoked: Path) -> Revision:
    """The revision that ``given`` names: a branch, tag or commit, ``merge-base:`` and one of those, or a folder.

    Args:
        given: as the user wrote it.
        start: a folder of the project.
        invoked: the folder that a relative path starts from.

    Raises:
        SettingError: there is no such revision; the message says why and what to do.
    """
    folder = invoked / given
    try:
        root = Path(_git(start, "rev-parse", "--show-toplevel"))
    except _GitError as error:
        if not folder.is_dir():
            raise _refused(given, _no_repository(start, error)) from None
        return _elsewhere(given, folder, start)
    if given.startswith(MERGE_BASE):
        return Revision(given, _merge_base(given, root), root)
    commit = _commit(root, given)
    if commit is not None:
        return Revision(given, commit, root)
    if folder.is_dir():
        return _elsewhere(given, folder, root)
    raise _refused(given, f"there is no such branch, tag, commit or folder in {root}; {_fetching(root)}")


class Worktree:
    """The files of a revision. They go with ``close``, or with this process, however it ends.

    A process of its own waits for that end and removes them. Should that one be killed as well, the next ``Worktree``
    of the same repository does: whose lock nobody holds is left over.

    Attributes:
        path: the top folder of the project there.
        folder: a temporary folder for whatever else goes with it.

    Raises:
        LaunchError: git cannot check it out.
    """

    def __init__(self, revision: Revision) -> None:
        self._guard: subprocess.Popen[bytes] | None = None
        remove_left_over(revision.root)
        self.folder = Path(os.path.realpath(tempfile.mkdtemp(prefix=PREFIX)))
        tree = self.folder / _TREE
        self.path = revision.folder or tree
        try:
            self._guard = _start_guard(tree, revision.root)
            if revision.folder is not None:
                return
            # Hooks are for the user's own checkouts; this one is nobody's to work in.
            add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(self.path))
            _git(revision.root, *add, str(revision.commit), seconds=_CHECKOUT_SECONDS)
        except BaseException as error:
            self.close()
            if isinstance(error, _GitError):
                raise LaunchError(f"git cannot check out {revision.label} for --ddpperf-against: {error}") from None
            raise

    def close(self) -> None:
        """Remove the files; may be called again."""
        waiting, self._guard = self._guard, None
        if waiting is None:
            return
        with waiting, contextlib.suppress(subprocess.TimeoutExpired):
            if waiting.stdin is not None:
                waiting.stdin.close()
            waiting.wait(_REMOVAL_SECONDS)


def remove_left_over(root: Path) -> None:
    """Remove the checkouts of runs that could not do it themselves: killed, with the process that waits for their end.

    Those of runs that are still going hold their lock.
    """
    with contextlib.suppress(_GitError):
        for line in _git(root, "worktree", "list", "--porcelain").splitlines():
            tree = Path(line.removeprefix("worktree "))
            if line.startswith("worktree ") and tree.parent.name.startswith(PREFIX) and not _in_use(tree.parent):
                guard.remove(tree, root)


def _in_use(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _start_guard(tree: Path, root: Path) -> subprocess.Popen[bytes]:
    """The process that removes ``tree`` when this one is done or gone; until then it holds the lock beside it."""
    with (tree.parent / _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.Popen(  # noqa: S603  our own interpreter and file
            [sys.executable, "-I", "-S", guard.__file__, str(tree), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            pass_fds=[lock.fileno()],
            start_new_session=True,  # Ctrl-C is for the tests
        )


def _elsewhere(given: str, folder: Path, root: Path) -> Revision:
    """A folder as the other side.

    Raises:
        SettingError: it is this side.
    """
    there, here = folder.resolve(), root.resolve()
    if there == here or there in here.parents:
        raise _refused(given, "that folder holds this very checkout; name a revision, or the folder of another one")
    return Revision(given, _commit(there, "HEAD"), here, there)


def _commit(root: Path, name: str) -> str | None:
    with contextlib.suppress(_GitError):
        return _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}") or None
    return None


def _merge_base(given: str, root: Path) -> str:
    name = given.removeprefix(MERGE_BASE)
    if _commit(root, name) is None:
        raise _refused(given, f"there is no such branch, tag or commit in {root}; {_fetching(root)}")
    with contextlib.suppress(_GitError):
        return _git(root, "merge-base", name, "HEAD")
    raise _refused(given, f"HEAD and {name} have no common commit here; {_fetching(root)}")


def _fetching(root: Path) -> str:
    """What brings a missing commit."""
    with contextlib.suppress(_GitError):
        if _git(root, "rev-parse", "--is-shallow-repository") == "true":
            return "this is a shallow clone: fetch the rest with git fetch --unshallow (in CI: fetch-depth: 0)"
    return "git fetch may bring it"


def _refused(given: str, why: str) -> SettingError:
    return SettingError(f"--ddpperf-against={given}: {why}")


def _no_repository(start: Path, error: _GitError) -> str:
    if error.missing:
        return "git is not installed; install it, or name the folder of another checkout"
    if "not a git repository" in str(error):
        return f"{start} is in no git repository; name the folder of another checkout"
    return f"git cannot say what repository {start} belongs to: {error}"


class _GitError(Exception):
    """Git said no; the message is what it said."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


def _git(folder: Path, *arguments: str, seconds: float = _ANSWER_SECONDS) -> str:
    """What git prints."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(  # noqa: S603  no shell
            command,
            env={**guard.git_environ(), "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=seconds,
            encoding="utf-8",
            errors="replace",
        )
    except FileNotFoundError:
        raise _GitError("git is not installed", missing=True) from None
    except subprocess.CalledProcessError as error:
        said = [line for line in error.stderr.splitlines() if line.strip()]
        fatal = [line for line in said if line.startswith(("fatal:", "error:"))]
        raise _GitError((fatal or said or [f"git exited with status {error.returncode}"])[0]) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise _GitError(str(error)) from None
    return done.stdout.strip()
