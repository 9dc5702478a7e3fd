"""The table of strategies, without ranks: names, options, and what a wrong one of either is told."""

from __future__ import annotations

import importlib
import inspect
import pickle
from functools import partial
from typing import Any

import pytest
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpperf import Strategy
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.strategies.replicas import wrap
from pytest_ddpperf.strategies.table import ALIASES, STRATEGIES, require_world_size, resolve


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
def test_replicas_that_do_not_fit_the_world_size_are_refused(text: str, ranks: int, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        require_world_size(resolve(text), ranks)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_name_is_a_strategy_without_options(name: str) -> None:
    strategy = resolve(name)
    assert (str(strategy), strategy.options, strategy.function) == (name, {}, None)


@pytest.mark.parametrize("row", STRATEGIES.values(), ids=STRATEGIES)
def test_every_option_of_the_table_is_an_argument_of_the_function(row: Any) -> None:
    taken = set(inspect.signature(getattr(importlib.import_module(row.module), row.name)).parameters)
    if "options" in taken:  # which go to torch
        taken |= set(inspect.signature(wrap).parameters) | set(inspect.signature(DistributedDataParallel).parameters)
    assert set(row.options) <= taken
    assert row.by_block == ("blocks" in taken)


def test_options_are_parsed_sorted_and_part_of_the_identity() -> None:
    written = resolve(" ddp[static_graph=true, bucket_cap_mb=5] ")
    assert written == resolve(Strategy("ddp", bucket_cap_mb=5, static_graph=True))
    assert str(written) == "ddp[bucket_cap_mb=5,static_graph=true]"
    assert dict(written.options) == {"bucket_cap_mb": 5.0, "static_graph": True}
    assert resolve(str(written)) == written
    assert str(resolve("ddp[bucket_cap_mb=0.5]")) == "ddp[bucket_cap_mb=0.5]"
    assert resolve("ddp[]") == resolve("ddp")


@pytest.mark.parametrize(
    ("alias", "name"),
    [("ddp_individual", "overlap"), ("ddp_individual_v2", "overlap_coalesced"), ("ddp_bucketed", "bucketed")],
)
def test_former_names_of_strategies_are_understood(alias: str, name: str) -> None:
    assert ALIASES[alias] == name
    assert str(resolve(alias)) == name


def test_torchs_own_name_of_an_option_is_understood_too() -> None:
    assert str(resolve("fsdp1[sharding_strategy=NO_SHARD]")) == "fsdp1[sharding=NO_SHARD]"


def test_a_function_is_a_strategy() -> None:
    def mine(module: Any, _ctx: Any, cap: int = 0) -> Any:
        return module, cap

    strategy = resolve(mine)
    assert (str(strategy), strategy.function) == ("mine()", mine)
    assert str(resolve(partial(mine, cap=1))) == "mine(cap=1)"
    with pytest.raises(SettingError, match="a function that is a strategy needs a name"):
        resolve(lambda module, _ctx: module)


def test_a_strategy_can_be_pickled() -> None:
    strategy = resolve("ddp[bucket_cap_mb=5]")
    assert pickle.loads(pickle.dumps(strategy)) == strategy
    assert hash(pickle.loads(pickle.dumps(strategy))) == hash(strategy)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("naiv", "strategy 'naiv' is unknown: did you mean naive? known strategies: bucketed, ddp, "),
        ("zzz", "strategy 'zzz' is unknown: known strategies: bucketed, "),
        ("ddp[bucket_cap=5]", "ddp has no option bucket_cap; did you mean bucket_cap_mb? it takes broadcast_buffers"),
        ("naive[bucket_cap_mb=5]", "naive has no option bucket_cap_mb; it takes none"),
        ("ddp[bucket_cap_mb=0]", "bucket_cap_mb=0: expected a number above 0"),
        ("ddp[bucket_cap_mb=big]", "bucket_cap_mb=big: expected a number above 0"),
        ("ddp[static_graph=perhaps]", "static_graph=perhaps: expected true or false"),
        ("fsdp1[sharding=HALF]", "expected one of FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD"),
        ("ddp[bucket_cap_mb]", "cannot read option 'bucket_cap_mb'; write option=value"),
        ("ddp[bucket_cap_mb=1,bucket_cap_mb=2]", "option bucket_cap_mb is given twice"),
        ("ddp[bucket_cap_mb=1", "expected a name, or a name with options as in ddp[bucket_cap_mb=5]"),
        ("", "expected a name"),
    ],
)
def test_for_a_wrong_strategy_or_option_the_error_lists_the_right_ones(text: str, says: str) -> None:
    with pytest.raises(SettingError) as caught:
        resolve(text)
    assert says in str(caught.value)


def test_only_single_is_for_one_rank_alone() -> None:
    assert [row.name for row in STRATEGIES.values() if row.single_rank] == ["single"]
    for name in STRATEGIES:
        require_world_size(resolve(name), 1)
    require_world_size(resolve("naive"), 2)
    with pytest.raises(SettingError, match=r"'single' .* needs world_size=1, but world_size is 2"):
        require_world_size(resolve("single"), 2)
