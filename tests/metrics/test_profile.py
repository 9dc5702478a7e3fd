"""What the profiles of ranks amount to: worked by hand."""

from __future__ import annotations

import pytest

from pytest_ddpperf.metrics.profile import bus_factor, merged, saw_work
from pytest_ddpperf.records.phases import Bandwidth, Collective, ProfiledStep, RankProfile, Window


def step(*seconds: float, busy: float = 4.0, overlapped: float = 3.0, kind: str = "all_reduce") -> ProfiledStep:
    """Ten seconds, of which 5 are computed; collectives of a million bytes."""
    return ProfiledStep(
        seconds=10.0,
        busy=busy,
        computed=5.0,
        overlapped=overlapped,
        collectives=tuple(Collective(kind=kind, seconds=one, nbytes=1e6) for one in seconds),
    )


def test_busy_time_is_shared_out_into_overlap_and_exposed() -> None:
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
def test_the_error_is_the_hosts_gaps_at_the_rate_at_which_they_are_elsewhere(
    busy: float, computed: float, overlapped: float, gaps: float
) -> None:
    one = ProfiledStep(seconds=10, busy=busy, computed=computed, overlapped=overlapped, collectives=())
    assert merged([RankProfile(steps=(one,))]).gaps == pytest.approx(gaps)


def test_where_nothing_is_sent_there_is_no_overlap() -> None:
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
def test_ranks_that_may_never_have_met_are_not_put_side_by_side(group: int | None) -> None:
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
    assert (found.transfer, found.bandwidths) == (2, (Bandwidth(kind="all_reduce", algorithm=4, bus=6),))


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
    assert bus_factor(kind, ranks) == factor


def test_bandwidth_is_size_over_transfer() -> None:
    """Four ranks. Two all-reduces of 1 MB in 2 and 3 s: 0.4 MB/s, bus 0.6. All-gather: 4 x 1 MB in 4 s, bus 0.75."""
    ranks = [
        RankProfile(steps=(step(2, 3), step(4, kind="all_gather"))),
        *[RankProfile(steps=(step(2, 9), step(8, kind="all_gather")))] * 3,
    ]
    reduced, gathered = merged(ranks).bandwidths
    assert (reduced.kind, reduced.algorithm) == ("all_reduce", 4e5)
    assert reduced.bus == pytest.approx(6e5)
    assert gathered == Bandwidth(kind="all_gather", algorithm=1e6, bus=7.5e5)
    assert merged([sized((2, 0), kind="barrier")] * 2).bandwidths == ()


def test_the_window_of_ddp_is_rank_0s() -> None:
    window = Window(communication=0.095, overlapped=0.075)
    assert window.exposed == pytest.approx(0.02)
    assert merged([RankProfile(steps=(step(),), window=window), RankProfile(steps=(step(),))]).window == window


def test_a_profile_without_any_work_is_none() -> None:
    """As on CUDA without CUPTI, where each step has a length and nothing in it."""
    blind = RankProfile(steps=(ProfiledStep(seconds=10, busy=0, computed=0, overlapped=0, collectives=()),) * 2)
    assert saw_work([RankProfile(steps=(step(),))] * 2)
    assert not saw_work([RankProfile(steps=(step(),)), blind])
