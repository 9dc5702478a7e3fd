"""Other tools' rules, on steps for which their answers are plain."""

from __future__ import annotations

import pytest

from benchmarks.quality.peers import RULES

BASE = [1.00, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06, 1.07, 1.08, 1.09, 1.10, 1.11]
MEAN, MINIMUM, MEDIAN, T_TEST, RANKS, ASV = RULES


def alarms(new: list[float]) -> set[str]:
    return {name for name, rule in RULES.items() if rule(new, BASE)}


def test_the_same_steps_alarm_nobody() -> None:
    assert not alarms(BASE)


def test_faster_steps_alarm_nobody() -> None:
    assert not alarms([0.5 * step for step in BASE])


def test_twice_the_time_alarms_all() -> None:
    assert alarms([2 * step for step in BASE]) == set(RULES)


def test_a_single_pause_moves_the_mean_alone() -> None:
    """11 of 12 steps stay: the mean rises by 1.11 / 12.66 = 8.8 %, minimum and median do not."""
    assert alarms([*BASE[:-1], 2.22]) == {MEAN}


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.049, {T_TEST, RANKS}), (1.051, {MEAN, MINIMUM, MEDIAN, T_TEST, RANKS})]
)
def test_five_percent_is_the_limit_of_three(factor: float, expected: set[str]) -> None:
    assert alarms([factor * step for step in BASE]) == expected


def test_the_ranks_alone_do_not_alarm_asv() -> None:
    """No step overlaps, so p is far below 0.002; the median has to be 1.1 times the old one as well."""
    steady = [1.0 + 1e-4 * i for i in range(12)]
    assert not RULES[ASV]([1.09 * step for step in steady], steady)
    assert RULES[ASV]([1.11 * step for step in steady], steady)
