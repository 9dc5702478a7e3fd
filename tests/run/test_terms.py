"""What rounds will take, and what launches tell: worked by hand."""

from __future__ import annotations

from pytest_ddpperf.run.terms import DIAGNOSIS, ONLY_GROWTH, ONLY_TIMES, Costs


def test_at_first_a_round_takes_what_the_pilots_did() -> None:
    assert Costs(2.0).round == 2.0


def test_then_it_takes_what_those_before_it_did_however_slow_one_was() -> None:
    """The median: of 4 s alone that, of 4 and 5 s the mean, of 4, 5 and 30 s the middle one."""
    costs, found = Costs(2.0), []
    for seconds in (4.0, 5.0, 30.0):
        costs.add(seconds)
        found.append(costs.round)
    assert found == [4.0, 4.5, 5.0]


def test_what_tells_more_tells_no_times() -> None:
    """No verdict on times rests on launches that diagnose."""
    assert [one.times for one in (ONLY_TIMES, ONLY_GROWTH, DIAGNOSIS)] == [True, False, False]
