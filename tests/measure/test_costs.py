"""What rounds will take, and what launches tell: worked by hand."""

from __future__ import annotations

import pytest

from pytest_ddpperf.measure.costs import DIAGNOSIS, ONLY_GROWTH, ONLY_TIMES, Costs, Telling


def test_at_first_a_round_takes_what_the_pilots_did() -> None:
    assert Costs(2.0).round == 2.0


def test_then_it_takes_what_those_before_it_did_however_slow_one_was() -> None:
    """The median: of 4 s alone that, of 4 and 5 s the mean, of 4, 5 and 30 s the middle one."""
    costs, found = Costs(2.0), []
    for seconds in (4.0, 5.0, 30.0):
        costs.add(seconds)
        found.append(costs.round)
    assert found == [4.0, 4.5, 5.0]


@pytest.mark.parametrize(
    ("one", "other", "covers"),
    [
        (DIAGNOSIS, ONLY_GROWTH, True),
        (DIAGNOSIS, ONLY_TIMES, True),
        (ONLY_GROWTH, ONLY_TIMES, True),
        (ONLY_TIMES, ONLY_GROWTH, False),
        (ONLY_GROWTH, DIAGNOSIS, False),
        (ONLY_GROWTH, ONLY_GROWTH, True),
    ],
)
def test_what_ran_the_same_passes_or_more_covers_another(one: Telling, other: Telling, *, covers: bool) -> None:
    assert one.covers(other) is covers


def test_what_tells_more_tells_no_times() -> None:
    """No verdict on times rests on launches that diagnose."""
    assert [one.times for one in (ONLY_TIMES, ONLY_GROWTH, DIAGNOSIS)] == [True, False, False]
