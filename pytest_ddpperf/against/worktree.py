"""Another revision of a project: found before anything is measured, checked out in a temporary folder, then removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpperf.against import guard
from pytest_ddpperf.against.git import GitError, commit_of, fetching, git, no_repository, top_folder
from pytest_ddpperf.errors import LaunchError, SettingError

MERGE_BASE = "merge-base:"
PREFIX = "ddpperf-against-"
_TREE, _LOCK = "checkout", "lock"
_SHORT = 7
_CHECKOUT_SECONDS, _REMOVAL_SECONDS = 600.0, 60.0


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
        root = top_folder(start)
    except GitError as error:
        if not folder.is_dir():
            raise _refused(given, f"{no_repository(start, error)}; name the folder of another checkout") from None
        return _elsewhere(given, folder, start)
    if given.startswith(MERGE_BASE):
        return Revision(given, _merge_base(given, root), root)
    commit = commit_of(root, given)
    if commit is not None:
        return Revision(given, commit, root)
    if folder.is_dir():
        return _elsewhere(given, folder, root)
    raise _refused(given, f"there is no such branch, tag, commit or folder in {root}; {fetching(root)}")


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
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_temporary()))
        tree = self.folder / _TREE
        self.path = revision.folder or tree
        try:
            self._guard = _start_guard(tree, revision.root)
            if revision.folder is not None:
                return
            # Hooks are for the user's own checkouts; this one is nobody's to work in.
            add = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", str(self.path))
            git(revision.root, *add, str(revision.commit), seconds=_CHECKOUT_SECONDS)
        except BaseException as error:
            self.close()
            if isinstance(error, GitError):
                raise LaunchError(f"git cannot check out {revision.label} for --ddpperf-against: {error}") from None
            raise

    def close(self) -> None:
        """Remove the files, or leave that to the guard where it takes long; may be called again."""
        if self._guard is None or self._guard.stdin is None or self._guard.stdin.closed:
            return
        self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # no context manager: that would wait for good
            self._guard.wait(_REMOVAL_SECONDS)


def remove_left_over(root: Path) -> None:
    """Remove the checkouts of runs that could not do it themselves: killed, with the process that waits for their end.

    Those of runs that are still going hold their lock.
    """
    with contextlib.suppress(GitError):
        listed = git(root, "worktree", "list", "--porcelain").splitlines()
        trees = [Path(line.removeprefix("worktree ")) for line in listed if line.startswith("worktree ")]
        for tree in trees[1:]:  # the first is the repository itself
            if _is_left_over(tree):
                guard.remove(tree, root)


def _is_left_over(tree: Path) -> bool:
    """Whether a work tree is one of ours that nobody uses; one of which that is not certain is the user's own."""
    folder = tree.parent
    if tree.name != _TREE or not folder.name.startswith(PREFIX) or folder.parent != _temporary():
        return False
    try:
        with (folder / _LOCK).open("rb") as lock:
            if lock.read() != _lock_text(tree):
                return False
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or there is none
        return False
    return True


def _temporary() -> Path:
    return Path(os.path.realpath(tempfile.gettempdir()))


def _lock_text(tree: Path) -> bytes:
    """What a lock says: whose it is, and which checkout goes with it."""
    return b"pytest-ddpperf " + os.fsencode(tree)


def _start_guard(tree: Path, root: Path) -> subprocess.Popen[bytes]:
    """The process that removes ``tree`` when this one is done or gone; until then it holds the lock beside it."""
    with (tree.parent / _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(_lock_text(tree))
        lock.flush()
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
        SettingError: it is this side, or a part of it.
    """
    there, here = folder.resolve(), root.resolve()
    if there == here or there in here.parents:
        raise _refused(given, "that folder holds this very checkout; name a revision, or the folder of another one")
    if here in there.parents and _top_of(there) == here:
        raise _refused(
            given,
            "there is no such branch, tag or commit, and the folder of that name is a part of this very checkout; "
            f"{fetching(root)}; or name the folder of another checkout",
        )
    return Revision(given, commit_of(there, "HEAD"), here, there)


def _top_of(folder: Path) -> Path | None:
    """The top folder of the work tree that holds ``folder``; one inside another has its own. None where unknown."""
    with contextlib.suppress(GitError):
        return top_folder(folder).resolve()
    return None


def _merge_base(given: str, root: Path) -> str:
    name = given.removeprefix(MERGE_BASE)
    if commit_of(root, name) is None:
        raise _refused(given, f"there is no such branch, tag or commit in {root}; {fetching(root)}")
    with contextlib.suppress(GitError):
        return git(root, "merge-base", name, "HEAD")
    raise _refused(given, f"HEAD and {name} have no common commit here; {fetching(root)}")


def _refused(given: str, why: str) -> SettingError:
    return SettingError(f"--ddpperf-against={given}: {why}")
