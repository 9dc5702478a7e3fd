"""Recorded launches dealt to the code that measures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.records.launch import Launch, RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.run.replay import Dealer, deck_of
from pytest_ddpperf.run.terms import DIAGNOSIS, ONLY_GROWTH, ONLY_TIMES
from tests.factories import make_environment, make_variant

VARIANT = make_variant("ddp", environment=make_environment())


def launch(step: float) -> Launch:
    """Four steps, and 0.2 s besides."""
    ranks = tuple(
        RankLaunch(rank=rank, step_times=(step,) * 4, memory={}, loss=1.0, samples_per_step=None, tokens_per_step=None)
        for rank in (0, 1)
    )
    return Launch(round=0, ranks=ranks, seconds=0.2 + 4 * step)


def test_launches_are_dealt_in_order_and_move_the_clock_by_the_steps_that_were_asked_for() -> None:
    """Launches take 0.2 s besides their steps: 0.2 + 2 x 0.1, then 0.2 + 3 x 0.3."""
    dealer = Dealer({deck_of(VARIANT): iter([launch(0.1), launch(0.3)])})
    ((ranks, seconds),) = dealer.run([(VARIANT, Plan(warmup=5, steps=2))], ONLY_TIMES)
    assert [rank.step_times for rank in ranks] == [(0.1, 0.1)] * 2
    assert seconds == dealer.clock() == pytest.approx(0.4)
    dealer.run([(VARIANT, Plan(warmup=5, steps=3))], ONLY_TIMES)
    assert dealer.clock() == pytest.approx(1.5)
    assert dealer.dealt == {deck_of(VARIANT): 2}


def test_each_side_and_size_has_a_deck_of_its_own() -> None:
    other, larger = (
        replace(VARIANT, of_reference=True),
        replace(VARIANT, environment=replace(VARIANT.environment, world_size=4)),
    )
    assert len({deck_of(VARIANT), deck_of(other), deck_of(larger)}) == 3


def test_launches_that_diagnose_are_dealt_apart() -> None:
    """They tell all, whatever was asked for, and last as long as they did; steps are none of a verdict's."""
    told = launch(0.1)
    told = replace(told, ranks=tuple(replace(rank, held=(1, 2, 3)) for rank in told.ranks))
    dealer = Dealer({deck_of(VARIANT): iter([launch(0.1)])}, {deck_of(VARIANT): iter([told, told])})
    for extra, now in ((DIAGNOSIS, 0.6), (ONLY_GROWTH, 1.2)):
        ((ranks, seconds),) = dealer.run([(VARIANT, Plan(warmup=5, steps=2))], extra)
        assert ranks == told.ranks
        assert seconds == pytest.approx(0.6)
        assert dealer.clock() == pytest.approx(now)
    assert dealer.dealt == {}


def test_where_none_was_recorded_they_tell_nothing_and_take_no_time() -> None:
    dealer = Dealer({deck_of(VARIANT): iter([launch(0.1)])})
    ((ranks, seconds),) = dealer.run([(VARIANT, Plan(warmup=5, steps=2))], DIAGNOSIS)
    assert (len(ranks), seconds, dealer.clock()) == (2, 0.0, 0.0)
    assert {(rank.phases, rank.communication, rank.held) for rank in ranks} == {(None, None, ())}


@pytest.mark.parametrize(
    ("steps", "blocks", "cpu_blocks"),
    [
        pytest.param(9, (2, 3, 2), (1.0, 2.0, 3.0), id="all that there are"),
        pytest.param(7, (2, 3, 2), (1.0, 2.0, 3.0), id="as many"),
        pytest.param(6, (2, 3, 1), (1.0, 2.0, 3.0), id="half of the last one"),
        pytest.param(5, (2, 3), (1.0, 2.0), id="two whole ones"),
        pytest.param(1, (1,), (1.0,), id="a step"),
    ],
)
def test_blocks_are_cut_with_their_steps(steps: int, blocks: tuple[int, ...], cpu_blocks: tuple[float, ...]) -> None:
    times = (0.1,) * 7
    rank = RankLaunch(
        rank=0,
        step_times=times,
        memory={},
        loss=1.0,
        samples_per_step=None,
        tokens_per_step=None,
        blocks=(2, 3, 2),
        cpu_blocks=(1.0, 2.0, 3.0),
    )
    dealer = Dealer({deck_of(VARIANT): iter([Launch(round=0, ranks=(rank,), seconds=1.0)])})
    (((cut,), _),) = dealer.run([(VARIANT, Plan(warmup=5, steps=steps))], ONLY_TIMES)
    assert (cut.step_times, cut.blocks, cut.cpu_blocks) == (times[:steps], blocks, cpu_blocks)


def test_what_took_no_turns_has_no_blocks_to_cut() -> None:
    dealer = Dealer({deck_of(VARIANT): iter([launch(0.1)])})
    ((ranks, _),) = dealer.run([(VARIANT, Plan(warmup=5, steps=2))], ONLY_TIMES)
    assert [(rank.blocks, rank.cpu_blocks) for rank in ranks] == [((), ())] * 2
