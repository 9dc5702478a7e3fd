"""The search against made-up histories: every commit in turn is the culprit, with and without commits to skip."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Collection, Mapping
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_ddpperf.cli.bisect.search import Answer, Search, advance, begin, expected_probes, next_probe

Parents = Mapping[str, tuple[str, ...]]
LINE: Parents = {f"c{i}": (f"c{i - 1}",) for i in range(1, 17)}
# c1 - c2 - c3 -------- m6 - c7        a topic branch of a4 and a5, begun at c2,
#        \ a4 - a5 ---- /              and b0, begun before the good end, merged by n8
#   b0 ----------------------- n8
MERGED: Parents = {
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


def lineage(parents: Parents) -> dict[str, frozenset[str]]:
    """Of each commit, itself and those before it that lie between the ends."""
    held: dict[str, frozenset[str]] = {}
    for commit, before in parents.items():
        held[commit] = frozenset({commit}).union(*(held.get(parent, frozenset()) for parent in before))
    return held


class Plain:
    """The search as it is defined, in sets of names."""

    def __init__(self, parents: Parents) -> None:
        self.ancestors = lineage(parents)
        self.suspects = self.ancestors[[*parents][-1]]
        self.skipped: frozenset[str] = frozenset()

    def next_probe(self) -> str | None:
        bad = next(commit for commit in self.suspects if self.ancestors[commit] >= self.suspects)
        candidates = [commit for commit in self.ancestors if commit in self.suspects - self.skipped - {bad}]

        def split(commit: str) -> int:
            before = len(self.ancestors[commit] & self.suspects)
            return min(before, len(self.suspects) - before)

        return max(candidates, key=split, default=None)

    def advance(self, commit: str, answer: Answer) -> None:
        before = self.ancestors[commit]
        if answer == "skipped":
            self.skipped |= {commit}
        else:
            self.suspects = self.suspects & before if answer == "bad" else self.suspects - before


def found(parents: Parents, culprit: str, skipped: Collection[str] = ()) -> tuple[Search, int]:
    """The search at its end, and how many commits were looked at."""
    search, probes = begin(parents), 0
    while (commit := next_probe(search)) is not None:
        bad = culprit in lineage(parents)[commit]
        search = advance(search, commit, "skipped" if commit in skipped else "bad" if bad else "good")
        probes += 1
    return search, probes


@pytest.mark.parametrize("length", range(1, 17))
def test_the_first_bad_commit_of_a_line_is_found_wherever_it_is(length: int) -> None:
    line = dict(list(LINE.items())[:length])
    for culprit in line:
        search, probes = found(line, culprit)
        assert search.suspects == (culprit,)
        assert probes <= expected_probes(begin(line))


def test_of_sixteen_it_takes_four() -> None:
    assert {found(LINE, culprit)[1] for culprit in LINE} == {4}
    assert next_probe(begin(LINE)) == "c8"


@pytest.mark.parametrize("culprit", LINE)
def test_commits_that_say_nothing_are_passed_over(culprit: str) -> None:
    """The answer is the culprit and what was skipped right before it, or from it on where it was skipped itself."""
    number = int(culprit[1:])
    for skipped in combinations(list(LINE)[:-1], 2):
        search, probes = found(LINE, culprit, skipped)
        first, last = number, number
        while f"c{first - 1}" in skipped:
            first -= 1
        while f"c{last}" in skipped:
            last += 1
        assert search.suspects == tuple(f"c{i}" for i in range(first, last + 1)), skipped
        assert probes <= 4 + 3


def test_where_all_are_skipped_all_are_left() -> None:
    search, probes = found(LINE, "c9", set(LINE))
    assert search.suspects == tuple(LINE)
    assert search.skipped == tuple(LINE)[:-1]
    assert probes == 15


@pytest.mark.parametrize("culprit", MERGED)
def test_a_culprit_on_a_merged_branch_is_found_there(culprit: str) -> None:
    search, probes = found(MERGED, culprit)
    assert search.suspects == (culprit,)
    assert probes <= 5


def test_what_the_bad_end_does_not_hold_is_no_suspect() -> None:
    search = begin({"c1": ("c0",), "elsewhere": ("c1",), "c2": ("c1",)})
    assert search.suspects == ("c1", "c2")


def test_one_commit_needs_no_look() -> None:
    search = begin({"c1": ("c0",)})
    assert search.candidates == ()
    assert next_probe(search) is None
    assert expected_probes(search) == 0


@st.composite
def histories(draw: st.DrawFn) -> Parents:
    """Up to ten commits, merges among them, and some that the last one does not hold."""
    parents: dict[str, tuple[str, ...]] = {}
    for number in range(draw(st.integers(1, 10))):
        known = ["good", *parents]
        parents[f"c{number}"] = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True)))
    return parents


@given(histories(), st.data())
def test_it_goes_as_it_is_defined_in_sets_of_names(parents: Parents, data: st.DataObject) -> None:
    search, plain = begin(parents), Plain(parents)
    while True:
        assert set(search.suspects) == plain.suspects
        assert set(search.skipped) == plain.skipped
        assert expected_probes(search) == math.ceil(math.log2(len(plain.suspects)))
        commit = next_probe(search)
        assert commit == plain.next_probe()
        if commit is None:
            break
        answers: list[Answer] = ["good", "bad", "skipped"]
        answer = data.draw(st.sampled_from(answers))
        search = advance(search, commit, answer)
        plain.advance(commit, answer)


def test_thousands_of_commits_take_little_memory() -> None:
    """As sets of names they took 586 MiB."""
    line = {f"c{i}": (f"c{i - 1}",) for i in range(1, 5001)}
    tracemalloc.start()
    try:
        assert next_probe(begin(line)) == "c2500"
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()
