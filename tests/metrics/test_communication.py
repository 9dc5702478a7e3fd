"""Exposed communication of launches: worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.communication import BlockTimes, Room
from pytest_ddpperf.metrics import findings_of, series_of
from pytest_ddpperf.metrics.communication import communication_overhead, exposed_communication, no_room, still_sent
from pytest_ddpperf.records import Environment, Launch, Measurement, Plan, RankLaunch


def measurement(*launches: tuple[BlockTimes | None, ...]) -> Measurement:
    environment = Environment("cpu", "some cpu", 0, "some cpu", 8, 1, 1, "gloo", 2, "2.13", None)
    reports = [
        tuple(RankLaunch(i, (1.0,), {}, None, None, None, communication=one) for i, one in enumerate(ranks))
        for ranks in launches
    ]
    return Measurement("ddp", "ddp", None, Plan(2, 5), environment, tuple(Launch(0, ranks, 1.0) for ranks in reports))


def test_it_is_the_difference_of_steps_that_last_as_long_as_their_slowest_rank() -> None:
    """Synchronised: 5, 5, 9, typically 5; alone: 4, 3 and 4, typically 3.5. Share: 1.5 / 5."""
    first = BlockTimes((5.0, 4.0, 9.0), (4.0, 1.0, 3.0), "parameters")
    second = BlockTimes((4.0, 5.0, 7.0), (2.0, 3.0, 4.0), "parameters")
    measured = measurement((first, second), (first, first))
    # Of the second launch: 4, 5, 9 and 1, 3, 4, typically 4.5 and 2.
    assert exposed_communication(measured) == (1.5, 2.5)
    assert communication_overhead(measured) == pytest.approx((0.3, 2.5 / 4.5))
    assert still_sent(measured) == "parameters"


def test_it_may_be_below_zero() -> None:
    assert exposed_communication(measurement((BlockTimes((1.0,), (1.25,)),))) == (-0.25,)


def test_a_launch_without_it_is_left_out() -> None:
    known = BlockTimes((1.0,), (1.0,))
    measured = measurement((known, known), (known, None))
    assert exposed_communication(measured) == (0.0,)
    assert exposed_communication(measurement((known, None))) is None
    assert communication_overhead(measured) == (0.0,)
    without = series_of(measurement((known, None)))
    assert not {series.metric for series in without} & {"exposed_communication", "communication_overhead"}
    assert still_sent(measurement((None, None))) == ""


def test_what_was_not_measured_for_want_of_memory_is_told_with_both_figures() -> None:
    known = BlockTimes((1.0,), (1.0,))
    measured = measurement((known, known), (None, None), (None, None))
    assert no_room(measured) is None
    ranks = tuple(replace(rank, no_room=Room(6 * 2**30, 4 * 2**30)) for rank in measured.launches[1].ranks)
    short = replace(measured, launches=(measured.launches[0], replace(measured.launches[1], ranks=ranks)))
    text = (
        "exposed communication was not measured in 1 launch: copies of what a machine's ranks train, to put it back, "
        "take 6.00 GiB of its memory, and 4.00 GiB are free for them"
    )
    assert no_room(short) == text
    assert text in findings_of(short)
