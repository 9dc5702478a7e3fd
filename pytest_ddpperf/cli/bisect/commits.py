"""The commits that a bisection searches. Git chooses the commit to probe next."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

from pytest_ddpperf.against.git import GitError, commit_of, fetching, git, no_repository, top_folder
from pytest_ddpperf.errors import SettingError

Answer = Literal["good", "bad", "skipped"]
SHORT = 7
_HISTORY_SECONDS = 120.0  # to walk through a long history
_BISECT_LINE = re.compile(r"(\w+) .*\bdist=(\d+)\)")


@dataclass(frozen=True)
class CommitRange:
    """The commits after a good commit up to a bad one, with the answers of the probes.

    The search assumes that one commit made the change and that no later commit undid it. Commits are full hashes.
    """

    noun: ClassVar[str] = "commit"
    root: Path  # the top folder of the repository
    good: str
    bad: str
    parents: Mapping[str, str]  # the first parent of each commit; the good end if it has none; parents come first
    options: tuple[str, ...] = ()  # of git rev-list
    answers: Mapping[str, Answer] = field(default_factory=dict)  # in the order of the probes

    @cached_property
    def _distances(self) -> Mapping[str, int]:
        """Maps each suspect to the smallest number of suspects that its probe excludes, whatever the answer is."""
        ends = f"--good {self.good[:SHORT]} --bad {self.bad[:SHORT]}"
        bad, good = (self.bad, *self._answered("bad"))[-1], (self.good, *self._answered("good"))
        lines = _rev_list(self.root, ends, "--bisect-all", *self.options, bad, *(f"^{commit}" for commit in good))
        return {match[1]: int(match[2]) for match in map(_BISECT_LINE.fullmatch, lines) if match is not None}

    def _answered(self, answer: Answer) -> list[str]:
        return [commit for commit, given in self.answers.items() if given == answer]

    @property
    def suspects(self) -> tuple[str, ...]:
        """Returns the commits that may be the first bad one, parents first; the last commit is known to be bad."""
        return tuple(commit for commit in self.parents if commit in self._distances)

    @property
    def next(self) -> str | None:
        """Returns the commit to probe, which halves the suspects as evenly as possible; None if the search is over."""
        candidates = [commit for commit in self.suspects[:-1] if commit not in self.answers]
        return max(candidates, key=self._distances.__getitem__, default=None)

    def answered(self, commit: str, answer: Answer) -> CommitRange:
        """Returns this range with a further answer: the answer of the probe of ``commit``."""
        return replace(self, answers={**self.answers, commit: answer})

    def short(self, commit: str) -> str:
        """Returns the short hash and the subject of a commit: ``3f2a1c0 Average gradients in one call``."""
        return f"{commit[:SHORT]} {self._show(commit, '%s')}".rstrip()

    def details(self, commit: str) -> list[str]:
        """Returns lines with a commit's subject, author and day; none if git cannot show them."""
        return self._show(commit, "%s%n%an, %as").splitlines()

    def _show(self, commit: str, form: str) -> str:
        with contextlib.suppress(GitError):
            return git(self.root, "show", "-s", f"--format={form}", commit)
        return ""


def commits_between(good: str, bad: str, folder: Path, *, first_parent: bool = False) -> CommitRange:
    """Returns the commits between two revisions of a folder's repository; the good one must precede the bad one."""
    try:
        root = top_folder(folder)
    except GitError as error:
        raise SettingError(f"ddpperf bisect: {no_repository(folder, error)}; run it in a checkout of it") from None
    hashes = []
    for option, name in (("--good", good), ("--bad", bad)):
        commit = commit_of(root, name)
        if commit is None:
            raise SettingError(f"{option} {name}: there is no such branch, tag or commit in {root}; {fetching(root)}")
        hashes.append(commit)
    first, last = hashes
    ends, options = f"--good {good} --bad {bad}", ("--first-parent",) if first_parent else ()
    if first == last:
        raise SettingError(f"{ends}: both are commit {first[:SHORT]}; name two different commits")
    # git merge-base --is-ancestor would answer "no" to errors as well.
    if not _rev_list(root, ends, "--max-count=1", last, f"^{first}"):
        raise SettingError(f"{ends}: commit {bad} is an ancestor of {good}; swap the values of the two options")
    if _rev_list(root, ends, "--max-count=1", first, f"^{last}"):
        raise SettingError(
            f"{ends}: {good} is not an ancestor of {bad}, so the change need not lie between them; name a good "
            f"commit that is an ancestor, such as the output of git merge-base {good} {bad}; {fetching(root)}"
        )
    lines = _rev_list(root, ends, "--topo-order", "--reverse", "--parents", *options, last, f"^{first}")
    parents = {commit: (*before, first)[0] for commit, *before in map(str.split, lines)}
    return CommitRange(root, first, last, parents, options)


def _rev_list(root: Path, ends: str, *arguments: str) -> list[str]:
    try:
        return git(root, "rev-list", *arguments, seconds=_HISTORY_SECONDS).splitlines()
    except GitError as error:
        raise SettingError(
            f"{ends}: git cannot list the commits between them: {error}; git fsck shows whether "
            f"the repository is damaged, and {fetching(root)}"
        ) from None
