"""Exposed communication of launches: worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.metrics.communication import (
    communication_overhead,
    exposed_communication,
    no_memory_headroom,
    of_exposed,
    of_overhead,
    still_sent,
)
from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.metrics.table import series_of
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.records.phases import BlockTimes, MemoryHeadroom
from tests.factories import make_measurement, make_rank_launch


def measurement(*launches: tuple[BlockTimes | None, ...]) -> Measurement:
    """Of launches, each given by the blocks of its ranks."""
    ranks = [[make_rank_launch(i, communication=one) for i, one in enumerate(blocks)] for blocks in launches]
    return make_measurement(launches=tuple(Launch(round=0, ranks=tuple(one), seconds=1.0) for one in ranks))


def test_it_is_the_difference_of_steps_that_last_as_long_as_their_slowest_rank() -> None:
    """Synchronised: 5, 5 and 11, on average 7; alone: 4, 3 and 5, on average 4. Share: 3 / 7."""
    first = BlockTimes(synchronised=(5.0, 4.0, 11.0), unsynchronised=(4.0, 1.0, 3.0), still_sent="parameters")
    second = BlockTimes(synchronised=(4.0, 5.0, 7.0), unsynchronised=(2.0, 3.0, 5.0), still_sent="parameters")
    measured = measurement((first, second), (second, second))
    # Of the second launch: on average 16 / 3 and 10 / 3.
    assert exposed_communication(measured) == pytest.approx((3.0, 2.0))
    assert communication_overhead(measured) == pytest.approx((3 / 7, 6 / 16))
    assert still_sent(measured) == "parameters"


def test_pairs_of_blocks_know_its_scatter() -> None:
    """Of pairs 5 and 4, 5 and 3, 6 and 3 s; without one after the other 5.5 - 3, 5.5 - 3.5 and 5 - 3.5.

    Their mean is 2: 2 * (2 - 2.5), 0 and 2 * (2 - 1.5). So it is of the shares 5 / 11, 4 / 11 and 3 / 10.
    """
    known = BlockTimes(synchronised=(5.0, 5.0, 6.0), unsynchronised=(4.0, 3.0, 3.0), pairs=3)
    measured = measurement((known, known))
    (moved,) = of_exposed(measured).moved
    assert moved == pytest.approx((-1.0, 0.0, 1.0))
    (moved,) = of_overhead(measured).moved
    shares = (5 / 11, 4 / 11, 3 / 10)
    assert moved == pytest.approx([2 * (sum(shares) / 3 - share) for share in shares])
    by_name = {one.metric: one for one in series_of(measured)}
    assert by_name["exposed_communication"].within == of_exposed(measured).moved
    assert by_name["exposed_communication"].interval is not None


def test_a_sample_may_be_below_zero_and_a_value_is_not() -> None:
    """Launches that diagnose have the samples, and not those that are timed."""
    known = BlockTimes(synchronised=(1.0,), unsynchronised=(1.25,), still_sent="parameters")
    measured = replace(measurement((None, None)), diagnoses=measurement((known, known)).launches)
    assert exposed_communication(measured) == (-0.25,)
    assert still_sent(measured) == "parameters"
    values = {one.metric: one.value for one in series_of(measured)}
    assert (values["exposed_communication"], values["communication_overhead"]) == (0.0, 0.0)


def test_a_launch_without_it_is_left_out_and_a_single_pair_knows_no_scatter() -> None:
    known = BlockTimes(synchronised=(5.0, 5.0), unsynchronised=(4.0, 4.0))
    measured, unknown = measurement((known, known), (known, None)), measurement((replace(known, pairs=2), None))
    assert exposed_communication(measured) == (1.0,)
    assert communication_overhead(measured) == pytest.approx((0.2,))
    assert not {one.metric for one in series_of(unknown)} & {"exposed_communication", "communication_overhead"}
    assert still_sent(measurement((None, None))) == ""
    assert of_exposed(measured).moved == of_exposed(unknown).moved == ()


def test_missing_memory_for_the_measurement_is_reported_with_both_figures() -> None:
    known = BlockTimes(synchronised=(1.0,), unsynchronised=(1.0,))
    measured = measurement((known, known), (None, None), (None, None))
    assert no_memory_headroom(measured) is None
    ranks = tuple(
        replace(rank, no_headroom=MemoryHeadroom(needed=6 * 2**30, free=4 * 2**30))
        for rank in measured.launches[1].ranks
    )
    short = replace(measured, launches=(measured.launches[0], replace(measured.launches[1], ranks=ranks)))
    finding = Finding("no_memory_headroom", {"launches": 1, "needed": 6 * 2**30, "free": 4 * 2**30})
    assert no_memory_headroom(short) == finding
    assert finding in findings_of(short)
