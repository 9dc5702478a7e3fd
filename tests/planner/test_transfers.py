"""What transfers cost on networks that are named or measured; each number is worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner.costs import collective_time, hierarchical_time
from pytest_ddpperf.planner.links import CLUSTERS, HARDWARE
from pytest_ddpperf.planner.transfers import Band, FittedNetwork, NamedNetwork
from pytest_ddpperf.records.network import CollectiveFit, Segment
from pytest_ddpperf.records.timeline import Transfer

MB = 10**6
LOCAL, BETWEEN = (HARDWARE[link] for link in CLUSTERS["nvlink-infiniband400"])
NAMED = NamedNetwork(name="nvlink-infiniband400")


def transfer(name: str = "all_reduce", nbytes: int = 100 * MB, ranks: int = 8, stride: int = 1) -> Transfer:
    return Transfer(name=name, nbytes=nbytes, ranks=ranks, stride=stride)


def fit(collective: str = "all_reduce", world_size: int = 2, error: float = 0.05) -> CollectiveFit:
    """One millisecond and one second per GB, from 1 kB to 10 MB."""
    segments = (Segment(max_bytes=10 * MB, latency=1e-3, seconds_per_byte=1e-9),)
    return CollectiveFit(collective=collective, world_size=world_size, min_bytes=1000, segments=segments, error=error)


class TestCluster:
    def test_a_group_inside_a_node_uses_its_links(self) -> None:
        assert NAMED.seconds(transfer()) == collective_time("all_reduce", 100 * MB, 8, LOCAL)

    def test_a_group_over_whole_nodes_works_in_two_levels(self) -> None:
        expected = hierarchical_time("all_gather", 100 * MB, 4, 8, local=LOCAL, between=BETWEEN)
        assert NAMED.seconds(transfer("all_gather", ranks=32)) == expected

    def test_a_group_of_one_rank_of_each_node_uses_the_links_between_them(self) -> None:
        assert NAMED.seconds(transfer(ranks=4, stride=8)) == collective_time("all_reduce", 100 * MB, 4, BETWEEN)

    def test_two_ranks_of_each_node_are_two_levels(self) -> None:
        expected = hierarchical_time("all_reduce", 100 * MB, 4, 2, local=LOCAL, between=BETWEEN)
        assert NAMED.seconds(transfer(ranks=8, stride=4)) == expected

    def test_rooted_collectives_cost_what_the_like_ones_do(self) -> None:
        assert NAMED.seconds(transfer("reduce")) == NAMED.seconds(transfer("broadcast"))
        assert NAMED.seconds(transfer("barrier")) == pytest.approx(14 * LOCAL.latency)

    def test_a_broadcast_over_nodes_is_no_dearer_than_a_ring(self) -> None:
        """A tree over 16 nodes sends the whole four times, a ring less than twice."""
        ring = collective_time("broadcast", 100 * MB, 128, BETWEEN)
        assert NAMED.seconds(transfer("broadcast", ranks=128)) == ring

    def test_a_message_crosses_one_link(self) -> None:
        assert NAMED.seconds(transfer("send")) == LOCAL.latency + 100 * MB / LOCAL.bandwidth
        assert NAMED.seconds(transfer("send", ranks=64)) == BETWEEN.latency + 100 * MB / BETWEEN.bandwidth

    def test_one_rank_sends_nothing(self) -> None:
        assert NAMED.seconds(transfer(ranks=1)) == 0.0

    def test_a_name_that_is_not_known_is_refused_with_those_that_are(self) -> None:
        with pytest.raises(SettingError, match="pcie-ethernet10"):
            NamedNetwork(name="fast")


class TestCalibrated:
    def test_a_transfer_takes_what_the_fit_says(self) -> None:
        here = FittedNetwork(name="here", fits=(fit(), fit("all_gather")), taken=0.0)
        assert here.seconds(transfer(nbytes=MB, ranks=2)) == pytest.approx(2e-3)
        assert here.seconds(transfer(nbytes=8, ranks=2)) == pytest.approx(1e-3 + 1e-6)  # as the smallest size
        assert here.seconds(transfer("barrier", nbytes=0, ranks=2)) == pytest.approx(1e-3 + 1e-6)
        assert here.seconds(transfer(ranks=1)) == 0.0

    def test_another_number_of_ranks_has_to_be_measured(self) -> None:
        with pytest.raises(
            SettingError, match=r"was not measured for all_reduce of 4 ranks, .* of 2 ranks; choose another"
        ):
            FittedNetwork(name="here", fits=(fit(),), taken=0.0).seconds(transfer(ranks=4))
        with pytest.raises(
            SettingError, match=r"here was not measured for send of 2 ranks, .* choose another network: "
        ):
            FittedNetwork(name="here", fits=(fit(),), taken=0.0).seconds(transfer("send", ranks=2))

    def test_larger_sizes_have_to_be_measured(self) -> None:
        with pytest.raises(SettingError, match="--max-size"):
            FittedNetwork(name="here", fits=(fit(),), taken=0.0).seconds(transfer(ranks=2))

    def test_its_band_is_twice_the_largest_error_of_a_fit(self) -> None:
        here = FittedNetwork(name="here", fits=(fit(), fit("all_gather", error=0.1)), taken=0.0)
        assert here.band == Band(0.8, 1.0, 1.2)
        assert replace(here, usual=1.5).band == Band(0.8, 1.5, 1.5 * 1.2)
