"""The commits between two others, and the choice of the next: every commit in turn is the culprit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_ddpperf.cli.bisect.bisector import expected_probes
from pytest_ddpperf.cli.bisect.commits import Answer, CommitRange, commits_between
from pytest_ddpperf.errors import SettingError

Git = Callable[..., str]
Parents = Mapping[str, tuple[str, ...]]
Make = Callable[[Parents], Any]
# c0 - c1 - c2 - c3 -------- m6 - c7        a topic branch of a4 and a5, begun at c2,
#  \        \ a4 - a5 ---- /              and b0, begun before the good end c0, merged by n8
#   before - b0 ------------------ n8
MERGED: Parents = {
    "before": (),
    "c0": ("before",),
    "b0": ("before",),
    "c1": ("c0",),
    "c2": ("c1",),
    "a4": ("c2",),
    "a5": ("a4",),
    "c3": ("c2",),
    "m6": ("c3", "a5"),
    "c7": ("m6",),
    "n8": ("c7", "b0"),
}


def test_a_line_of_commits(line: Any) -> None:
    between = commits_between("c13", "c16", line.root)
    hashes = [line.hashes[f"c{i}"] for i in (13, 14, 15, 16)]
    assert between.root == line.root
    assert (between.good, between.bad) == (hashes[0], hashes[3])
    assert list(between.parents.items()) == [(hashes[i], hashes[i - 1]) for i in (1, 2, 3)]


@pytest.fixture(scope="module")
def merged(history: Make) -> Any:
    """The history that is drawn above."""
    return history(MERGED)


def test_a_merge_is_seen_with_what_it_merged_or_as_one_commit(merged: Any) -> None:
    between = merged.between("c2", "m6")
    assert set(merged.names(between.parents)) == set(merged.names(between.suspects)) == {"c3", "a4", "a5", "m6"}
    assert merged.name([*between.parents][-1]) == merged.name(between.suspects[-1]) == "m6"
    alone = merged.between("c2", "m6", first_parent=True)
    assert merged.names(alone.suspects) == merged.names(alone.parents) == ("c3", "m6")
    assert merged.name(alone.next) == "c3"
    for one in (between, alone):
        assert merged.name(one.parents[merged.hashes["m6"]]) == "c3"


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("gone", "c1", "--good gone: there is no such branch, tag or commit in .*; git fetch may bring it"),
        ("c1", "gone", "--bad gone: there is no such branch, tag or commit"),
        ("c1", "c1", r"--good c1 --bad c1: both are commit [0-9a-f]{7}; name two different"),
        ("c7", "c3", "--good c7 --bad c3: commit c3 is an ancestor of c7; swap the values"),
        ("b0", "c7", "--good b0 --bad c7: b0 is not an ancestor of c7"),
    ],
)
def test_what_cannot_be_searched_is_said(merged: Any, good: str, bad: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        commits_between(good, bad, merged.root)


def remove(root: Path, commit: str) -> None:
    (root / ".git" / "objects" / commit[:2] / commit[2:]).unlink()


def test_a_repository_that_is_not_whole_is_told_with_the_cure(repository: Path, git: Git) -> None:
    remove(repository, git("rev-parse", "c8"))
    with pytest.raises(SettingError) as caught:
        commits_between("c1", "c16", repository)
    assert str(caught.value).startswith("--good c1 --bad c16: git cannot list the commits between them: ")
    assert str(caught.value).endswith("; git fsck shows whether the repository is damaged, and git fetch may bring it")
    assert "\n" not in str(caught.value)


def test_so_is_a_repository_that_loses_a_commit_during_the_search(repository: Path, git: Git) -> None:
    between = commits_between("c1", "c16", repository)
    remove(repository, git("rev-parse", "c8"))
    ends = f"--good {between.good[:7]} --bad {between.bad[:7]}"
    with pytest.raises(SettingError, match=f"^{ends}: git cannot list the commits between them: .*git fsck shows"):
        _ = between.next


def test_without_a_repository_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"ddpperf bisect: .* is in no git repository; run it in a checkout"):
        commits_between("c1", "c2", tmp_path)


def test_a_commit_in_words(repository: Path, git: Git) -> None:
    git("commit", "-q", "--allow-empty", "-m", "Make it faster", "-m", "Or so.", "--date=2026-01-12T12:00:00Z")
    between, commit = commits_between("c0", "HEAD", repository), git("rev-parse", "HEAD")
    assert between.details(commit) == ["Make it faster", "a, 2026-01-12"]
    assert between.short(commit) == f"{commit[:7]} Make it faster"
    elsewhere = replace(between, root=repository / "gone")
    assert elsewhere.details(commit) == []
    assert elsewhere.short(commit) == commit[:7]


def lineage(parents: Parents, good: str) -> dict[str, frozenset[str]]:
    """Of each commit, itself and the commits before it that do not lie before the good end."""
    held: dict[str, frozenset[str]] = {}
    for commit, before in parents.items():
        held[commit] = frozenset({commit}).union(*(held[parent] for parent in before))
    return {commit: before - held[good] for commit, before in held.items()}


class Plain:
    """The search by its definition, in sets of names."""

    def __init__(self, between: CommitRange, made: Any, good: str) -> None:
        self.ancestors = lineage(made.parents, good)
        self.order = made.names(between.parents)
        self.suspects = self.ancestors[made.name(between.bad)]
        self.skipped: frozenset[str] = frozenset()

    def next(self) -> str | None:
        bad = next(commit for commit in self.suspects if self.ancestors[commit] >= self.suspects)
        candidates = [commit for commit in self.order if commit in self.suspects - self.skipped - {bad}]

        def split(commit: str) -> int:
            before = len(self.ancestors[commit] & self.suspects)
            return min(before, len(self.suspects) - before)

        return max(candidates, key=split, default=None)

    def answered(self, commit: str, answer: Answer) -> None:
        before = self.ancestors[commit]
        if answer == "skipped":
            self.skipped |= {commit}
        else:
            self.suspects = self.suspects & before if answer == "bad" else self.suspects - before


@st.composite
def histories(draw: st.DrawFn) -> Parents:
    """Up to ten commits after the good one, merges among them."""
    parents: dict[str, tuple[str, ...]] = {"old": (), "good": ("old",)}
    for number in range(1, draw(st.integers(2, 11))):
        parents[f"c{number}"] = tuple(draw(st.lists(st.sampled_from([*parents]), min_size=1, max_size=3, unique=True)))
    heads = {*parents} - {parent for before in parents.values() for parent in before}
    return {**parents, "bad": (*sorted(heads | {"good"}),)}


@settings(max_examples=10, deadline=None)
@given(histories(), st.data())
def test_it_goes_as_it_is_defined_in_sets_of_names(history: Make, parents: Parents, data: st.DataObject) -> None:
    made: Any = history(parents)
    between = made.between("good", "bad")
    plain = Plain(between, made, "good")
    while True:
        assert set(made.names(between.suspects)) == plain.suspects
        assert expected_probes(between) == math.ceil(math.log2(len(plain.suspects)))
        commit = between.next
        assert (None if commit is None else made.name(commit)) == plain.next()
        if commit is None:
            break
        answers: list[Answer] = ["good", "bad", "skipped"]
        answer = data.draw(st.sampled_from(answers))
        between = between.answered(commit, answer)
        plain.answered(made.name(commit), answer)


def test_neither_the_names_of_refs_nor_a_bisection_of_git_decide(repository: Path, git: Git) -> None:
    """Git prints the names of tags and branches in the lines that say how far a commit is from both ends."""
    git("tag", "dist=99", "c3")
    git("tag", "x,dist=99)", "c5")
    git("bisect", "start", "c5", "c1")
    assert commits_between("c0", "c16", repository).next == git("rev-parse", "c8")
