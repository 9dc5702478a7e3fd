"""The git revision of a folder: where a measurement's code came from."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpperf.against.git import GitError, commit_of, git, top_folder

_STATUS_SECONDS = 60.0  # every tracked file is looked at, and there may be a million
# Where CI jobs, which check out a commit and no branch, say which one they run for, and what for. Of a pull request it
# is the name of its merge (12/merge, refs/pull/12/merge, PR-12): that of its branch may be one here, as a fork's main.
_CI_JOBS = (
    ("GITHUB_SHA", "GITHUB_REF_NAME"),
    ("CI_COMMIT_SHA", "CI_COMMIT_BRANCH"),  # GitLab; not set for merge requests
    ("CI_COMMIT_SHA", "CI_MERGE_REQUEST_REF_PATH"),
    ("GIT_COMMIT", "BRANCH_NAME"),  # Jenkins
    ("BUILD_SOURCEVERSION", "BUILD_SOURCEBRANCH"),  # Azure
)


@dataclass(frozen=True)
class Checkout:
    """A git work tree as it was when it was looked at.

    Attributes:
        commit: the full hash of HEAD.
        branch: the branch's name; where HEAD is detached, as in most CI jobs, the one that the job says it runs for;
            None where that is unknown, too.
        dirty: whether tracked files differed from the commit.
        commit_date: when the commit was made, ISO 8601 in UTC; None where git does not tell.
    """

    commit: str
    branch: str | None
    dirty: bool
    commit_date: str | None = None


def checkout(path: Path, apart_from: Path | None = None) -> Checkout | None:
    """The state of the work tree that holds ``path``.

    Args:
        path: a folder.
        apart_from: a file or folder whose changes do not count, such as that of the baselines.

    Returns:
        Its state; None without git, a repository or a first commit, or where git takes too long to tell.
    """
    revision = commit_of(path, "HEAD")
    if revision is None:
        return None
    try:
        dirty = _dirty(path, top_folder(path), apart_from)
    except GitError:
        return None
    return Checkout(revision, _branch(path, revision, os.environ), dirty, _commit_date(path, revision))


def _dirty(path: Path, top: Path, apart_from: Path | None) -> bool:
    """Whether tracked files differ from the commit, but for those below ``apart_from``.

    Raises:
        GitError: git cannot tell.
    """
    aside = None if apart_from is None else Path(os.path.relpath(apart_from.resolve(), top.resolve()))
    exclusion = [] if aside is None or aside.parts[:1] == ("..",) else [":/", f":(top,exclude,literal){aside}"]
    # Untracked files are left out: baselines being saved for the first time do not change the code.
    return git(path, "status", "--porcelain", "--untracked-files=no", "--", *exclusion, seconds=_STATUS_SECONDS) != ""


def _branch(path: Path, revision: str, environ: Mapping[str, str]) -> str | None:
    try:
        return git(path, "symbolic-ref", "--short", "--quiet", "HEAD")
    except GitError:  # detached: a job that checked out what it does not run for says nothing of it
        names = (environ.get(name) for commit, name in _CI_JOBS if environ.get(commit) == revision)
        return next((name.removeprefix("refs/heads/") for name in names if name), None)


def _commit_date(path: Path, revision: str) -> str | None:
    try:
        seconds = int(git(path, "show", "-s", "--format=%ct", revision))
        return dt.datetime.fromtimestamp(seconds, tz=dt.timezone.utc).isoformat()
    except (GitError, ValueError, OverflowError, OSError):  # of a time that is no time, too
        return None
