"""Recorded launches dealt to the code that measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.measure import Telling, Variant
from pytest_ddpperf.records import Environment, Launch, Plan, RankLaunch
from pytest_ddpperf.replay import Dealer, deck_of

VARIANT = Variant("ddp", None, None, None, Environment("cpu", "chip", 0, "chip", 8, 1, 1, "gloo", 2, "2.13", None))


def launch(step: float) -> Launch:
    """Four steps, and 0.2 s besides."""
    ranks = tuple(RankLaunch(rank, (step,) * 4, {}, 1.0, None, None) for rank in (0, 1))
    return Launch(0, ranks, 0.2 + 4 * step)


def test_launches_are_dealt_in_order_and_move_the_clock_by_the_steps_that_were_asked_for() -> None:
    """Launches take 0.2 s besides their steps: 0.2 + 2 x 0.1, then 0.2 + 3 x 0.3."""
    dealer = Dealer({deck_of(VARIANT): iter([launch(0.1), launch(0.3)])})
    ((ranks, seconds),) = dealer.run([(VARIANT, Plan(5, 2))], Telling(diagnosed=True, growth=True))
    assert [rank.step_times for rank in ranks] == [(0.1, 0.1)] * 2
    assert seconds == dealer.clock() == pytest.approx(0.4)
    dealer.run([(VARIANT, Plan(5, 3))], Telling(diagnosed=False, growth=True))
    assert dealer.clock() == pytest.approx(1.5)
    assert dealer.dealt == {deck_of(VARIANT): 2}


def test_each_side_and_size_has_a_deck_of_its_own() -> None:
    other, larger = (
        replace(VARIANT, other=True),
        replace(VARIANT, environment=replace(VARIANT.environment, world_size=4)),
    )
    assert len({deck_of(VARIANT), deck_of(other), deck_of(larger)}) == 3
