"""What rounds will take: worked by hand."""

from __future__ import annotations

from pytest_ddpperf.measure.costs import ONLY_TIMES, Costs, Telling

ALL = Telling(diagnosed=True, growth=True)
GROWTH = Telling(diagnosed=False, growth=True)


def test_at_first_a_round_takes_what_the_pilot_did() -> None:
    assert [Costs(2.0).of(telling) for telling in (ALL, GROWTH, ONLY_TIMES)] == [2.0, 2.0, 2.0]


def test_rounds_take_what_those_like_them_took() -> None:
    costs = Costs(2.0)
    for seconds in (4.0, 5.0, 30.0):
        costs.add(ALL, seconds)
    costs.add(ONLY_TIMES, 3.0)
    assert [costs.of(telling) for telling in (ALL, ONLY_TIMES)] == [5.0, 3.0]


def test_others_lie_between_those_that_tell_less_and_those_that_tell_more() -> None:
    costs = Costs(20.0)
    costs.add(ALL, 4.0)
    assert [costs.of(telling) for telling in (GROWTH, ONLY_TIMES)] == [4.0, 4.0]  # however slow the pilot was
    costs.add(GROWTH, 3.0)
    assert costs.of(ONLY_TIMES) == 3.0
    costs = Costs(2.0)
    costs.add(ONLY_TIMES, 3.0)
    assert [costs.of(telling) for telling in (ALL, GROWTH)] == [3.0, 3.0]  # however fast it was
    costs.add(ALL, 9.0)
    assert costs.of(GROWTH) == 3.0
