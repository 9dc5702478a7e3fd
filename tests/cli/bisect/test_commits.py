"""The commits between two others, and the choice of the next: every commit in turn is the culprit."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
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
LINE = [f"c{number}" for number in range(1, 17)]
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


def test_a_line_of_commits(repository: Path, git: Git) -> None:
    between = commits_between("v13", "v16", repository)
    hashes = [git("rev-parse", f"v{i}") for i in (13, 14, 15, 16)]
    assert between.root == repository
    assert (between.good, between.bad) == (hashes[0], hashes[3])
    assert list(between.parents.items()) == [(hashes[i], hashes[i - 1]) for i in (1, 2, 3)]


def test_a_merge_is_seen_with_what_it_merged_or_as_one_commit(repository: Path, git: Git) -> None:
    git("checkout", "-q", "-b", "topic", "v15")
    git("commit", "-q", "--allow-empty", "-m", "on the topic")
    git("checkout", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "merge", "topic")
    between = commits_between("v14", "main", repository)
    merge, topic, last = (git("rev-parse", name) for name in ("main", "topic", "v16"))
    assert set(between.parents) == set(between.suspects) == {git("rev-parse", "v15"), last, topic, merge}
    assert list(between.parents)[-1] == between.suspects[-1] == merge
    assert between.parents[merge] == last
    alone = commits_between("v14", "main", repository, first_parent=True)
    assert alone.suspects == tuple(alone.parents) == (git("rev-parse", "v15"), last, merge)
    assert alone.parents[merge] == last


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("gone", "v1", "--good gone: there is no such branch, tag or commit in .*; git fetch may bring it"),
        ("v1", "gone", "--bad gone: there is no such branch, tag or commit"),
        ("v1", "v1", r"--good v1 --bad v1: both are [0-9a-f]{7}: there is no commit between them"),
        ("v9", "v3", "--good v9 --bad v3: v3 came before v9; swap the two options"),
        ("beside", "v16", "--good beside --bad v16: beside is no ancestor of v16"),
    ],
)
def test_what_cannot_be_searched_is_said(repository: Path, git: Git, good: str, bad: str, said: str) -> None:
    git("checkout", "-q", "-b", "beside", "v3")
    git("commit", "-q", "--allow-empty", "-m", "beside")
    with pytest.raises(SettingError, match=said):
        commits_between(good, bad, repository)


def remove(root: Path, commit: str) -> None:
    (root / ".git" / "objects" / commit[:2] / commit[2:]).unlink()


def test_a_repository_that_is_not_whole_is_told_with_the_cure(repository: Path, git: Git) -> None:
    remove(repository, git("rev-parse", "v8"))
    with pytest.raises(SettingError) as caught:
        commits_between("v1", "v16", repository)
    assert str(caught.value).startswith("--good v1 --bad v16: git cannot list the commits between them: ")
    assert str(caught.value).endswith("; git fsck tells whether the repository is whole, and git fetch may bring it")
    assert "\n" not in str(caught.value)


def test_so_is_a_repository_that_loses_a_commit_during_the_search(repository: Path, git: Git) -> None:
    between = commits_between("v1", "v16", repository)
    remove(repository, git("rev-parse", "v8"))
    ends = f"--good {between.good[:7]} --bad {between.bad[:7]}"
    with pytest.raises(SettingError, match=f"^{ends}: git cannot list the commits between them: .*git fsck tells"):
        _ = between.next


def test_without_a_repository_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"ddpperf bisect: .* is in no git repository; run it in a checkout"):
        commits_between("v1", "v2", tmp_path)


def test_a_commit_in_words(repository: Path, git: Git) -> None:
    git("commit", "-q", "--allow-empty", "-m", "Make it faster", "-m", "Or so.", "--date=2026-01-12T12:00:00Z")
    between, commit = commits_between("v0", "HEAD", repository), git("rev-parse", "HEAD")
    assert between.details(commit) == ["Make it faster", "Ada, 2026-01-12"]
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


def searched(made: Any, between: CommitRange, culprit: str, skipped: Collection[str] = ()) -> CommitRange:
    """The search at its end."""
    ancestors = lineage(made.parents, made.name(between.good))
    while (commit := between.next) is not None:
        bad = culprit in ancestors[made.name(commit)]
        between = between.answered(commit, "skipped" if made.name(commit) in skipped else "bad" if bad else "good")
    return between


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, *(pytest.param(n, marks=pytest.mark.slow) for n in range(9, 17))])
def test_the_first_bad_commit_of_a_line_is_found_wherever_it_is(line: Any, length: int) -> None:
    between = line.between("c0", f"c{length}")
    for culprit in LINE[:length]:
        end = searched(line, between, culprit)
        assert line.names(end.suspects) == (culprit,)
        assert len(end.answers) <= expected_probes(between)


@pytest.mark.parametrize("culprit", list(MERGED)[2:])
def test_a_culprit_on_a_merged_branch_is_found_there(history: Make, culprit: str) -> None:
    made = history(MERGED)
    end = searched(made, made.between("c0", "n8"), culprit)
    assert made.names(end.suspects) == (culprit,)
    assert len(end.answers) <= 5


@pytest.mark.parametrize("culprit", ["c1", "c2", "c3", "m6", "c7", "n8"])
def test_with_first_parent_no_merged_commit_is_looked_at(history: Make, culprit: str) -> None:
    made = history(MERGED)
    end = searched(made, made.between("c0", "n8", first_parent=True), culprit)
    assert made.names(end.suspects) == (culprit,)
    assert not {"a4", "a5", "b0"} & set(made.names(end.answers))
    assert len(end.answers) <= 3


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


def test_a_range_of_thousands_of_commits_is_halved(history: Make) -> None:
    made: Any = history({f"c{number}": (f"c{number - 1}",) if number else () for number in range(5001)})
    assert made.name(made.between("c0", "c5000").next) == "c2500"


def test_the_words_of_refs_do_not_decide(repository: Path, git: Git) -> None:
    """Git prints the names of tags and branches in the lines that tell how far a commit is from both ends."""
    git("tag", "dist=99", "v3")
    git("tag", "x,dist=99)", "v5")
    assert commits_between("v0", "v16", repository).next == git("rev-parse", "v8")


def test_a_bisection_of_git_that_goes_on_does_not_matter(repository: Path, git: Git) -> None:
    git("bisect", "start", "v5", "v1")
    assert commits_between("v0", "v16", repository).next == git("rev-parse", "v8")
