"""The commits to search, as git has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pytest_ddpperf.against.git import GitError, commit_of, fetching, git, no_repository, top_folder
from pytest_ddpperf.cli.bisect.search import Search, begin
from pytest_ddpperf.errors import SettingError

SHORT = 7
_HISTORY_SECONDS = 120.0  # to walk through a long one


@dataclass(frozen=True)
class Range:
    """What lies between two commits.

    Attributes:
        root: the top folder of the repository.
        good: full hash of the one that is good; ``bad`` of the one that is not.
        parents: of the commits after ``good`` up to ``bad``, parents first.
    """

    root: Path
    good: str
    bad: str
    parents: Mapping[str, tuple[str, ...]]

    @cached_property
    def search(self) -> Search:
        """The search among them, as it begins."""
        return begin(self.parents)


@dataclass(frozen=True)
class Commit:
    """A commit in words; ``date`` is the day on which it was written, ISO 8601."""

    hash: str
    subject: str
    author: str
    date: str

    @property
    def short(self) -> str:
        """Hash and subject: ``3f2a1c0 Average gradients in one call``."""
        return f"{self.hash[:SHORT]} {self.subject}".rstrip()


def commits_between(good: str, bad: str, folder: Path, *, first_parent: bool = False) -> Range:
    """The commits to search.

    Args:
        good: a branch, tag or commit, as the user named it.
        bad: likewise.
        folder: a folder of the project.
        first_parent: whether to see a merge as one commit and leave out what it merged.

    Raises:
        SettingError: there are none; the message says why and what to do.
    """
    try:
        root = top_folder(folder)
    except GitError as error:
        raise SettingError(f"ddpperf bisect: {no_repository(folder, error)}; run it in a checkout of it") from None
    ends = {option: commit_of(root, name) for option, name in (("--good", good), ("--bad", bad))}
    for (option, commit), name in zip(ends.items(), (good, bad), strict=True):
        if commit is None:
            raise SettingError(f"{option} {name}: there is no such branch, tag or commit in {root}; {fetching(root)}")
    first, last = str(ends["--good"]), str(ends["--bad"])
    options = ["--topo-order", "--reverse", "--parents", *(["--first-parent"] if first_parent else [])]
    try:
        _require_ancestor(root, (good, first), (bad, last))
        lines = git(root, "rev-list", *options, f"{first}..{last}", seconds=_HISTORY_SECONDS).splitlines()
    except GitError as error:
        raise SettingError(
            f"--good {good} --bad {bad}: git cannot list the commits between them: {error}; git fsck tells whether "
            f"the repository is whole, and {fetching(root)}"
        ) from None
    parents = {commit: tuple(before) for commit, *before in map(str.split, lines)}
    if first_parent:
        parents = {commit: before[:1] for commit, before in parents.items()}
    return Range(root, first, last, parents)


def _require_ancestor(root: Path, good: tuple[str, str], bad: tuple[str, str]) -> None:
    """Make sure that the good end, by name and hash, came before the bad one.

    Raises:
        SettingError: it did not.
        GitError: git cannot tell.
    """
    ends = f"--good {good[0]} --bad {bad[0]}"
    if good[1] == bad[1]:
        raise SettingError(f"{ends}: both are {good[1][:SHORT]}: there is no commit between them")
    if _is_ancestor(root, bad[1], good[1]):
        raise SettingError(f"{ends}: {bad[0]} came before {good[0]}; are they the wrong way round?")
    if not _is_ancestor(root, good[1], bad[1]):
        raise SettingError(
            f"{ends}: {good[0]} is no ancestor of {bad[0]}, so the change need not lie between them; name a good "
            f"commit that is, such as the one that git merge-base gives; {fetching(root)}"
        )


def _is_ancestor(root: Path, one: str, other: str) -> bool:
    """Whether nothing leads to ``one`` that does not lead to ``other``; git merge-base tells "no" for errors as well.

    Raises:
        GitError: git cannot tell.
    """
    return not git(root, "rev-list", "--max-count=1", one, f"^{other}", seconds=_HISTORY_SECONDS)


def described(root: Path, commit: str) -> Commit:
    """A commit in words; its hash alone where git cannot tell more."""
    try:
        told = git(root, "show", "-s", "--format=%s%x00%an%x00%as", commit).split("\0")
    except GitError:
        told = []
    subject, author, date = (*told, "", "", "")[:3]
    return Commit(commit, subject, author, date)
