from __future__ import annotations

from itertools import combinations

import pytest

from pytest_ddpperf import settings
from pytest_ddpperf.planner.links import (
    CLUSTERS,
    HARDWARE,
    LateRank,
    SlowLink,
    WrongInterface,
    late_ranks,
    link_of,
    slow_links,
    wrong_interface,
)
from pytest_ddpperf.planner.rooflines import ACCELERATORS
from pytest_ddpperf.records.network import CollectiveTimes, RankSweep


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
    (found,) = late_ranks(calls((0.0,) * 4, (4.0,) * 4, (0.0,) * 4))
    assert found == LateRank(1, "all_reduce", 1.0, 0.8)


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
    assert late_ranks(sweep) == ()


def test_a_slow_link_is_named_by_its_ranks() -> None:
    assert slow_links(network(4, {(1, 3): 2.0})) == (SlowLink((1, 3), 2.0),)


def test_a_rank_all_of_whose_links_are_slow_is_named_alone() -> None:
    assert slow_links(network(4, {(0, 2): 3.0, (1, 2): 3.0, (2, 3): 3.0})) == (SlowLink((2,), 3.0),)
    assert slow_links(network(3, {(0, 2): 3.0, (1, 2): 3.0})) == (SlowLink((2,), 3.0),)


def test_a_rank_with_one_link_that_is_far_slower_than_its_others_is_not_named_alone() -> None:
    """Its other link is slow for another reason, such as other work."""
    assert slow_links(network(3, {(0, 1): 1.5, (1, 2): 80.0})) == (SlowLink((0, 1), 1.5), SlowLink((1, 2), 80.0))


@pytest.mark.parametrize(
    "sweep",
    [
        pytest.param(network(4, {(1, 3): 1.3}), id="alike"),
        pytest.param(network(4, {(1, 3): 2.0}, disturbed=1), id="slow in few turns"),  # as on a busy machine
        pytest.param(network(2, {(0, 1): 9.0}), id="the only link"),
    ],
)
def test_links_that_need_not_be_slow_are_not_named(sweep: list[RankSweep]) -> None:
    assert slow_links(sweep) == ()


SPEEDS = {"lo": None, "eth0": 1e9, "ib0": 100e9}


@pytest.mark.parametrize(
    ("environ", "backend", "expected"),
    [
        ({}, "gloo", None),
        ({"GLOO_SOCKET_IFNAME": "ib0"}, "gloo", None),
        ({"NCCL_SOCKET_IFNAME": "eth0"}, "gloo", None),  # is not gloo's
        ({"GLOO_SOCKET_IFNAME": "lo"}, "gloo", None),  # tells no speed
        ({"GLOO_SOCKET_IFNAME": "eth9"}, "gloo", WrongInterface("GLOO_SOCKET_IFNAME", "eth9", None)),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, "gloo", WrongInterface("GLOO_SOCKET_IFNAME", "eth0", 1e9, "ib0", 100e9)),
        ({"NCCL_SOCKET_IFNAME": "eth"}, "nccl", WrongInterface("NCCL_SOCKET_IFNAME", "eth", 1e9, "ib0", 100e9)),
        ({"NCCL_SOCKET_IFNAME": "=eth"}, "nccl", WrongInterface("NCCL_SOCKET_IFNAME", "=eth", None)),
        ({"NCCL_SOCKET_IFNAME": "^eth0"}, "nccl", None),
    ],
)
def test_a_wrong_interface_is_found(environ: dict[str, str], backend: str, expected: WrongInterface | None) -> None:
    assert wrong_interface(environ, SPEEDS, backend) == expected


@pytest.mark.parametrize(
    ("device", "name", "link"),
    [
        ("cpu", "NVIDIA H100 80GB HBM3", None),
        ("cuda", "NVIDIA H100 80GB HBM3", "nvlink4"),
        ("cuda", "NVIDIA A100-SXM4-80GB", "nvlink3"),
        ("cuda", "NVIDIA H100 PCIe", "pcie5"),
        ("cuda", "NVIDIA L4", "pcie4"),
        ("cuda", "NVIDIA H200", "nvlink4"),
        ("cuda", "NVIDIA GH200 480GB", "nvlink4"),
        ("cuda", "Tesla V100-SXM2-16GB", None),
    ],
)
def test_the_link_follows_from_the_gpu(device: str, name: str, link: str | None) -> None:
    assert link_of(device, [name]) == link


@pytest.mark.parametrize(
    ("words", "latency"), [(("nvlink",), 3.4e-6), (("pcie",), 5.7e-6), (("infiniband", "ethernet"), 14e-6)]
)
def test_a_message_takes_what_nccls_model_says(words: tuple[str, ...], latency: float) -> None:
    """NCCL, src/graph/tuning.cc: hwLat of the ring with the protocol Simple, for NVLink, PCI and NET."""
    found = {link.latency for name, link in HARDWARE.items() if name.startswith(words)}
    assert found == {latency}


def test_links_and_clusters_have_the_bandwidths_of_their_standards() -> None:
    assert HARDWARE["infiniband400"].bandwidth == 400e9 / 8
    assert HARDWARE["ethernet100"].bandwidth == 100e9 / 8
    assert HARDWARE["ethernet10"].bandwidth == 10e9 / 8
    assert HARDWARE["ethernet1"].bandwidth == 1e9 / 8
    assert HARDWARE["pcie4"].bandwidth == pytest.approx(16e9 * 16 / 8 * 128 / 130, rel=1e-3)
    assert HARDWARE["pcie5"].bandwidth == pytest.approx(32e9 * 16 / 8 * 128 / 130, rel=1e-3)
    assert all({*links} <= HARDWARE.keys() for links in CLUSTERS.values())
    assert CLUSTERS["pcie-ethernet1"] == ("pcie4", "ethernet1")


def test_settings_name_what_is_known() -> None:
    assert (tuple(CLUSTERS), tuple(ACCELERATORS)) == (settings.CLUSTERS, settings.ACCELERATORS)
