"""Stretches of rounds keep their order."""

from __future__ import annotations

from itertools import pairwise

import pytest

from benchmarks.quality.campaign import Recorded, of_cell, partners
from benchmarks.quality.rates import Draws, TooFew
from benchmarks.quality.simulate import CELL
from benchmarks.quality.steps import FIRST, UNCHANGED
from tests.benchmarks.quality.synthetic import campaign, drawing

LAUNCHES = campaign(20).launches
SAME = of_cell(LAUNCHES, CELL, UNCHANGED)


def draws(condition: str = UNCHANGED, wanted: int = 7, launches: tuple[Recorded, ...] = LAUNCHES) -> Draws:
    found = Draws(launches, CELL, condition)
    found.rounds = wanted
    return found


def test_too_few_launches_are_no_comparison() -> None:
    early = tuple(launch for launch in LAUNCHES if launch.condition == "+5%" and launch.pair is None)[:1]
    with pytest.raises(TooFew, match="no round has both sides"):
        draws(launches=tuple(SAME)).paired(drawing())
    with pytest.raises(TooFew, match="no launch comes after another one"):
        draws("+5%", launches=(*early, *SAME[10:20])).single(drawing())


def test_only_the_first_launch_of_a_run_is_replaced() -> None:
    slow, usual = (draws(condition).paired(drawing()) for condition in (FIRST, UNCHANGED))
    assert slow.new[0].condition == FIRST
    assert (slow.base, slow.new[1:]) == (usual.base, usual.new[1:])


def test_sides_of_one_run_are_rounds_that_follow_each_other() -> None:
    sides = draws("+5%", 6).paired(drawing(1))
    rounds = [launch.round for launch in sides.new]
    assert len(rounds) == 6
    assert {later - earlier for earlier, later in pairwise(rounds)} == {1}
    assert [*zip(sides.base, sides.new, strict=True)] == partners(LAUNCHES, CELL, "+5%")[rounds[0] : rounds[0] + 6]


def test_one_launch_of_each_side_the_new_one_later() -> None:
    for seed in range(50):
        sides = draws("+5%").single(drawing(seed))
        assert sides.base[0].started < sides.new[0].started
