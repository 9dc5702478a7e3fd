from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner import (
    Network,
    algorithm_bandwidth,
    bus_bandwidth,
    collective_time,
    communication_complexity_analysis,
    estimate_communication_time,
    hierarchical_time,
)
from pytest_ddpperf.records.network import COLLECTIVES

LINK = Network(latency=10e-6, bandwidth=100e9)
ROWS = communication_complexity_analysis()


def test_the_cost_of_a_ring_agrees_with_the_worked_example() -> None:
    """100 MiB over 4 ranks with 10 Gbit/s and 0.1 ms: 6 x (0.1 ms + 26 214 400 B / 1.25e9 B/s)."""
    assert estimate_communication_time(104_857_600, 4, 10.0, 0.1) == pytest.approx(0.12642912, abs=1e-9)
    assert estimate_communication_time(100_000_000, 4, 10.0, 0.1) == pytest.approx(0.1206, abs=1e-9)
    assert estimate_communication_time(104_857_600, 4, 80.0, 0.1) == pytest.approx(0.01633, abs=5e-6)  # 10 GB/s


@pytest.mark.parametrize(
    ("collective", "algorithm", "milliseconds"),
    [
        ("all_reduce", "ring", 2.175),
        ("all_gather", "ring", 1.0875),
        ("reduce_scatter", "ring", 1.0875),
        ("all_reduce", "halving_doubling", 1.955),
        ("all_reduce", "recursive_doubling", 4.04),
        ("all_gather", "recursive_doubling", 0.9775),
        ("all_gather", "halving_doubling", 0.9775),
        ("reduce_scatter", "recursive_doubling", 3.1025),
        ("reduce_scatter", "halving_doubling", 0.9775),
        ("broadcast", "halving_doubling", 1.955),
        ("broadcast", "ring", 2.065),
        ("broadcast", "tree", 4.04),
    ],
)
def test_times_of_16_ranks_agree_with_values_by_hand(collective: str, algorithm: str, milliseconds: float) -> None:
    """100 MB, 10 us, 100 GB/s: 1 ms for the buffer, of which 15/16 are sent in parts."""
    seconds = collective_time(collective, 100e6, 16, LINK, algorithm)
    assert 1e3 * seconds == pytest.approx(milliseconds, abs=1e-9)


def test_a_ring_of_64_ranks_is_faster_in_two_levels() -> None:
    """2 GB over 8 nodes of 8: 5 us and 50 GB/s between nodes, 300 GB/s inside.

    The published example prints 20.44 ms. Its own parts, 11.667 and 8.82 ms, add up to 20.487 ms.
    """
    between, local = Network(latency=5e-6, bandwidth=50e9), Network(latency=0, bandwidth=300e9)
    assert collective_time("all_reduce", 2e9, 64, between) == pytest.approx(79.38e-3, abs=5e-6)
    assert collective_time("all_reduce", 2e9 / 8, 8, between) == pytest.approx(8.82e-3, abs=5e-6)
    inside = [collective_time(half, 2e9, 8, local) for half in ("reduce_scatter", "all_gather")]
    assert sum(inside) == pytest.approx(11.67e-3, abs=5e-6)
    found = hierarchical_time("all_reduce", 2e9, 8, 8, local=local, between=between)
    assert found == pytest.approx(20.487e-3, abs=5e-7)
    given = {"ranks_per_node": 8, "local_bandwidth_gbps": 2400}
    assert estimate_communication_time(2e9, 64, 400, 5e-3, "hierarchical", **given) == pytest.approx(found)  # type: ignore[arg-type]


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_one_level_alone_is_the_ring(collective: str) -> None:
    ring = collective_time(collective, 1e6, 8, LINK)
    assert hierarchical_time(collective, 1e6, 8, 1, local=LINK, between=LINK) == pytest.approx(ring)
    assert hierarchical_time(collective, 1e6, 1, 8, local=LINK, between=LINK) == pytest.approx(ring)


def test_a_broadcast_in_two_levels_is_two_trees() -> None:
    """lg 4 + lg 8 messages of the whole buffer."""
    found = hierarchical_time("broadcast", 1e6, 4, 8, local=LINK, between=LINK)
    assert found == pytest.approx(5 * (10e-6 + 1e6 / 100e9))


def test_ranks_beyond_a_power_of_two_cost_halving_doubling_two_more_buffers() -> None:
    """(2 x 2 + 2) messages and (2 x 5/6 + 2) S."""
    expected = 6 * 10e-6 + (10 / 6 + 2) * 100e6 / 100e9
    assert collective_time("all_reduce", 100e6, 6, LINK, "halving_doubling") == pytest.approx(expected)


def test_one_rank_takes_no_time_and_nothing_takes_the_latency() -> None:
    for row in ROWS:
        assert collective_time(row.collective, 1e9, 1, LINK, row.algorithm) == 0
        empty = collective_time(row.collective, 0, 8, LINK, row.algorithm)
        assert empty == pytest.approx(row.terms(8).messages * 10e-6), row


def test_the_text_of_the_table_is_its_numbers() -> None:
    def value(text: str, n: int) -> float:
        code = text.removesuffix(" S").replace("lg n", "lg").replace("2 lg", "2*lg").replace("2(", "2*(")
        return float(eval(code, {"n": n, "lg": math.log2(n)}))  # noqa: S307

    assert {row.collective for row in ROWS} == set(COLLECTIVES)
    for row, n in product(ROWS, (2, 8)):
        terms = row.terms(n)
        assert (value(row.messages, n), value(row.sent, n)) == pytest.approx((terms.messages, terms.sent)), row


@pytest.mark.parametrize(
    ("collective", "gigabytes"),
    [("all_reduce", 1.5), ("all_gather", 0.75), ("reduce_scatter", 0.75), ("all_to_all", 0.75), ("broadcast", 1.0)],
)
def test_bus_bandwidth_follows_nccl_tests(collective: str, gigabytes: float) -> None:
    """1 GB over 4 ranks in a second."""
    assert algorithm_bandwidth(1e9, 1.0) == 1e9
    assert bus_bandwidth(collective, 1e9, 4, 1.0) == gigabytes * 1e9


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tensor_size_bytes": -1}, "tensor_size_bytes=-1 is not valid; give a finite number of at least 0"),
        ({"world_size": 0}, "world_size=0 is not valid; give a whole number of at least 1"),
        ({"world_size": 2.0}, "world_size=2.0 is not valid"),
        ({"bandwidth_gbps": 0}, "bandwidth_gbps=0 is not valid; give a finite number of more than 0"),
        ({"latency_ms": float("nan")}, "latency_ms=nan is not valid"),
        ({"algorithm": "star"}, "algorithm='star' is not known; give one of ring, tree, hierarchical"),
        ({"collective": "gossip"}, "collective='gossip' is not known; give one of all_reduce"),
        (
            {"algorithm": "tree", "collective": "all_to_all"},
            "algorithm='tree': there is no cost formula for all_to_all by this algorithm; give one of ring$",
        ),
        (
            {"algorithm": "recursive_doubling", "collective": "broadcast"},
            "no cost formula for broadcast by this algorithm; give one of ring, tree, halving_doubling$",
        ),
        (
            {"algorithm": "hierarchical", "collective": "all_to_all", "local_bandwidth_gbps": 1},
            "algorithm='hierarchical': there is no cost formula for all_to_all",
        ),
        ({"algorithm": "hierarchical", "ranks_per_node": 3}, "world_size=4 is no multiple of ranks_per_node=3"),
        ({"algorithm": "hierarchical", "ranks_per_node": 2}, "local_bandwidth_gbps=None: hierarchical needs"),
        (
            {"algorithm": "recursive_doubling", "collective": "reduce_scatter", "world_size": 6},
            "world_size=6: recursive_doubling of reduce_scatter needs a power of two; use algorithm='ring'",
        ),
    ],
)
def test_an_invalid_argument_is_named(changed: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"tensor_size_bytes": 1e6, "world_size": 4, "bandwidth_gbps": 10, "latency_ms": 0.1}
    with pytest.raises(SettingError, match=words):
        estimate_communication_time(**{**given, **changed})
    with pytest.raises(SettingError, match="seconds=0 is not valid; give a finite number of more than 0"):
        bus_bandwidth("all_reduce", 1, 2, 0)
    with pytest.raises(SettingError, match="algorithm='hierarchical' needs two links; call hierarchical_time"):
        collective_time("all_reduce", 1e6, 8, LINK, "hierarchical")
