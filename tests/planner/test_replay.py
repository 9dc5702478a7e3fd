"""A step on a network, by a queue: each number is worked by hand."""

from __future__ import annotations

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner.replay import replayed
from pytest_ddpperf.records.timeline import Moment, Timeline, Transfer

BUCKET = Transfer(name="all_reduce", nbytes=2**20, ranks=2)


def buckets(*, rest: float = 10) -> Timeline:
    """Four buckets that are ready after 25, 50, 75 and 100 seconds, and are waited for there."""
    handed_over = [Moment(computed=25, transfer=i, waits=False) for i in range(4)]
    waits = [Moment(computed=0, transfer=i, waits=True) for i in range(4)]
    return Timeline(transfers=(BUCKET,) * 4, moments=(*handed_over, *waits), rest=rest)


def test_transfers_that_computing_hides_cost_what_the_last_one_takes() -> None:
    step = replayed(buckets(), [20] * 4)
    assert (step.seconds, step.computing, step.communication) == (130, 110, 80)
    assert step.exposed == 20


def test_transfers_that_are_longer_than_the_computing_wait_for_each_other() -> None:
    # They end after 55, 85, 115 and 145 s: 30 s begin when the first bucket is ready, and then one follows the other.
    step = replayed(buckets(), [30] * 4)
    assert (step.seconds, step.exposed) == (155, 45)
    assert step.efficiency == 110 / 155


def test_a_core_that_sends_computes_nothing_meanwhile() -> None:
    assert replayed(buckets(), [30] * 4, taken=1).exposed == 120
    # In the 30 s of a bucket 15 s of computing are done, so the next one is ready 10 s later: buckets begin after 25,
    # 65, 105 and 145 s, and the last one ends after 175 s.
    assert replayed(buckets(), [30] * 4, taken=0.5).seconds == 185
    assert replayed(buckets(rest=0), [10] * 4, taken=0.5).exposed == pytest.approx(5 + 5 + 5 + 10)


def test_a_transfer_ends_with_the_step_or_where_it_is_waited_for() -> None:
    moments = (Moment(computed=5, transfer=0, waits=False),)
    assert replayed(Timeline(transfers=(BUCKET,), moments=moments, rest=1), [4]).seconds == 9
    waited = (*moments, Moment(computed=0, transfer=0, waits=True))
    step = replayed(Timeline(transfers=(BUCKET,), moments=waited, rest=3), [2])
    assert (step.seconds, step.exposed) == (10, 2)
    alone = replayed(Timeline(transfers=(), moments=(), rest=3), [])
    assert (alone.seconds, alone.efficiency) == (3, 1)


def test_times_are_of_one_step_of_several() -> None:
    two = Timeline(transfers=(BUCKET,), moments=(Moment(computed=5, transfer=0, waits=False),), rest=5, steps=2)
    step = replayed(two, [4], computing=2)
    assert (step.seconds, step.computing, step.communication) == (10, 10, 2)


def test_costs_have_to_fit() -> None:
    with pytest.raises(SettingError, match="costs has 1 numbers for 4 transfers"):
        replayed(buckets(), [1])
    with pytest.raises(SettingError, match="costs"):
        replayed(buckets(), [-1] * 4)
