"""The goals in words: reached or missed, and whether the number of comparisons allows to be certain."""

from __future__ import annotations

import pytest

from benchmarks.quality.conditions import UNCHANGED
from benchmarks.quality.judging import ONE_OF_SUITE, PAIRED, STORED, Tally
from benchmarks.quality.report import COLUMNS, goal_lines, rule_rows
from pytest_ddpperf.stats.rates import Rate


def tally(found: int, of: int, seconds: float | None = None) -> Tally:
    return Tally(Rate(found, of, of), seconds=seconds)


@pytest.mark.parametrize(
    ("found", "of", "words"),
    [
        (0, 1000, "0.0%, at most 17%; reached, though not for certain"),
        (0, 10_000, "0.0%, at most 2%; reached"),  # 1.8 %
        (1, 1000, "4.9%, at most 24%; missed by 2.9 points, though not for certain"),
        (10, 1000, "39.5%, at most 60%; missed by 37.5 points"),
    ],
)
def test_a_suite_raises_more_false_alarms_than_one_benchmark(found: int, of: int, words: str) -> None:
    """At least one of 50: 1 - 0.999 ** 50 is 4.9 %."""
    (line,) = goal_lines({ONE_OF_SUITE: {UNCHANGED: tally(found, of)}})
    assert line == f"goal, a suite of 50 independent benchmarks with a false alarm, at most 2%: {words}"


def test_only_goals_of_which_the_tallies_tell_have_a_line() -> None:
    assert goal_lines({}) == []
    assert goal_lines({PAIRED: {"+3%": tally(90, 100)}}) == [
        "goal, side by side: +3% found, at least 95.0%: 90.0 % [82 .. 95], missed by 5.0 points, though not for certain"
    ]
    assert goal_lines({STORED: {UNCHANGED: tally(0, 1000, seconds=16.0)}}) == [
        "goal, stored baseline: unchanged false alarms, at most 0.5%: 0.0 % [0.0 .. 0.4], reached",
        "goal, seconds to the verdict on an unchanged step, at most 15: 16.0, missed by 1.0",
    ]


def test_rows_that_say_nothing_are_left_out() -> None:
    """What is never improved has no such row; a condition without a tally has a dash."""
    tallies = {UNCHANGED: Tally(Rate(0, 4, 4), improved=Rate(0, 4, 4))}
    labels = ("alarms", "improved", "seconds")
    assert set(labels) <= set(COLUMNS)
    assert rule_rows(STORED, tallies, (UNCHANGED, "+3%"), labels) == [
        ("stored baseline: alarms", "0.0 % [0 .. 60]", "-")
    ]
    rest = {UNCHANGED: Tally(Rate(1, 8, 8), inconclusive=Rate(2, 8, 8), improved=Rate(1, 8, 8))}
    assert rule_rows(STORED, rest, (UNCHANGED,), ("unchanged",)) == [
        ("stored baseline: unchanged", "50.0 % [16 .. 84]")
    ]
    faster = {UNCHANGED: Tally(Rate(0, 4, 4), improved=Rate(4, 4, 4))}
    assert rule_rows(STORED, faster, (UNCHANGED,), labels)[1] == ("stored baseline: improved", "100.0 % [40 .. 100]")
