"""Stretches keep their order, and a run comes after the baseline that it is held against."""

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
    found.wanted = found.rounds = wanted
    return found


@pytest.mark.parametrize("condition", [UNCHANGED, "+5%"])
def test_a_run_comes_after_its_baseline_and_both_are_whole_stretches(condition: str) -> None:
    new = of_cell(LAUNCHES, CELL, condition)
    for seed in range(50):
        sides = draws(condition).separate(drawing(seed))
        first, begin = SAME.index(sides.base[0]), new.index(sides.new[0])
        assert sides.base == tuple(SAME[first : first + 7])
        assert sides.new == tuple(new[begin : begin + 7])
        assert sides.base[-1].started < sides.new[0].started


def test_the_stretches_begin_anywhere() -> None:
    drawn = [draws().separate(drawing(seed)) for seed in range(300)]
    assert {SAME.index(sides.base[0]) for sides in drawn} == set(range(60 // 2 - 7 + 1))
    assert max(SAME.index(sides.new[-1]) for sides in drawn) == 59


def test_a_short_campaign_gives_half_of_its_launches_to_each_side() -> None:
    sides = draws(wanted=50, launches=tuple(SAME[:8])).separate(drawing())
    assert sides.base + sides.new == tuple(SAME[:8])


def test_too_few_launches_are_no_comparison() -> None:
    early = tuple(launch for launch in LAUNCHES if launch.condition == "+5%" and launch.pair is None)[:1]
    with pytest.raises(TooFew, match="1 launches leave none for a baseline"):
        draws(launches=tuple(SAME[:1])).separate(drawing())
    with pytest.raises(TooFew, match="no launch comes after the baseline"):
        draws("+5%", launches=(*early, *SAME[10:20])).separate(drawing())
    with pytest.raises(TooFew, match="no round has both sides"):
        draws(launches=tuple(SAME)).paired(drawing())
    with pytest.raises(TooFew, match="no launch comes after another one"):
        draws("+5%", launches=(*early, *SAME[10:20])).single(drawing())


def test_only_the_first_launch_of_a_run_is_replaced() -> None:
    slow, usual = (draws(condition).separate(drawing()) for condition in (FIRST, UNCHANGED))
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
