"""What pilots tell of memory: all that the ranks of a launch took, at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from pytest_ddpperf.measure import Budget, Ran, Telling, Variant
from pytest_ddpperf.measure.pilot import pilot
from pytest_ddpperf.records import Environment, Plan, RankLaunch

ENVIRONMENT = Environment("cpu", "chip", 0, "chip", 8, 1, 1, "gloo", 2, "2.13", None)
BOTH = [Variant(name, None, None, None, ENVIRONMENT) for name in "ab"]


@dataclass
class Machine:
    """Whose launches last ``seconds``, and whose ranks take so many bytes each: one figure for each launch."""

    seconds: float
    taken: list[int | None]

    def run(self, launches: Sequence[tuple[Variant, Plan]], telling: Telling) -> list[Ran]:
        assert not telling.diagnosed
        taken = self.taken.pop(0)
        ranks = tuple(RankLaunch(rank, (0.1,), {}, None, None, None, taken=taken) for rank in (0, 1))
        return [(ranks, self.seconds) for _ in launches]


@pytest.mark.parametrize(
    ("memory", "together"),
    [pytest.param(1200, True, id="just enough for two ranks of each"), pytest.param(1199, False, id="too little")],
)
def test_the_ranks_of_all_have_to_fit(memory: int, *, together: bool) -> None:
    found = pilot(BOTH, Budget(5, 0, 2, 60, 30, memory=memory), Machine(0.5, [200, 400]).run)
    assert found.groups == (((0, 1),) if together else ((0,), (1,)))
    assert bool(found.remarks) is not together


def test_of_a_pilot_that_is_made_again_the_larger_one_counts() -> None:
    """Both start slowly, so each is launched twice."""
    machine = Machine(9.0, [200, 100, 100, 400])
    found = pilot(BOTH, Budget(5, 0, 2, 60, 30, memory=1199), machine.run)
    assert machine.taken == []
    assert found.groups == ((0,), (1,))


def test_what_the_system_does_not_tell_is_not_counted() -> None:
    assert pilot(BOTH, Budget(5, 0, 2, 60, 30, memory=0), Machine(0.5, [None, None]).run).groups == ((0, 1),)
