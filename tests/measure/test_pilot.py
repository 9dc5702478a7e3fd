"""What pilots tell: of memory, all that the ranks of a launch took, at most; and how many steps fill a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from pytest_ddpperf.measure import Budget, Ran, Telling, Variant
from pytest_ddpperf.measure.pilot import pilot, short_launch
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


@pytest.mark.parametrize(
    ("step", "fixed", "expected"),
    [
        pytest.param(0.012, 0.2, 0.5, id="half a second"),
        pytest.param(0.04, 0.2, 0.8, id="20 steps"),
        pytest.param(0.012, 0.8, 0.8, id="as long as what it takes besides"),
        pytest.param(0.08, 0.2, 1.0, id="a second at most"),
        pytest.param(0.012, 3.0, 1.0, id="nor longer for a slow start"),
    ],
)
def test_launches_that_take_turns_with_their_other_side_are_short(step: float, fixed: float, expected: float) -> None:
    assert short_launch(step, fixed) == pytest.approx(expected)


def test_launches_time_steps_for_as_long_as_their_start_takes_where_many_share_the_time() -> None:
    """Six sides have 20 / 6 / 6 = 0.56 s each for a launch; all else takes 0.4 s: it times 40 steps of 10 ms."""
    sides = [Variant(name, None, None, None, ENVIRONMENT, other=other) for other in (False, True) for name in "abc"]

    def steps(fixed: float) -> set[int]:
        def run(launches: Sequence[tuple[Variant, Plan]], telling: Telling) -> list[Ran]:
            ranks = tuple(RankLaunch(rank, (0.01,) * 5, {}, None, None, None) for rank in (0, 1))
            return [(ranks, 0.05 + fixed) for _ in launches]

        return {plan.steps for plan in pilot(sides, Budget(None, 0, 6, 40, 20), run).plans}

    assert steps(0.4) == {40}
    assert steps(0.6) == {60}
    assert steps(2.0) == {100}  # a second at most


@pytest.mark.parametrize(
    ("variants", "turns", "steps"),
    [
        pytest.param([BOTH[0], replace(BOTH[0], other=True)], True, 50, id="both sides"),
        pytest.param([BOTH[0], replace(BOTH[0], other=True)], False, 100, id="one after the other"),
        pytest.param(BOTH, True, 100, id="others"),
    ],
)
def test_only_they_are_short(variants: Sequence[Variant], steps: int, *, turns: bool) -> None:
    """Steps of 10 ms: five of them and 0.2 s besides in a pilot."""

    def run(launches: Sequence[tuple[Variant, Plan]], telling: Telling) -> list[Ran]:
        ranks = tuple(RankLaunch(rank, (0.01,) * 5, {}, None, None, None) for rank in (0, 1))
        return [(ranks, 0.25) for _ in launches]

    found = pilot(variants, Budget(None, 0, 2, 60, 30, turns=turns), run)
    assert [plan.steps for plan in found.plans] == [steps] * 2
