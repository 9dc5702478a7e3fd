"""The table of strategies, without ranks: how a test names one, with which options, and what a wrong name is told."""

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
from pytest_ddpperf.strategies.ddp_wrapping import wrap
from pytest_ddpperf.strategies.table import ALIASES, STRATEGIES, require_world_size, resolve


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
def test_the_names_of_old_are_understood(alias: str, name: str) -> None:
    assert ALIASES[alias] == name
    assert str(resolve(alias)) == name


def test_torchs_own_name_of_an_option_is_understood_too() -> None:
    assert str(resolve("fsdp1[sharding_strategy=NO_SHARD]")) == "fsdp1[sharding=NO_SHARD]"


def test_a_function_is_a_strategy_of_its_own() -> None:
    def mine(module: Any, _ctx: Any, cap: int = 0) -> Any:
        return module, cap

    strategy = resolve(mine)
    assert (str(strategy), strategy.function) == ("mine()", mine)
    assert str(resolve(partial(mine, cap=1))) == "mine(cap=1)"
    with pytest.raises(SettingError, match="a strategy of your own has to have a name"):
        resolve(lambda module, _ctx: module)


def test_a_strategy_survives_the_way_to_a_rank() -> None:
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
        ("ddp[bucket_cap_mb]", "'bucket_cap_mb' is no option; write option=value"),
        ("ddp[bucket_cap_mb=1,bucket_cap_mb=2]", "option bucket_cap_mb is given twice"),
        ("ddp[bucket_cap_mb=1", "expected a name, or a name with options as in ddp[bucket_cap_mb=5]"),
        ("", "expected a name"),
    ],
)
def test_a_wrong_name_or_option_is_told_the_right_ones(text: str, says: str) -> None:
    with pytest.raises(SettingError) as caught:
        resolve(text)
    assert says in str(caught.value)


def test_only_single_is_for_one_rank_alone() -> None:
    assert [row.name for row in STRATEGIES.values() if row.single_rank] == ["single"]
    for name in STRATEGIES:
        require_world_size(resolve(name), 1)
    require_world_size(resolve("naive"), 2)
    with pytest.raises(SettingError, match=r"'single' .* needs world size 1, but the world size is 2"):
        require_world_size(resolve("single"), 2)
