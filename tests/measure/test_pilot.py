"""Who takes turns: all that can, if their ranks fit into memory together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_ddpperf.measure import Budget, Ran, Telling, Variant
from pytest_ddpperf.measure.pilot import pilot
from pytest_ddpperf.records import Environment, Plan, RankLaunch

ENVIRONMENT = Environment("cpu", "chip", 0, "chip", 8, 1, 1, "gloo", 2, "2.13", None)
KEYS = frozenset({("a", 2), ("b", 2)})
GIB = 2**30


def run(launches: Sequence[tuple[Variant, Plan]], telling: Telling) -> list[Ran]:
    """Each of two ranks takes a GiB, whatever it tells."""
    assert not telling.growth
    ranks = tuple(RankLaunch(rank, (0.1,), {"peak_resident": float(GIB)}, None, None, None) for rank in (0, 1))
    return [(ranks, 0.5) for _ in launches]


@pytest.mark.parametrize(
    ("other", "memory", "needed"),
    [
        pytest.param(False, 4 * GIB, None, id="enough for two variants with two ranks"),
        pytest.param(False, 3 * GIB, "4.00 GiB of memory, and there are 3.00 GiB", id="too little"),
        pytest.param(True, 8 * GIB, None, id="enough for both sides"),
        pytest.param(True, 7 * GIB, "8.00 GiB of memory, and there are 7.00 GiB", id="too little for both sides"),
        pytest.param(True, None, None, id="nobody knows"),
    ],
)
def test_turns_are_taken_where_all_fit_into_memory(*, other: bool, memory: int | None, needed: str | None) -> None:
    sides = (False, True) if other else (False,)
    variants = [Variant(name, None, None, None, ENVIRONMENT, other=side) for name in "ab" for side in sides]
    found = pilot(variants, Budget(5, 0, 2, 60, 30, memory=memory), run)
    assert found.turns == (frozenset() if needed else KEYS)
    told = f"launched one after the other, without turns: ranks of all at the same time would take {needed}"
    assert found.remarks == ((told,) if needed else ())


def test_who_is_alone_takes_no_turns_and_needs_no_room() -> None:
    found = pilot([Variant("a", None, None, None, ENVIRONMENT)], Budget(5, 0, 2, 60, 30, memory=0), run)
    assert (found.turns, found.remarks) == (frozenset(), ())
