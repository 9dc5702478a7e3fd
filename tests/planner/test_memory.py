from __future__ import annotations

from typing import Any

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner import model_state_bytes


@pytest.mark.parametrize(
    ("sharding", "gigabytes"),
    [("none", 120), ("zero1", 31.4), ("zero2", 16.6), ("zero3", 1.9), ("FULL_SHARD", 1.9), ("SHARD_GRAD_OP", 16.6)],
)
def test_memory_agrees_with_the_numbers_of_the_zero_paper(sharding: str, gigabytes: float) -> None:
    """7.5e9 parameters over 64 ranks (ZeRO, figure 1)."""
    assert model_state_bytes(7_500_000_000, 64, sharding) / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(
    ("ranks", "options", "nbytes"),
    [
        (4, {"optimizer": "sgd", "precision": "fp32"}, 8_000),
        (4, {"optimizer": "momentum", "precision": "fp32"}, 12_000),
        (4, {"precision": "fp32"}, 16_000),
        (4, {}, 16_000),
        (4, {"precision": "autocast"}, 16_000),
        (4, {"precision": "bf16"}, 8_000),
        (32, {"sharding": "HYBRID_SHARD", "ranks_per_node": 8}, 2_000),  # 16 000 bytes over the 8 ranks of a node
        (4, {"precision": "fp32", "ddp_buckets": True}, 20_000),  # a second gradient
        (4, {"sharding": "zero3", "precision": "fp32", "unsharded_gradients": True}, 4_000 + 4_000),
        (4, {"precision": "fp32", "unsharded_gradients": True}, 16_000),
    ],
)
def test_memory_of_a_thousand_parameters_agrees_with_values_by_hand(
    ranks: int, options: dict[str, Any], nbytes: float
) -> None:
    assert model_state_bytes(1000, ranks, **options) == nbytes


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"parameters": -1}, "parameters=-1 is not valid; give a whole number of at least 0"),
        ({"sharding": "zero4"}, "sharding='zero4' is not known; give one of none, zero1, zero2, zero3"),
        ({"sharding": "HYBRID_SHARD"}, "HYBRID_SHARD shards in each node; give the number of ranks on a node"),
        ({"sharding": "HYBRID_SHARD", "ranks_per_node": 3}, "world_size=2 is no multiple of ranks_per_node=3"),
        (
            {"sharding": "FULL_SHARD", "ranks_per_node": 2},
            "ranks_per_node=2 is only for HYBRID_SHARD, not for sharding='FULL_SHARD': leave",
        ),
        ({"optimizer": "lion"}, "optimizer='lion' is not known; give one of sgd"),
        ({"precision": "int8"}, "precision='int8' is not known; give one of fp32"),
    ],
)
def test_an_invalid_argument_is_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        model_state_bytes(**{"parameters": 1, "world_size": 2, **changed})
