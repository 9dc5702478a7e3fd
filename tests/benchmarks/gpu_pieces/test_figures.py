"""What pieces make of what they measured, by numbers worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu_pieces import failures, suite, turns
from benchmarks.gpu_pieces.failures import reported
from pytest_ddpperf.errors import RankFailed


def pair(difference: float, seconds: float, blocks: tuple[float, ...] = ()) -> dict[str, Any]:
    return {"difference": difference, "seconds": seconds, "blocks": list(blocks)}


def test_the_kind_of_pairs_that_takes_least_is_named() -> None:
    """Twice the seconds, a third of the scatter: 2/9 of the time for the same certainty."""
    alternating, in_turns = [pair(0.03, 4.0)] * 6, [pair(0.01, 8.0, (0.02, -0.02))] * 6
    assert turns.costs(in_turns) / turns.costs(alternating) == pytest.approx(2 / 9)
    found = {"steps": 50, "pairs": {turns.ALTERNATING: alternating, turns.IN_TURNS: in_turns}}
    *_, of_turns, last = turns.lines(found)
    assert "takes 0.22; by their blocks alone apart by 2.0%" in of_turns
    assert last == "the same certainty takes least where sides take turns in blocks"
    few = {"steps": 50, "pairs": {turns.ALTERNATING: alternating[:3], turns.IN_TURNS: in_turns[:3]}}
    assert turns.lines(few)[-1] == "too few pairs to decide"


def test_an_error_is_kept_in_words() -> None:
    def fails() -> None:
        raise RankFailed("rank 1 of 2 ran out of memory", rank=1, out_of_memory=True)

    error = reported(fails)
    assert (error["type"], error["rank"], error["memory"]) == ("RankFailed", 1, True)
    assert reported(lambda: None)["type"] == ""
    case = {"title": "out of memory", "right": False, "error": error, "late": None, "next": "", "next_seconds": 0.25}
    told = failures.lines({"cases": [case], "free": 0.98})
    assert told[0].startswith("out of memory: NOT AS IT SHOULD, ")
    assert told[1:3] == ["  RankFailed: rank 1 of 2 ran out of memory", "  the next launch works, 0.2 s"]
    assert told[-1] == "a launch right after a kill with memory held found 98% of the memory free"


def test_the_outcomes_of_tests_are_counted_and_failures_quoted() -> None:
    found = {
        "passed": 1,
        "failed": {"t::c": "assert 1 == 2"},
        "skipped": {"needs a GPU": 2},
        "seconds": 3.2,
        "said": [],
    }
    told = suite.lines({"tests": {**found, "status": 1}})
    assert told == ["1 passed, 1 failed, 2 skipped in 3 s", "  FAILED t::c: assert 1 == 2", "  skipped 2: needs a GPU"]
    assert suite.lines({"tests": {"status": 4, "said": ["no such file"]}})[0] == "pytest ended with status 4"
