"""Queries to git, and the state of a checkout. A baseline is a stored result, whose file names its commit."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
import re
import subprocess  # git has no other interface in the standard library
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpperf.against import guard
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.launch.processes import finished
from pytest_ddpperf.parsers import closest

_ANSWER_SECONDS = 20.0
_FETCH_SECONDS = 300.0
_CODE = re.compile(r".+\.(py|pyx|pxd|c|cc|cpp|cxx|cu|cuh|h|hpp|rs|ya?ml|toml|cfg|ini|sh)")
_JSON = re.compile(r".+\.json")
_BASELINE = re.compile(r"(.*/)?[^/]+-torch\d[^/]*/.+")  # in a folder of an environment, wherever baselines lie
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


class GitError(Exception):
    """The error if a git command fails; the message is git's own."""


class GitMissingError(GitError):
    """The error if git is not installed."""


def git(
    folder: Path, *arguments: str, seconds: float = _ANSWER_SECONDS, index: Path | None = None, words: str | None = None
) -> str:
    """Runs git in a folder, and returns its stripped output; raises GitError on failure, or after ``seconds``.

    ``index`` is a file that git uses instead of the work tree's index. ``words`` is the text for git's standard input.
    """
    # A refresh of the index takes a lock and may collide with the user's own git. With log.showSignature the output for
    # a commit begins with the check of its signature.
    quietly = ("--no-optional-locks", "-c", "log.showSignature=false")
    command = ["git", *quietly, "-C", str(folder), *arguments]
    of_index = {} if index is None else {"GIT_INDEX_FILE": str(index)}
    # What asks for a password asks nobody who could answer: ssh has no terminal, and opens no window.
    silent = {"GIT_TERMINAL_PROMPT": "0", "SSH_ASKPASS_REQUIRE": "never"}
    environ = {**guard.git_environ(), **of_index, **silent, "LC_ALL": "C"}
    try:
        done = finished(command, seconds, words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except FileNotFoundError:
        raise GitMissingError("git is not installed") from None
    except subprocess.TimeoutExpired:
        verb = next(word for word in arguments if not word.startswith("-") and "=" not in word)
        raise GitError(f"git {verb} did not end within {seconds:.3g} s") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise GitError(str(error)) from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        fatal = [line for line in lines if line.startswith(("fatal:", "error:"))]
        raise GitError((fatal or lines or [f"git exited with status {done.returncode}"])[0])
    return done.stdout.strip()


def top_folder(folder: Path) -> Path:
    """Returns the top folder of the work tree that holds ``folder``; raises GitError if there is no work tree."""
    return Path(git(folder, "rev-parse", "--show-toplevel"))


def commit_of(root: Path, name: str) -> str | None:
    """Returns the full hash of the commit that a branch, tag or hash names; None for an unknown name."""
    with contextlib.suppress(GitError):
        return git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}") or None
    return None


def untracked(top: Path) -> tuple[str, ...]:
    """Returns the paths of all untracked files, ignored or not; a folder without tracked files counts as one path."""
    with contextlib.suppress(GitError):
        listed = git(top, "ls-files", "-z", "--others", "--directory", seconds=_STATUS_SECONDS)
        return tuple(name.rstrip("/") for name in listed.split("\0") if name)
    return ()


def code_of(root: Path, commit: str | None = None) -> str:
    """Returns a digest of the code and configuration files of a commit, or of the work tree; may raise GitError.

    In the work tree, untracked files count unless git ignores them, because they may be committed with the baseline.
    Tracked JSON files count, except baselines. Files that a sparse checkout omits are read from git.
    """
    top = top_folder(root)
    if commit is not None:
        entries = git(top, "ls-tree", "-r", "-z", commit, seconds=_STATUS_SECONDS).split("\0")
        found = [entry.partition("\t")[::2] for entry in entries if entry.startswith("100")]
        hashed = [(path, facts.split()[2]) for facts, path in found if _of_code(path, tracked=True)]
    else:
        listed = git(top, "ls-files", "-z", "-t", "--stage", "--others", "--exclude-standard", seconds=_STATUS_SECONDS)
        of_code, left_out = list[str](), dict[str, str]()
        for tag, entry in (each.partition(" ")[::2] for each in listed.split("\0") if each):
            facts, name = ("", entry) if tag == "?" else entry.split("\t", 1)
            if _of_code(name, tracked=tag != "?"):
                of_code.append(name)
                if tag == "S" and facts.startswith("100"):
                    left_out[name] = facts.split()[1]
        names = sorted({name for name in of_code if (top / name).is_file() and not (top / name).is_symlink()})
        given = "".join(f"{name}\n" for name in names)
        hashes = git(top, "hash-object", "--stdin-paths", seconds=_STATUS_SECONDS, words=given).splitlines()
        hashed = list((left_out | dict(zip(names, hashes, strict=True))).items())
    return hashlib.sha256(repr(sorted(hashed)).encode()).hexdigest()[:16]


def _of_code(name: str, *, tracked: bool) -> bool:
    """Returns whether a file is code or configuration; a JSON file counts if git tracks it and it is not a baseline."""
    json = tracked and _JSON.fullmatch(name) is not None and _BASELINE.fullmatch(name) is None
    return json or _CODE.fullmatch(name) is not None


def fetch(root: Path, commit: str) -> None:
    """Fetches a commit from the first remote that has it; does nothing if no remote has it."""
    with contextlib.suppress(GitError):
        until = time.monotonic() + _FETCH_SECONDS
        remotes = git(root, "remote").splitlines()
        while remotes:
            with contextlib.suppress(GitError):
                share = max(0.0, until - time.monotonic()) / len(remotes)  # one that hangs leaves time for the others
                git(root, "fetch", "-q", "--no-tags", "--no-recurse-submodules", remotes.pop(0), commit, seconds=share)
                return


def is_shallow(root: Path) -> bool:
    """Returns whether a clone has only the latest commits; may raise GitError."""
    return git(root, "rev-parse", "--is-shallow-repository") == "true"


def missing(root: Path, commit: str, came_with: str | None) -> str:
    """Returns why a baseline's commit cannot be measured, with advice. The commit ``came_with`` added the baseline."""
    short = commit[:7]
    if commit_of(root, commit) is not None:
        return f"{short}, the commit of the baseline, lacks the test: commit the test, then save the baseline again"
    if is_shallow(root):
        cure = "run git fetch --unshallow (in CI: fetch-depth: 0), or give --ddpperf-recheck=fetch"
        return f"{short}, the commit of the baseline, is not in this clone, which is shallow: {cure}"
    other = "" if came_with is None else f", and commit {came_with[:7]}, which added the baseline, has other code"
    return (
        f"{short}, the commit of the baseline, is gone after a squash or a rebase{other}: save the baseline again on "
        "the main branch, or compare with --ddpperf-against"
    )


def introduced(text: str, name: str, folder: Path) -> str | None:
    """Returns the first commit that added ``text`` to files named ``name``; None if the text is not committed.

    In a shallow clone the result may be the oldest commit, which contains all earlier changes. May raise GitError.
    """
    if not folder.is_dir():
        return None
    try:
        search = ("log", "--reverse", "--format=%H", f"-S{text}", "--", f":(top,glob)**/{name}")
        return next(iter(git(folder, *search).splitlines()), None)
    except GitError as error:
        raise GitError(no_commit(folder, error)) from None


def has_file(folder: Path, commit: str, path: str) -> bool:
    """Returns whether a commit has a file with this path, relative to ``folder``."""
    with contextlib.suppress(GitError):
        git(folder, "cat-file", "-e", f"{commit}:./{path}")
        return True
    return False


def fetching(root: Path) -> str:
    """Returns advice on how to fetch a commit that is missing here."""
    with contextlib.suppress(GitError):
        if is_shallow(root):
            return "this is a shallow clone: fetch the rest with git fetch --unshallow (in CI: fetch-depth: 0)"
        if not git(root, "rev-list", "--all", "--max-count=1"):
            return "this repository has no commit: make one with git commit"
        if not git(root, "remote"):
            return "this repository has no remote: add one with git remote add"
    return "git fetch may bring the commit"


def unknown(root: Path, name: str) -> str:
    """Returns advice for a name of a branch, tag or commit that does not exist here."""
    names: list[str] = []
    with contextlib.suppress(GitError):
        kinds = ("refs/heads", "refs/remotes", "refs/tags")
        names = git(root, "for-each-ref", "--format=%(refname:short)", *kinds).split()
    return closest(name, names, 0.7) or fetching(root)


def lacking(root: Path, error: GitError) -> str:
    """Returns advice after git failed to check out a commit; the advice depends on git's error."""
    if re.search(r"ermission denied|ead-only file|could not create|[Uu]nable to create|o space left", str(error)):
        return "let git write into the repository and into the folder of temporary files"
    with contextlib.suppress(GitError):
        if git(root, "config", "--get-regexp", r"^remote\..*\.promisor$"):
            return (
                "this is a partial clone, which gets files from its remote at a checkout: fetch them with "
                "git fetch --refetch --no-filter while the remote can be reached"
            )
    if "did not end within" in str(error):
        return "run this command by hand to see what it waits for"
    if re.search(r"filter .*failed|hung up", str(error)):
        return "a git filter of the repository's files fails: for Git LFS, run git lfs install and git lfs fetch --all"
    return fetching(root)


_REFUSALS = (  # patterns of git's messages, what they mean for a folder, and the cure: the first that fits
    (
        r"dubious ownership in repository at '(?P<top>.*)'",
        "git refuses {top}, which belongs to another user",
        "run git config --global --add safe.directory {top}",
    ),
    (
        r"must be run in a work tree",
        "{folder} is in a bare repository, which has no files",
        "run pytest in a work tree of this repository (git worktree add)",
    ),
    (
        r"not a git repository: (?P<top>.*)",
        "{folder} is a work tree of a repository that is gone or was moved, {top}",
        "run git worktree repair in that repository",
    ),
    (r"not a git repository", "{folder} is in no git repository", ""),  # the cure depends on what it is wanted for
)


def no_repository(folder: Path, error: GitError) -> str:
    """Returns why git finds no repository around ``folder``, with a cure if one is known."""
    return _explained(folder, error, f"git cannot say what repository {folder} belongs to: {error}")


def unreadable(folder: Path) -> str:
    """Returns why git cannot read the repository around ``folder``; empty if git can, or if there is no repository."""
    try:
        top_folder(folder)
    except GitError as error:
        if any((parent / ".git").exists() for parent in (folder, *folder.parents)):
            return no_repository(folder, error)
    return ""


def no_commit(folder: Path, error: GitError) -> str:
    """Returns the reason why git cannot find the commit of the baselines in ``folder``, with advice."""
    why = str(error).removeprefix("fatal: ")
    other = f"git cannot find the baselines' commit: {why}; commit all changes, then save the baselines again"
    advice = "keep the baselines in a git repository, committed with the code, or compare with --ddpperf-against=FOLDER"
    return _explained(folder, error, other, advice)


def _explained(folder: Path, error: GitError, other: str, advice: str = "") -> str:
    """Returns the reason for git's error, with a cure or ``advice``; returns ``other`` if the reason is unknown."""
    if isinstance(error, GitMissingError):
        return f"{error}: install git"
    for pattern, *words in _REFUSALS:
        if (found := re.search(pattern, str(error))) is not None:
            reason, cure = (text.format(folder=folder, **found.groupdict()) for text in words)
            return ": ".join(filter(None, (reason, cure or advice)))
    return other


@dataclass(frozen=True, slots=True)
class Checkout:
    """The commit, the branch and the changes of a git work tree."""

    commit: str  # full hash of HEAD
    branch: str | None  # if HEAD is detached, the branch that the CI job runs for; None if it is unknown
    dirty: bool  # whether tracked files differ from the commit
    commit_date: str | None = None  # ISO 8601 in UTC; None if it is unknown


def checkout(path: Path, apart_from: Path | None = None) -> Checkout | None:
    """Returns the state of the work tree that holds ``path``; changes in the folder ``apart_from`` do not count.

    The result is None if git, a repository or a first commit is missing, or if git takes too long.
    """
    revision = commit_of(path, "HEAD")
    if revision is None:
        return None
    try:
        top = top_folder(path)
        aside = None if apart_from is None else Path(os.path.relpath(apart_from.resolve(), top.resolve()))
        exclusion = [] if aside is None or aside.parts[:1] == ("..",) else [":/", f":(top,exclude,literal){aside}"]
        # Untracked files do not count: baselines that are saved for the first time do not change the code.
        words = ("status", "--porcelain", "--untracked-files=no", "--", *exclusion)
        dirty = git(path, *words, seconds=_STATUS_SECONDS) != ""
    except GitError:
        return None
    return Checkout(revision, _branch(path, revision, os.environ), dirty, _commit_date(path, revision))


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
