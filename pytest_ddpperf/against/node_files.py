"""The files of a revision on a node other than the controller's, at the same path as on the controller."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_ddpperf.against.git import GitError, commit_of, fetching, git, lacking, no_repository, top_folder
from pytest_ddpperf.against.worktree import CHECKOUT_SECONDS, SHORT, Guarded, remove_left_over
from pytest_ddpperf.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_ddpperf.launch.redirection import Redirection


def check_out(redirection: Redirection) -> Callable[[], None] | None:
    """Checks out the reference's commit if this node lacks it; returns a function that removes the files, or None.

    The files come from the repository on this node. No ``git worktree`` is added to it, because the controller may use
    the same repository on a shared file system. LaunchError, with the reason and advice, if the checkout fails.
    """
    target = Path(redirection.target)
    commit = None if target.is_dir() else _commit(redirection)
    if commit is None and redirection.revision is not None:
        _require_own(target.parent)
    if redirection.python is not None and not Path(redirection.python).exists():
        raise LaunchError(f"{redirection.python} does not exist on this node: create this environment on each node")
    return None if commit is None else _made(target, Path(redirection.root), commit)


def _commit(redirection: Redirection) -> str:
    """Returns the commit to check out; LaunchError if the repository on this node lacks it."""
    root = Path(redirection.root)
    if redirection.environment is not None:
        raise LaunchError(
            f"--ddpperf-against-setup made {redirection.environment} on the controller's node only: set TMPDIR "
            "to a folder that all nodes share"
        )
    commit = redirection.revision
    if commit is None:
        raise LaunchError(
            f"--ddpperf-against: {redirection.target} does not exist on this node: put the checkout there on each node"
        )
    try:
        top_folder(root)
    except GitError as error:
        raise LaunchError(f"--ddpperf-against: {no_repository(root, error)}") from None
    if commit_of(root, commit) is None:
        raise LaunchError(f"--ddpperf-against: there is no commit {commit[:SHORT]} in {root}; {fetching(root)}")
    return commit


def _made(target: Path, root: Path, commit: str) -> Callable[[], None]:
    remove_left_over()
    try:
        target.parent.mkdir(mode=0o700)
    except OSError as error:
        raise LaunchError(
            f"--ddpperf-against: cannot create a folder for its files: {error.strerror}: {target.parent}; set TMPDIR "
            "to a folder that all nodes share, or that is local on each node"
        ) from None
    made = Guarded(target.parent, target.parent)  # which is no repository, so the guard leaves that of the node alone
    try:
        part = target.parent / "part"
        part.mkdir()
        arguments = (f"--work-tree={part}", "read-tree", "--reset", "-u", commit)
        git(root, *arguments, seconds=CHECKOUT_SECONDS, index=target.parent / "index")
        part.rename(target)
    except BaseException as error:
        made.close()
        if isinstance(error, GitError):
            reason = f"git cannot check out {commit[:SHORT]} for --ddpperf-against: {error}; {lacking(root, error)}"
            raise LaunchError(reason) from None
        raise
    return made.close


def _require_own(folder: Path) -> None:
    """Raises LaunchError if another user owns a checkout's folder or can write in it, because ranks run its code."""
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LaunchError(
            f"--ddpperf-against: {folder} is not a folder that only you own and can write to: remove it, or set TMPDIR "
            "to a folder that only you can write to"
        )
