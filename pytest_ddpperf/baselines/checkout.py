"""The git revision of a folder: where a measurement's code came from."""

from __future__ import annotations

import datetime as dt
import os
import subprocess  # git has no other interface in the standard library
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT = 5.0  # seconds; a repository on a slow file system must not hold up the tests


@dataclass(frozen=True)
class Checkout:
    """A git work tree as it is now.

    Attributes:
        commit: the full hash of HEAD.
        branch: the branch's name; None where HEAD is detached, as in most CI jobs.
        dirty: whether tracked files differ from the commit.
    """

    commit: str
    branch: str | None
    dirty: bool


def checkout(path: Path, apart_from: Path | None = None) -> Checkout | None:
    """The state of the work tree that holds ``path``; None without git, a repository or a first commit.

    Args:
        path: a folder.
        apart_from: a file or folder whose changes do not count, such as that of the baselines.
    """
    revision, top = _git(path, "rev-parse", "--verify", "HEAD"), _git(path, "rev-parse", "--show-toplevel")
    if revision is None or top is None:
        return None
    aside = None if apart_from is None else Path(os.path.relpath(apart_from.resolve(), Path(top).resolve()))
    exclusion = [] if aside is None or aside.parts[:1] == ("..",) else [":/", f":(top,exclude,literal){aside}"]
    # Untracked files are left out: baselines being saved for the first time do not change the code.
    changes = _git(path, "status", "--porcelain", "--untracked-files=no", "--", *exclusion)
    if changes is None:
        return None
    branch = _git(path, "symbolic-ref", "--short", "--quiet", "HEAD")
    return Checkout(commit=revision, branch=branch or None, dirty=changes != "")


def commit(path: Path) -> str | None:
    """The full hash of the commit that ``path`` is checked out at; None without git, a repository or a first commit."""
    return _git(path, "rev-parse", "--verify", "HEAD")


def commit_date(path: Path) -> str | None:
    """When the commit that ``path`` is checked out at was made, ISO 8601 in UTC; None where there is none."""
    seconds = _git(path, "show", "-s", "--format=%ct", "HEAD")
    return None if seconds is None else dt.datetime.fromtimestamp(int(seconds), tz=dt.timezone.utc).isoformat()


def _git(path: Path, *arguments: str) -> str | None:
    """What git prints; None if it cannot answer."""
    # Reading must not refresh the index on disk: that takes a lock and may collide with the user's own git.
    command = ["git", "--no-optional-locks", "-C", str(path), *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - fixed words and a path, no shell
            command, capture_output=True, check=True, timeout=_TIMEOUT, encoding="utf-8", errors="replace"
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
