"""Who is launched at the same time: everybody, or both sides of each, or nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.run.groups import grouped, together
from pytest_ddpperf.run.terms import Budget
from pytest_ddpperf.run.variant import Variant
from tests.factories import make_environment, make_variant

ENVIRONMENT = make_environment()
BUDGET = Budget(5, 0, 2, 60, 30)
ALONE = Finding("short_of_memory", {"paired": False})
PAIRS = Finding("short_of_memory", {"paired": True})


def variants(names: str, *, of_reference: bool) -> list[Variant]:
    """Of this side, then of the other one: numbers 0 to 2 and 3 to 5 for ``abc``."""
    sides = (False, True) if of_reference else (False,)
    return [make_variant(name, environment=ENVIRONMENT, of_reference=side) for side in sides for name in names]


@pytest.mark.parametrize(
    ("of_reference", "nbytes", "budget", "groups", "finding"),
    [
        pytest.param(False, (5, 5, 5), replace(BUDGET, memory=15), ((0, 1, 2),), None, id="all fit"),
        pytest.param(False, (5, 5, 5), replace(BUDGET, memory=14), ((0,), (1,), (2,)), ALONE, id="they do not"),
        pytest.param(False, (5, 5, 5), replace(BUDGET, memory=None), ((0, 1, 2),), None, id="nobody knows"),
        pytest.param(False, (5, 5, 5), replace(BUDGET, slots=3), ((0, 1, 2),), None, id="a seat for each"),
        pytest.param(False, (5, 5, 5), replace(BUDGET, slots=2), ((0,), (1,), (2,)), ALONE, id="too few seats"),
        pytest.param(
            False, (5, 5, 5), replace(BUDGET, turns=False, memory=0), ((0,), (1,), (2,)), None, id="not wanted"
        ),
        pytest.param(
            True, (5,) * 6, replace(BUDGET, memory=30, slots=3), ((0, 1, 2, 3, 4, 5),), None, id="both sides fit"
        ),
        pytest.param(True, (5,) * 6, replace(BUDGET, memory=29), ((0, 3), (1, 4), (2, 5)), PAIRS, id="pairs fit"),
        pytest.param(
            True, (5,) * 6, replace(BUDGET, slots=1), ((0, 3), (1, 4), (2, 5)), PAIRS, id="pairs need one seat"
        ),
        pytest.param(
            True, (5, 9, 5) * 2, replace(BUDGET, memory=10), ((0, 3), (2, 5), (1,), (4,)), PAIRS, id="some pairs fit"
        ),
        pytest.param(
            True, (5,) * 6, replace(BUDGET, memory=9), tuple((i,) for i in range(6)), ALONE, id="no pair fits"
        ),
    ],
)
def test_those_are_launched_at_the_same_time_that_fit_into_memory(
    of_reference: bool,  # noqa: FBT001
    nbytes: tuple[int, ...],
    budget: Budget,
    groups: tuple[tuple[int, ...], ...],
    finding: Finding | None,
) -> None:
    found = grouped(variants("abc", of_reference=of_reference), [False] * len(nbytes), nbytes, budget)
    assert found == (groups, (finding,) if finding else ())


def test_one_that_works_in_the_background_has_all_launched_one_after_the_other() -> None:
    """What is held against each other has to be timed alike; with another revision, that is each against its own."""
    background = [False, True, False]
    assert grouped(variants("abc", of_reference=False), background, [5] * 3, replace(BUDGET, memory=4)) == (
        ((0,), (1,), (2,)),
        (Finding("background_work", {"paired": False, "benchmarks": ("b",)}),),
    )
    assert grouped(variants("abc", of_reference=True), [*background, False, False, False], [5] * 6, BUDGET) == (
        ((0, 3), (2, 5), (1,), (4,)),
        (Finding("background_work", {"paired": True, "benchmarks": ("b",)}),),
    )


def test_who_is_alone_has_nobody_to_take_turns_with() -> None:
    assert grouped(variants("a", of_reference=False), [True], [5], replace(BUDGET, memory=0, slots=1)) == (((0,),), ())


def test_what_is_launched_together_follows_the_order_of_the_round() -> None:
    assert together(((0, 1, 2, 3),), [3, 0, 2, 1]) == [(3, 0, 2, 1)]
    assert together(((0, 2), (1,), (3,)), [3, 2, 1, 0]) == [(3,), (2, 0), (1,)]
