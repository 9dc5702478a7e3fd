from __future__ import annotations

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner.links import LateRank, SlowLink, WrongInterface
from pytest_ddpperf.planner.tables import (
    backend_line,
    interface_line,
    late_line,
    link_line,
    network_table,
    prediction_lines,
    reach_line,
)
from pytest_ddpperf.records.network import CollectiveFit, Segment
from pytest_ddpperf.reports.table import render
from tests.factories import make_environment

LINE = Segment(max_bytes=1_000_000, latency=1e-4, seconds_per_byte=1e-10)
FIT = CollectiveFit(collective="all_reduce", world_size=4, min_bytes=1024, segments=(LINE,), error=0.031)


def test_the_table_has_bandwidths_range_and_error() -> None:
    """1 MB in 200 us: 5 GB/s, times 1.5 of 4 ranks."""
    lines = render(network_table(make_environment(world_size=4), [FIT])).splitlines()
    assert lines[0].endswith("gloo, torch 2.13, 4 ranks")
    assert lines[4].split() == [
        "all_reduce",
        "1.00",
        "KiB",
        "to",
        "977",
        "KiB",
        "100",
        "us",
        "5.00",
        "7.50",
        "1",
        "3.1",
    ]


def test_a_prediction_has_its_error_and_ends_at_the_range() -> None:
    assert prediction_lines([FIT], 500_000) == ["all_reduce of 488 KiB: 150 us, median error 3.1 %"]
    with pytest.raises(SettingError, match="all_reduce of 4 ranks was measured only from"):
        prediction_lines([FIT], 2_000_000)


def test_each_finding_is_a_sentence_with_its_cure() -> None:
    assert late_line(LateRank(1, "all_reduce", 0.95, 0.8)) == (
        "rank 1 is slow: it comes last to 95 % of the calls of all_reduce; the others wait 80 % of their time: "
        "look at its node, its cores and its GPU"
    )
    assert link_line(SlowLink((1, 3), 2.04)) == (
        "the link of ranks 1 and 3 is slow: a message takes 2.0 times the usual link's time; look at its cable"
    )
    assert link_line(SlowLink((2,), 3.0)).startswith("every link of rank 2 is slow")
    assert interface_line(WrongInterface("GLOO_SOCKET_IFNAME", "eth0", 1e9, "ib0", 100e9)) == (
        "GLOO_SOCKET_IFNAME=eth0 is an interface of 1 Gbit/s, and ib0 has 100 Gbit/s; name that one"
    )
    assert interface_line(WrongInterface("GLOO_SOCKET_IFNAME", "eth9", None)) == (
        "GLOO_SOCKET_IFNAME=eth9 names no interface that is up; name one that ip -brief link shows, or unset it"
    )


def test_gloo_beside_gpus_is_told() -> None:
    assert backend_line(make_environment(), 2) == (
        "gloo moves the data of 2 GPUs through the host; give --backend nccl --device cuda"
    )
    assert backend_line(make_environment(), 0) == ""
    assert backend_line(make_environment(device="cuda", backend="nccl"), 2) == ""


def test_a_bandwidth_far_below_the_link_is_told() -> None:
    """7.5 GB/s: more than half of 100 Gbit/s, and 1.7 % of NVLink."""
    assert reach_line(FIT, "ethernet100") == ""
    line = reach_line(FIT, "nvlink4")
    assert line.startswith(
        "all_reduce reaches a busbw of 7.50 GB/s, 1.7 % of the 450 GB/s of nvlink4 (H100 SXM datasheet"
    )
