"""Exposed communication by hand, and what ranks' profiles say of overlap, waiting and bandwidth."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from pytest_ddpperf.metrics import communication
from pytest_ddpperf.metrics.communication import communication_overhead, exposed_communication, merged, still_sent
from pytest_ddpperf.metrics.findings import findings_of
from pytest_ddpperf.records import phases
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.phases import BlockTimes, Collective, MemoryHeadroom, ProfiledStep, RankProfile, Window
from tests.metrics.made import by_name, of_ranks

measurement = partial(of_ranks, "communication")


def test_exposed_communication_is_a_difference_of_steps_of_the_slowest_rank() -> None:
    """Synchronised: 5, 5 and 11, on average 7; alone: 4, 3 and 5, on average 4. Share: 3 / 7."""
    first = BlockTimes(synchronised=(5.0, 4.0, 11.0), unsynchronised=(4.0, 1.0, 3.0), still_sent="parameters")
    second = BlockTimes(synchronised=(4.0, 5.0, 7.0), unsynchronised=(2.0, 3.0, 5.0), still_sent="parameters")
    measured = measurement((first, second), (second, second))
    # Of the second launch: on average 16 / 3 and 10 / 3.
    assert exposed_communication(measured) == pytest.approx((3.0, 2.0))
    assert communication_overhead(measured) == pytest.approx((3 / 7, 6 / 16))
    assert still_sent(measured) == "parameters"


def test_pairs_of_blocks_give_the_scatter_of_exposed_communication() -> None:
    """Of pairs 5 and 4, 5 and 3, 6 and 3 s; without one after the other 5.5 - 3, 5.5 - 3.5 and 5 - 3.5.

    Their mean is 2: 2 * (2 - 2.5), 0 and 2 * (2 - 1.5). So it is of the shares 5 / 11, 4 / 11 and 3 / 10.
    """
    known = BlockTimes(synchronised=(5.0, 5.0, 6.0), unsynchronised=(4.0, 3.0, 3.0), pairs=3)
    measured = measurement((known, known))
    (moved,) = communication.of_exposed(measured).moved
    assert moved == pytest.approx((-1.0, 0.0, 1.0))
    (moved,) = communication.of_overhead(measured).moved
    shares = (5 / 11, 4 / 11, 3 / 10)
    assert moved == pytest.approx([2 * (sum(shares) / 3 - share) for share in shares])
    series = by_name(measured)["exposed_communication"]
    assert series.within == communication.of_exposed(measured).moved
    assert series.interval is not None


def test_a_sample_may_be_below_zero_and_a_value_is_not() -> None:
    """Launches that diagnose have the samples, and not those that are timed."""
    known = BlockTimes(synchronised=(1.0,), unsynchronised=(1.25,), still_sent="parameters")
    measured = replace(measurement((None, None)), diagnoses=measurement((known, known)).launches)
    assert exposed_communication(measured) == (-0.25,)
    assert still_sent(measured) == "parameters"
    assert [by_name(measured)[name].value for name in ("exposed_communication", "communication_overhead")] == [0.0, 0.0]


def test_launches_without_exposed_communication_are_omitted_and_a_single_pair_has_no_scatter() -> None:
    known = BlockTimes(synchronised=(5.0, 5.0), unsynchronised=(4.0, 4.0))
    measured, unknown = measurement((known, known), (known, None)), measurement((replace(known, pairs=2), None))
    assert exposed_communication(measured) == (1.0,)
    assert communication_overhead(measured) == pytest.approx((0.2,))
    assert not by_name(unknown).keys() & {"exposed_communication", "communication_overhead"}
    assert still_sent(measurement((None, None))) == ""
    assert communication.of_exposed(measured).moved == communication.of_exposed(unknown).moved == ()


def test_missing_memory_for_the_measurement_is_reported_with_both_figures() -> None:
    known = BlockTimes(synchronised=(1.0,), unsynchronised=(1.0,))
    measured = measurement((known, known), (None, None), (None, None))
    assert communication.no_memory_headroom(measured) is None
    ranks = tuple(
        replace(rank, no_headroom=MemoryHeadroom(needed=6 * 2**30, free=4 * 2**30))
        for rank in measured.launches[1].ranks
    )
    short = replace(measured, launches=(measured.launches[0], replace(measured.launches[1], ranks=ranks)))
    finding = Finding("no_memory_headroom", {"launches": 1, "needed": 6 * 2**30, "free": 4 * 2**30})
    assert communication.no_memory_headroom(short) == finding
    assert finding in findings_of(short)


def step(*seconds: float, busy: float = 4.0, overlapped: float = 3.0, kind: str = "all_reduce") -> ProfiledStep:
    """Ten seconds, of which 5 are computed; collectives of a million bytes."""
    return ProfiledStep(
        seconds=10.0,
        busy=busy,
        computed=5.0,
        overlapped=overlapped,
        collectives=tuple(Collective(kind=kind, seconds=one, nbytes=1e6) for one in seconds),
    )


def test_busy_time_is_divided_into_overlap_and_exposed() -> None:
    """Busy 4 and 6, overlapped 3 and 3: 5, of which 3 are overlap."""
    found = merged([RankProfile(steps=(step(),)), RankProfile(steps=(step(busy=6.0),))])
    assert (found.step, found.busy, found.overlapped) == (10, 5, 3)
    assert (found.exposed, found.overlap, found.busy_share) == (2, 0.6, 0.5)


@pytest.mark.parametrize(
    ("busy", "computed", "overlapped", "gaps"),
    [
        (4, 5, 3, 1),  # not busy 6, computed 5 - 3 = 2, gaps 4: 3 s of overlap come with 6, of which 1 is exposed
        (4, 6, 1, 0.2),  # not busy 6, computed 6 - 1 = 5, gaps 1: 1 s of overlap comes with 1 / 5
        (10, 5, 5, 0),  # always busy: nothing to learn it from
    ],
)
def test_the_error_of_the_overlap_follows_from_the_rate_of_gaps_on_the_host(
    busy: float, computed: float, overlapped: float, gaps: float
) -> None:
    one = ProfiledStep(seconds=10, busy=busy, computed=computed, overlapped=overlapped, collectives=())
    assert merged([RankProfile(steps=(one,))]).gaps == pytest.approx(gaps)


def test_if_nothing_is_sent_there_is_no_overlap() -> None:
    found = merged([RankProfile(steps=(step(busy=0.0, overlapped=0.0),))])
    assert (found.overlap, found.exposed, found.transfer, found.wait, found.slowest) == (None, 0, 0, 0, None)
    assert found.bandwidths == ()


def test_a_collective_lasts_as_long_as_on_the_rank_that_came_last() -> None:
    """Minima 1, 2 and 2: 5 s over two steps. The others waited 3 and 2 (mean 1.5, 1) and 4 (mean 2): 4.5 over two.

    Rank 1 was last twice of three times.
    """
    found = merged([RankProfile(steps=(step(4, 4), step(2))), RankProfile(steps=(step(1, 2), step(6)))])
    assert (found.transfer, found.wait) == (2.5, 2.25)
    assert found.slowest == (1, 2 / 3)


def sized(
    *collectives: tuple[float, float], kind: str = "all_reduce", group: int | None = None, subgroups: bool = False
) -> RankProfile:
    """A rank with one step of collectives: seconds and bytes of each."""
    sent = tuple(Collective(kind=kind, seconds=seconds, nbytes=nbytes, ranks=group) for seconds, nbytes in collectives)
    return RankProfile(
        steps=(ProfiledStep(seconds=10.0, busy=4.0, computed=5.0, overlapped=3.0, collectives=sent),),
        subgroups=subgroups,
    )


def test_collectives_under_way_at_once_are_paired_by_their_size() -> None:
    """Rank 1 began with the other one first. Minima: 2 (of 4 bytes) and 1 (of 8); in their order 3 and 1."""
    found = merged([sized((5, 4), (1, 8)), sized((3, 8), (2, 4))])
    assert (found.transfer, found.wait) == (3, 2.5)
    assert found.slowest == (1, 0.5)


@pytest.mark.parametrize("other", [sized((5, 4), (1, 9)), sized((5, 4), (1, 8), kind="broadcast")])
def test_ranks_that_send_different_things_are_not_compared(other: RankProfile) -> None:
    found = merged([sized((5, 4), (1, 8)), other])
    assert (found.transfer, found.wait, found.slowest, found.bandwidths) == (None, None, None, ())


@pytest.mark.parametrize("group", [None, 2], ids=["gloo tells no group", "NCCL tells how many"])
def test_ranks_that_may_not_have_communicated_with_each_other_are_not_compared(group: int | None) -> None:
    """Four ranks, groups of two. Who came last among 2, 2, 6 and 5 seconds depends on who met whom."""
    found = merged([sized((seconds, 8), group=group, subgroups=True) for seconds in (2, 2, 6, 5)])
    assert found.unplaced
    assert (found.transfer, found.wait, found.slowest, found.bandwidths) == (None, None, None, ())
    assert (found.busy, found.overlapped) == (4, 3)  # that is each rank's own
    assert merged([sized((2, 8)), sized((2, 8), subgroups=True)]).unplaced, "one rank knows of a smaller group"
    assert not merged([sized(subgroups=True)] * 4).unplaced, "nothing is sent"


def test_collectives_among_all_ranks_are_compared() -> None:
    """Smaller groups there are, but nothing was sent in them: 8 bytes in 2 s, and the bus factor 2 x 3 / 4."""
    found = merged([sized((2, 8), group=4, subgroups=True)] * 4)
    assert not found.unplaced
    assert (found.transfer, found.bandwidths) == (2, (phases.Bandwidth(kind="all_reduce", algorithm=4, bus=6),))


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 4, 1.5),
        ("all_gather", 4, 0.75),
        ("reduce_scatter", 8, 0.875),
        ("all_to_all", 2, 0.5),
        ("broadcast", 4, 1.0),
        ("gather", 4, 0.75),
    ],
)
def test_bus_bandwidth_by_the_factors_of_nccl_tests(kind: str, ranks: int, factor: float) -> None:
    assert communication.bus_factor(kind, ranks) == factor


def test_bandwidth_is_size_over_transfer() -> None:
    """Four ranks. Two all-reduces of 1 MB in 2 and 3 s: 0.4 MB/s, bus 0.6. All-gather: 4 x 1 MB in 4 s, bus 0.75."""
    ranks = [
        RankProfile(steps=(step(2, 3), step(4, kind="all_gather"))),
        *[RankProfile(steps=(step(2, 9), step(8, kind="all_gather")))] * 3,
    ]
    reduced, gathered = merged(ranks).bandwidths
    assert (reduced.kind, reduced.algorithm) == ("all_reduce", 4e5)
    assert reduced.bus == pytest.approx(6e5)
    assert gathered == phases.Bandwidth(kind="all_gather", algorithm=1e6, bus=7.5e5)
    assert merged([sized((2, 0), kind="barrier")] * 2).bandwidths == ()


def test_the_window_of_ddp_is_rank_0s() -> None:
    window = Window(communication=0.095, overlapped=0.075)
    assert window.exposed == pytest.approx(0.02)
    assert merged([RankProfile(steps=(step(),), window=window), RankProfile(steps=(step(),))]).window == window


def test_a_profile_without_any_work_is_none() -> None:
    """As on CUDA without CUPTI, where each step has a length and nothing in it."""
    blind = RankProfile(steps=(ProfiledStep(seconds=10, busy=0, computed=0, overlapped=0, collectives=()),) * 2)
    assert communication.saw_work([RankProfile(steps=(step(),))] * 2)
    assert not communication.saw_work([RankProfile(steps=(step(),)), blind])
