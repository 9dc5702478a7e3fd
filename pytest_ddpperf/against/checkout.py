"""The git revision of a folder: the origin of the measured code."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpperf.against.git import GitError, commit_of, git, top_folder

_STATUS_SECONDS = 60.0  # every tracked file is looked at, and there may be a million
# CI jobs check out a commit and no branch; these variables name the commit and its branch. A pull request has the name
# of its merge (12/merge, refs/pull/12/merge, PR-12): its branch may have the name of one here, as a fork's main has.
_CI_JOBS = (
    ("GITHUB_SHA", "GITHUB_REF_NAME"),
    ("CI_COMMIT_SHA", "CI_COMMIT_BRANCH"),  # GitLab; not set for merge requests
    ("CI_COMMIT_SHA", "CI_MERGE_REQUEST_REF_PATH"),
    ("GIT_COMMIT", "BRANCH_NAME"),  # Jenkins
    ("BUILD_SOURCEVERSION", "BUILD_SOURCEBRANCH"),  # Azure
)


@dataclass(frozen=True)
class Checkout:
    """The state of a git work tree."""

    commit: str  # full hash of HEAD
    branch: str | None  # where HEAD is detached, the branch that the CI job runs for; None where that is unknown too
    dirty: bool  # whether tracked files differ from the commit
    commit_date: str | None = None  # ISO 8601 in UTC; None where git does not tell


def checkout(path: Path, apart_from: Path | None = None) -> Checkout | None:
    """Look at the work tree that holds ``path``; changes below ``apart_from``, the baselines, do not count.

    The result is None without git, a repository or a first commit, or where git takes too long.
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
    """Whether tracked files outside of ``apart_from`` differ from the commit."""
    aside = None if apart_from is None else Path(os.path.relpath(apart_from.resolve(), top.resolve()))
    exclusion = [] if aside is None or aside.parts[:1] == ("..",) else [":/", f":(top,exclude,literal){aside}"]
    # Untracked files do not count: baselines that are saved for the first time do not change the code.
    return git(path, "status", "--porcelain", "--untracked-files=no", "--", *exclusion, seconds=_STATUS_SECONDS) != ""


def _branch(path: Path, revision: str, environ: Mapping[str, str]) -> str | None:
    try:
        return git(path, "symbolic-ref", "--short", "--quiet", "HEAD")
    except GitError:  # detached; a job may have checked out another commit than the one that it runs for
        names = (environ.get(name) for commit, name in _CI_JOBS if environ.get(commit) == revision)
        return next((name.removeprefix("refs/heads/") for name in names if name), None)


def _commit_date(path: Path, revision: str) -> str | None:
    try:
        seconds = int(git(path, "show", "-s", "--format=%ct", revision))
        return dt.datetime.fromtimestamp(seconds, tz=dt.timezone.utc).isoformat()
    except (GitError, ValueError, OverflowError, OSError):  # the date may be out of range
        return None
