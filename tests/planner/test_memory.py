from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner import model_state_bytes


@pytest.mark.parametrize(
    ("sharding", "gigabytes"),
    [("none", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9), ("FULL_SHARD", 1.9), ("SHARD_GRAD_OP", 16.6)],
)
def test_the_numbers_of_the_paper(sharding: str, gigabytes: float) -> None:
    """7.5e9 parameters over 64 ranks (ZeRO, figure 1)."""
    assert model_state_bytes(7_500_000_000, 64, sharding) / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("optimizer", "precision", "each"),
    [
        ("sgd", "fp32", 8),
        ("momentum", "fp32", 12),
        ("adam", "fp32", 16),
        ("adam", "mixed", 16),
        ("adam", "autocast", 16),
        ("adam", "bf16", 8),
    ],
)
def test_bytes_of_a_parameter(optimizer: str, precision: str, each: float) -> None:
    assert model_state_bytes(1000, 4, optimizer=optimizer, precision=precision) == 1000 * each


def test_a_hybrid_shard_is_zero3_over_the_ranks_of_a_node() -> None:
    """16 000 bytes over the 8 ranks of each of 4 nodes."""
    assert model_state_bytes(1000, 32, "HYBRID_SHARD", ranks_per_node=8) == 2_000


def test_buckets_of_ddp_are_a_second_gradient() -> None:
    assert model_state_bytes(1000, 4, precision="fp32", ddp_buckets=True) == 20_000


def test_gradients_that_are_kept_whole_come_on_top_of_sharded_ones() -> None:
    assert model_state_bytes(1000, 4, "zero3", precision="fp32", unsharded_gradients=True) == 4_000 + 4_000
    assert model_state_bytes(1000, 4, "none", precision="fp32", unsharded_gradients=True) == 16_000


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"parameters": -1}, "parameters=-1 is not valid; give a whole number of at least 0"),
        ({"sharding": "zero4"}, "sharding='zero4' is not known; give one of none, zero1, zero2, zero3"),
        ({"sharding": "HYBRID_SHARD"}, "sharding='HYBRID_SHARD' shards among the ranks of a node; give the number"),
        ({"sharding": "HYBRID_SHARD", "ranks_per_node": 3}, "world_size=2 is no multiple of ranks_per_node=3"),
        (
            {"sharding": "FULL_SHARD", "ranks_per_node": 2},
            "ranks_per_node=2 is only for HYBRID_SHARD, not for sharding='FULL_SHARD': leave",
        ),
        ({"optimizer": "lion"}, "optimizer='lion' is not known; give one of sgd"),
        ({"precision": "int8"}, "precision='int8' is not known; give one of fp32"),
    ],
)
def test_an_argument_that_cannot_be_is_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        model_state_bytes(**{"parameters": 1, "world_size": 2, **changed})
