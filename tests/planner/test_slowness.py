from __future__ import annotations

from itertools import combinations

import pytest

from pytest_ddpperf.planner.slowness import backend_line, interface_line, late_ranks, reach_line, slow_links
from pytest_ddpperf.records.network import CollectiveFit, CollectiveTimes, RankSweep, Segment
from tests.factories import make_environment

LINE = Segment(max_bytes=1_000_000, latency=1e-4, seconds_per_byte=1e-10)
FIT = CollectiveFit(collective="all_reduce", world_size=4, min_bytes=1024, segments=(LINE,), error=0.031)


def calls(
    *handed: tuple[float, ...], ends: tuple[float, ...] = (5.0,) * 9, collective: str = "all_reduce"
) -> list[RankSweep]:
    """For each rank, when it hands over each call; the ranks see its end at ``ends``."""
    found = []
    for moments, end in zip(handed, ends, strict=False):
        waited = tuple(end - moment for moment in moments)
        times = CollectiveTimes(
            collective=collective, nbytes=8, begun=(0.0,) * len(moments), waited=waited, handed=moments
        )
        found.append(RankSweep(times=(times,), pairs={}))
    return found


def network(ranks: int, slow: dict[tuple[int, int], float], disturbed: int = 0) -> list[RankSweep]:
    """Messages of a second on each link, but for slow ones; 9 in a second turn, 20 on all in disturbed ones."""
    pairs = {pair: slow.get(pair, 1.0) for pair in combinations(range(ranks), 2)}
    return [
        RankSweep(
            times=(),
            pairs={
                sum(pair) - rank: (seconds, 9 * seconds, *(20.0,) * disturbed)
                for pair, seconds in pairs.items()
                if rank in pair
            },
        )
        for rank in range(ranks)
    ]


def test_the_rank_that_hands_its_work_over_last_is_late() -> None:
    """The others wait 4 of 5 seconds for it."""
    (line,) = late_ranks(calls((0.0,) * 4, (4.0,) * 4, (0.0,) * 4))
    assert line == (
        "rank 1 is slow: it comes last to 100 % of the calls of all_reduce; the others wait 80 % of their time: "
        "check its node, its cores and its GPU"
    )


@pytest.mark.parametrize(
    "sweep",
    [
        pytest.param(calls((0.0, 4.0, 0.0, 4.0), (4.0, 0.0, 4.0, 0.0)), id="late in turn"),
        pytest.param(calls((0.0,) * 4, (1.0,) * 4), id="always a little late"),
        pytest.param(  # as a rank ends first that has no part in a slow link
            calls((0.0,) * 4, (0.0,) * 4, (0.1,) * 4, ends=(5.0, 5.0, 0.3), collective="all_to_all"), id="ends first"
        ),
        pytest.param(calls((0.0,) * 4, (4.0,) * 4, collective="broadcast"), id="broadcast"),
    ],
)
def test_ranks_that_need_not_be_slow_are_not_named(sweep: list[RankSweep]) -> None:
    assert late_ranks(sweep) == []


def slow(whose: str, times: float) -> str:
    return f"{whose} is slow: a message takes {times} times the usual link's time; check its cable"


def test_a_slow_link_is_named_by_its_ranks() -> None:
    assert slow_links(network(4, {(1, 3): 2.0})) == [slow("the link of ranks 1 and 3", 2.0)]


def test_a_rank_all_of_whose_links_are_slow_is_named_alone() -> None:
    assert slow_links(network(4, {(0, 2): 3.0, (1, 2): 3.0, (2, 3): 3.0})) == [slow("every link of rank 2", 3.0)]
    assert slow_links(network(3, {(0, 2): 3.0, (1, 2): 3.0})) == [slow("every link of rank 2", 3.0)]


def test_a_rank_with_one_link_that_is_far_slower_than_its_others_is_not_named_alone() -> None:
    """Its other link is slow for another reason, such as other work."""
    assert slow_links(network(3, {(0, 1): 1.5, (1, 2): 80.0})) == [
        slow("the link of ranks 0 and 1", 1.5),
        slow("the link of ranks 1 and 2", 80.0),
    ]


@pytest.mark.parametrize(
    "sweep",
    [
        pytest.param(network(4, {(1, 3): 1.3}), id="alike"),
        pytest.param(network(4, {(1, 3): 2.0}, disturbed=1), id="slow in few turns"),  # as on a busy machine
        pytest.param(network(2, {(0, 1): 9.0}), id="the only link"),
    ],
)
def test_links_that_need_not_be_slow_are_not_named(sweep: list[RankSweep]) -> None:
    assert slow_links(sweep) == []


SPEEDS = {"lo": None, "eth0": 1e9, "ib0": 100e9}
DOWN = "names no interface that is up; name one that ip -brief link shows, or unset it"
SLOWER = "is an interface of 1 Gbit/s, and ib0 has 100 Gbit/s; name that one"


@pytest.mark.parametrize(
    ("environ", "backend", "expected"),
    [
        ({}, "gloo", ""),
        ({"GLOO_SOCKET_IFNAME": "ib0"}, "gloo", ""),
        ({"NCCL_SOCKET_IFNAME": "eth0"}, "gloo", ""),  # is not gloo's
        ({"GLOO_SOCKET_IFNAME": "lo"}, "gloo", ""),  # tells no speed
        ({"GLOO_SOCKET_IFNAME": "eth9"}, "gloo", f"GLOO_SOCKET_IFNAME=eth9 {DOWN}"),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, "gloo", f"GLOO_SOCKET_IFNAME=eth0 {SLOWER}"),
        ({"NCCL_SOCKET_IFNAME": "eth"}, "nccl", f"NCCL_SOCKET_IFNAME=eth {SLOWER}"),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "nccl", f"NCCL_SOCKET_IFNAME==eth {DOWN}"),
        ({"NCCL_SOCKET_IFNAME": "^eth0"}, "nccl", ""),
    ],
)
def test_a_wrong_interface_is_found(environ: dict[str, str], backend: str, expected: str) -> None:
    assert interface_line(environ, SPEEDS, backend) == expected


def test_gloo_on_a_machine_with_gpus_is_reported() -> None:
    assert backend_line(make_environment(), 2) == (
        "gloo moves the data of 2 GPUs through the host; give --backend nccl --device cuda"
    )
    assert backend_line(make_environment(), 0) == ""
    assert backend_line(make_environment(device="cuda", backend="nccl"), 2) == ""


def test_a_bandwidth_far_below_the_link_is_reported() -> None:
    """7.5 GB/s: more than half of 100 Gbit/s, and 1.7 % of NVLink."""
    assert reach_line(FIT, "ethernet100") == ""
    line = reach_line(FIT, "nvlink4")
    assert line.startswith(
        "all_reduce reaches a busbw of 7.50 GB/s, 1.7 % of the 450 GB/s of nvlink4 (H100 SXM datasheet"
    )
