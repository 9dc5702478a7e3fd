"""What rounds will take: worked by hand."""

from __future__ import annotations

from pytest_ddpperf.measure.costs import ONLY_TIMES, Costs, Telling

ALL = Telling(diagnosed=True, growth=True)
GROWTH = Telling(diagnosed=False, growth=True)


def test_at_first_a_round_takes_what_the_pilot_did() -> None:
    assert [Costs(2.0).of(telling) for telling in (ALL, GROWTH, ONLY_TIMES)] == [2.0, 2.0, 2.0]


def test_rounds_take_what_those_like_them_took() -> None:
    costs = Costs(2.0)
    for seconds in (4.0, 5.0):
        costs.add(ALL, seconds)
    costs.add(ONLY_TIMES, 3.0)
    assert [costs.of(telling) for telling in (ALL, GROWTH, ONLY_TIMES)] == [4.5, 2.0, 3.0]


def test_those_that_tell_less_take_no_longer_however_slow_the_pilot_was() -> None:
    costs = Costs(20.0)
    costs.add(ALL, 4.0)
    assert [costs.of(telling) for telling in (GROWTH, ONLY_TIMES)] == [4.0, 4.0]
    costs.add(GROWTH, 3.0)
    assert costs.of(ONLY_TIMES) == 3.0
    costs = Costs(20.0)
    costs.add(ONLY_TIMES, 1.0)
    assert costs.of(ALL) == 20.0
