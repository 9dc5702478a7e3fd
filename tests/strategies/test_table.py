"""Options that do not go together, or not with a number of ranks: told at once, without ranks and without torch."""

from __future__ import annotations

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.strategies.table import require_world_size, resolve


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ddp[powersgd_rank=2]", "powersgd_rank is an option of comm_hook=powersgd, and no hook is chosen"),
        ("ddp[comm_hook=fp16,powersgd_start=5]", "and comm_hook=fp16 is chosen: add comm_hook=powersgd, or drop"),
        ("ddp[comm_hook=powersgd,local_sgd_period=5]", "local_sgd_period is an option of comm_hook=post_local_sgd"),
        ("ddp[local_sgd_start=5]", "local_sgd_start is an option of comm_hook=post_local_sgd, and no hook is chosen"),
        ("ddp[comm_hook=powersgd,powersgd_start=1]", "powersgd_start=1: .* use powersgd_start=2 or more"),
        ("ddp[comm_hook=post_local_sgd,local_sgd_period=1]", "local_sgd_period=1 averages .* use 2 or more"),
        ("ddp[static_graph=true,find_unused_parameters=true]", "static_graph=true finds unused parameters by itself"),
        ("zero1[static_graph=true,find_unused_parameters=true]", "drop find_unused_parameters"),
        ("fsdp1[sharding=HYBRID_SHARD]", "sharding=HYBRID_SHARD needs the number of copies of the model: add replicas"),
        ("fsdp1[replicas=2]", "replicas is an option of sharding=HYBRID_SHARD: add that, or drop replicas"),
        ("fsdp1[sharding=NO_SHARD,replicas=2]", "replicas is an option of sharding=HYBRID_SHARD"),
    ],
)
def test_options_that_do_not_go_together_are_refused_without_ranks(text: str, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        resolve(text)


@pytest.mark.parametrize(
    "text",
    [
        "ddp[comm_hook=powersgd,powersgd_rank=2,powersgd_start=2]",
        "ddp[comm_hook=post_local_sgd,local_sgd_start=0,local_sgd_period=2]",
        "ddp[static_graph=true,find_unused_parameters=false]",
        "fsdp1[sharding=HYBRID_SHARD,replicas=2]",
        "fsdp2[replicas=2]",
    ],
)
def test_options_that_go_together_are_taken(text: str) -> None:
    require_world_size(resolve(text), 4)


@pytest.mark.parametrize(
    ("text", "ranks", "says"),
    [
        ("fsdp2[replicas=3]", 4, "replicas=3 does not divide world size 4"),
        ("fsdp1[sharding=HYBRID_SHARD,replicas=3]", 4, "replicas=3 does not divide world size 4"),
        ("fsdp1[sharding=HYBRID_SHARD,replicas=4]", 4, "gives each copy only one rank, and then FSDP1 synchronises"),
        ("fsdp1[sharding=HYBRID_SHARD,replicas=2]", 1, "replicas=2 does not divide world size 1"),
    ],
)
def test_copies_have_equally_many_ranks(text: str, ranks: int, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        require_world_size(resolve(text), ranks)
