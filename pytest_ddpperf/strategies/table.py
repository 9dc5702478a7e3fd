"""The table of strategies: their names, their modules and their options. Imports no torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.parsers import amount, literal, one_of, positive_int, switch, whole_number
from pytest_ddpperf.strategies.combinations import (
    ddp_options,
    distributed_data_parallel_options,
    fsdp1_options,
    fsdp1_ranks,
    whole_replicas,
)
from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.strategy import Strategy, added, parse

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import RankView

_PACKAGE = __name__.rpartition(".")[0]
_NONE: Mapping[str, Callable[..., Any]] = {}
_DTYPE = one_of("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class StrategyRow:
    """One row of the table.

    Attributes:
        name: what a test calls it.
        description: one line for a reader who chooses.
        options: the parser of each option's value, by name; the strategy's function has the defaults.
        by_block: whether it treats the model's repeated blocks one by one, and is given them as ``blocks``.
        single_rank: whether it is only right for a world size of 1.
        conflict: returns what is wrong with some options together, and the cure, or None.
        misfit: returns what is wrong with options at a world size, and the cure, or None.
    """

    name: str
    description: str
    options: Mapping[str, Callable[[object], Any]] = field(default_factory=dict)
    by_block: bool = False
    single_rank: bool = False
    conflict: Callable[[Mapping[str, Any]], str | None] | None = None
    misfit: Callable[[Mapping[str, Any], int], str | None] | None = None

    @property
    def module(self) -> str:
        """Where ``parallelise(module, ctx, **options) -> Parallel`` is; imported on the ranks only."""
        return f"{_PACKAGE}.{self.name}"


_DDP_OPTIONS: Mapping[str, Callable[[object], Any]] = {
    "bucket_cap_mb": amount,
    "static_graph": switch,
    "gradient_as_bucket_view": switch,
    "find_unused_parameters": switch,
    "broadcast_buffers": switch,
}

_SHARDING_OPTIONS: Mapping[str, Callable[[object], Any]] = {
    "cpu_offload": switch,
    "param_dtype": _DTYPE,
    "reduce_dtype": _DTYPE,
    "replicas": positive_int,
}

STRATEGIES: Mapping[str, StrategyRow] = {
    row.name: row
    for row in (
        StrategyRow("single", "no synchronisation: one rank on its own", single_rank=True),
        StrategyRow("naive", "a blocking all-reduce for each gradient after backward"),
        StrategyRow("flat", "one all-reduce of all gradients after backward"),
        StrategyRow("overlap", "each gradient all-reduced as soon as it is accumulated"),
        StrategyRow(
            "overlap_coalesced", "as overlap, with small neighbours sent together", options={"coalesce_mb": amount}
        ),
        StrategyRow(
            "bucketed",
            "gradients are views of persistent buckets, all-reduced while backward goes on",
            options={"bucket_cap_mb": amount, "first_bucket_mb": amount},
        ),
        StrategyRow(
            "ddp",
            "torch's DistributedDataParallel: buckets that overlap with backward",
            options={
                **_DDP_OPTIONS,
                "comm_hook": one_of("fp16", "bf16", "powersgd", "post_local_sgd"),
                "powersgd_rank": positive_int,
                "powersgd_start": whole_number,
                "local_sgd_start": whole_number,
                "local_sgd_period": positive_int,
            },
            conflict=ddp_options,
        ),
        StrategyRow(
            "zero1",
            "torch's ZeroRedundancyOptimizer over DistributedDataParallel: the optimizer's state is sharded",
            options={**_DDP_OPTIONS, "parameters_as_bucket_view": switch},
            conflict=distributed_data_parallel_options,
        ),
        StrategyRow(
            "fsdp1",
            "torch's FullyShardedDataParallel, wrapped by block",
            options={
                "sharding": one_of("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"),
                "use_orig_params": switch,
                **_SHARDING_OPTIONS,
            },
            by_block=True,
            conflict=fsdp1_options,
            misfit=fsdp1_ranks,
        ),
        StrategyRow(
            "fsdp2",
            "torch's fully_shard, by block",
            options={"reshard_after_forward": switch, **_SHARDING_OPTIONS},
            by_block=True,
            misfit=whole_replicas,
        ),
    )
}

ALIASES: Mapping[str, str] = {
    "ddp_individual": "overlap",
    "ddp_individual_v2": "overlap_coalesced",
    "ddp_bucketed": "bucketed",
}

OPTION_ALIASES: Mapping[tuple[str, str], str] = {("fsdp1", "sharding_strategy"): "sharding"}


def row_of(strategy: Strategy, more: Iterable[str] = ()) -> StrategyRow:
    """The table's row of a strategy, or a row for one that brings its own function."""
    if strategy.function is not None:
        return StrategyRow(strategy.name, "a strategy of the user's own")
    row = STRATEGIES.get(ALIASES.get(strategy.name, strategy.name))
    if row is None:
        raise SettingError(
            f"strategy {strategy.name!r} is unknown: {_closest(strategy.name, [*STRATEGIES, *ALIASES, *more])}"
            f"known strategies: {', '.join(sorted([*STRATEGIES, *more]))}"
        )
    return row


def resolve(given: str | Strategy | Callable[..., Any], more: Mapping[str, Callable[..., Any]] = _NONE) -> Strategy:
    """The strategy that a test means, by the table's name, with checked and parsed options."""
    if not isinstance(given, (str, Strategy)) and not callable(given):
        raise SettingError(
            f"strategy={given!r}: expected a name such as 'ddp', a Strategy, or a function parallelise(module, ctx)"
        )
    strategy = given if isinstance(given, Strategy) else parse(given) if isinstance(given, str) else Strategy(given)
    if strategy.function is not None:
        return strategy
    if strategy.name in more:
        return added(strategy.name, more[strategy.name], {name: literal(raw) for name, raw in strategy.options.items()})
    row = row_of(strategy, more)
    parsed = {}
    for said, raw in strategy.options.items():
        name = OPTION_ALIASES.get((row.name, said), said)
        if name not in row.options:
            raise SettingError(f"strategy {strategy}: {row.name} has no option {said}; {_options_of(row, said)}")
        try:
            parsed[name] = row.options[name](raw)
        except ValueError as error:
            raise SettingError(f"strategy {strategy}: {said}={raw}: expected {error}") from None
    wrong = row.conflict(parsed) if row.conflict is not None else None
    if wrong is not None:
        raise SettingError(f"strategy {strategy}: {wrong}")
    return Strategy(row.name, **parsed)


def require_world_size(strategy: Strategy, world_size: int) -> None:
    """Raises a SettingError if a strategy or its options do not support a number of ranks."""
    row = row_of(strategy)
    if row.single_rank and world_size != 1:
        raise SettingError(
            f"strategy {strategy.name!r} does not synchronise and needs world size 1, but the world size is "
            f"{world_size}: use world_size=1, or a strategy that synchronises, such as 'ddp'"
        )
    wrong = row.misfit(strategy.options, world_size) if row.misfit is not None else None
    if wrong is not None:
        raise SettingError(f"strategy {strategy}: {wrong}")


def modules_of(strategy: Strategy | None) -> tuple[str, ...]:
    """The name of the module that ranks import for a strategy; none for a function, or a user's step."""
    return () if strategy is None or strategy.function is not None else (row_of(strategy).module,)


def parallelise(
    strategy: str | Strategy, module: nn.Module, ctx: RankView, blocks: Sequence[nn.Module] = ()
) -> Parallel:
    """Makes the module ready for this rank by a strategy, as ``resolve`` takes it.

    ``blocks`` are the modules inside ``module`` that a sharding strategy treats one by one.
    """
    resolved = resolve(strategy)
    require_world_size(resolved, ctx.world_size)
    row = row_of(resolved)
    function = resolved.function or import_module(row.module).parallelise
    by_block = {"blocks": tuple(blocks)} if row.by_block else {}
    parallel = function(module, ctx, **by_block, **resolved.options)
    if not isinstance(parallel, Parallel):
        kind = "None" if parallel is None else f"a {type(parallel).__name__}"
        raise SettingError(f"strategy {resolved} gave {kind}: give back a pytest_ddpperf.Parallel(module, synchronise)")
    return parallel


def _options_of(row: StrategyRow, said: str) -> str:
    if not row.options:
        return "it takes none"
    return f"{_closest(said, row.options)}it takes {', '.join(sorted(row.options))}"


def _closest(word: str, known: Iterable[str]) -> str:
    closest = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f"did you mean {closest[0]!r}? " if closest else ""
