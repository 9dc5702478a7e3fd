"""The search against made-up histories: every commit in turn is the culprit, with and without commits to skip."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import combinations

import pytest

from pytest_ddpperf.bisection.search import Search, advance, begin, expected_probes, next_probe

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


def found(parents: Parents, culprit: str, skipped: Collection[str] = ()) -> tuple[Search, int]:
    """The search at its end, and how many commits were looked at."""
    search, probes = begin(parents), 0
    while (commit := next_probe(search)) is not None:
        bad = culprit in search.ancestors[commit]
        search = advance(search, commit, "skipped" if commit in skipped else "bad" if bad else "good")
        probes += 1
    return search, probes


@pytest.mark.parametrize("length", range(1, 17))
def test_the_first_bad_commit_of_a_line_is_found_wherever_it_is(length: int) -> None:
    line = dict(list(LINE.items())[:length])
    for culprit in line:
        search, probes = found(line, culprit)
        assert search.suspects == {culprit}
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
        assert search.suspects == {f"c{i}" for i in range(first, last + 1)}, skipped
        assert search.bad == f"c{last}"
        assert probes <= 4 + 3


def test_where_all_are_skipped_all_are_left() -> None:
    search, probes = found(LINE, "c9", set(LINE))
    assert search.suspects == set(LINE)
    assert probes == 15


@pytest.mark.parametrize("culprit", MERGED)
def test_a_culprit_on_a_merged_branch_is_found_there(culprit: str) -> None:
    search, probes = found(MERGED, culprit)
    assert search.suspects == {culprit}
    assert probes <= 5


def test_what_the_bad_end_does_not_hold_is_no_suspect() -> None:
    search = begin({"c1": ("c0",), "elsewhere": ("c1",), "c2": ("c1",)})
    assert search.suspects == {"c1", "c2"}
    assert search.bad == "c2"


def test_one_commit_needs_no_look() -> None:
    search = begin({"c1": ("c0",)})
    assert search.done
    assert next_probe(search) is None
    assert expected_probes(search) == 0
