"""The table of strategies, with their modules and options. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.parsers import amount, closest, literal, one_of, positive_int, switch, whole_number
from pytest_ddpperf.strategies.strategy import Parallel, RankView, Strategy, added, parse

if TYPE_CHECKING:
    from torch import nn

_PACKAGE = __name__.rpartition(".")[0]
NO_MORE: Mapping[str, Callable[..., Any]] = {}
_HOOK_OF = {
    "powersgd_rank": "powersgd",
    "powersgd_start": "powersgd",
    "local_sgd_start": "post_local_sgd",
    "local_sgd_period": "post_local_sgd",
}
_EARLIEST_POWERSGD = 2  # DDP rebuilds its buckets after the first step, and PowerSGD remembers their layout
_DTYPE = one_of("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True)
class StrategyRow:
    """A strategy of the table: its name, options and checks."""

    name: str
    description: str  # one line for a reader who chooses
    _: KW_ONLY
    options: Mapping[str, Callable[[object], Any]] = field(default_factory=dict)  # each option's parser
    by_block: bool = False  # whether it treats the model's repeated blocks one by one, and is given them as ``blocks``
    file: str = "handwritten"  # the module with the function of that name
    single_rank: bool = False  # whether it is only right for a world size of 1
    after_backward: bool = False  # whether it sends nothing before backward has ended
    reads_values: bool = False  # whether code of torch's in C++ reads tensors, which therefore cannot be fake ones
    # They return what is wrong with some options together, or at a world size, and the cure, or None.
    conflict: Callable[[Mapping[str, Any]], str | None] | None = None
    misfit: Callable[[Mapping[str, Any], int], str | None] | None = None

    @property
    def module(self) -> str:
        """Returns the name of the module that implements the strategy; only ranks import this module."""
        return f"{_PACKAGE}.{self.file}"


def _ddp_options(options: Mapping[str, Any]) -> str | None:
    """Returns an error message if an option of a communication hook is given without the hook, or has a wrong value."""
    hook = options.get("comm_hook")
    for name, needed in _HOOK_OF.items():
        if name in options and hook != needed:
            chosen = "no hook is chosen" if hook is None else f"comm_hook={hook} is chosen"
            return f"{name} is an option of comm_hook={needed}, and {chosen}: add comm_hook={needed}, or drop {name}"
    start = options.get("powersgd_start", _EARLIEST_POWERSGD)
    if start < _EARLIEST_POWERSGD:
        return (
            f"powersgd_start={start}: DDP lays its buckets out again after the first step, so PowerSGD can begin after "
            f"{_EARLIEST_POWERSGD} steps at the earliest: use powersgd_start={_EARLIEST_POWERSGD} or more"
        )
    if options.get("local_sgd_period") == 1:
        return (
            "local_sgd_period=1 averages the parameters after every step, which costs as much as to average the "
            "gradients: use 2 or more, or ddp without a hook"
        )
    return _distributed_data_parallel_options(options)


def _distributed_data_parallel_options(options: Mapping[str, Any]) -> str | None:
    """Returns an error message if both static_graph and find_unused_parameters are set."""
    if options.get("static_graph") and options.get("find_unused_parameters"):
        return "static_graph=true finds unused parameters by itself: drop find_unused_parameters"
    return None


def _fsdp1_options(options: Mapping[str, Any]) -> str | None:
    """Returns an error message if only one of ``replicas`` and hybrid sharding is given: each needs the other."""
    hybrid = options.get("sharding") == "HYBRID_SHARD"
    if hybrid and "replicas" not in options:
        return "sharding=HYBRID_SHARD needs the number of copies of the model: add replicas=2, for example"
    if "replicas" in options and not hybrid:
        return "replicas is an option of sharding=HYBRID_SHARD: add that, or drop replicas"
    return None


def _fsdp1_ranks(options: Mapping[str, Any], world_size: int) -> str | None:
    """Returns an error message if FSDP1 cannot train with the option ``replicas`` on this number of ranks."""
    replicas = options.get("replicas")
    if replicas is not None and replicas == world_size > 1:
        return (
            f"replicas={replicas} with world size {world_size} gives each copy only one rank, and then FSDP1 "
            "synchronises nothing: use fewer replicas, or sharding=NO_SHARD"
        )
    return _whole_replicas(options, world_size)


def _whole_replicas(options: Mapping[str, Any], world_size: int) -> str | None:
    """Returns a message if ``world_size`` ranks cannot form ``options["replicas"]`` equal replicas, else None."""
    replicas = options.get("replicas")
    if replicas is not None and world_size % replicas:
        return (
            f"replicas={replicas} does not divide world size {world_size}: each copy of the model needs the same "
            "number of ranks"
        )
    return None


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
        StrategyRow("naive", "a blocking all-reduce for each gradient after backward", after_backward=True),
        StrategyRow("flat", "one all-reduce of all gradients after backward", after_backward=True),
        StrategyRow("overlap", "each gradient all-reduced as soon as it is accumulated"),
        StrategyRow(
            "overlap_coalesced", "as overlap, with small gradients sent together", options={"coalesce_mb": amount}
        ),
        StrategyRow(
            "bucketed",
            "gradients are views of persistent buckets, which are all-reduced while backward goes on",
            options={"bucket_cap_mb": amount, "first_bucket_mb": amount},
        ),
        StrategyRow(
            "ddp",
            "torch's DistributedDataParallel: buckets that overlap with backward",
            file="ddp",
            options={
                **_DDP_OPTIONS,
                "comm_hook": one_of("fp16", "bf16", "powersgd", "post_local_sgd"),
                "powersgd_rank": positive_int,
                "powersgd_start": whole_number,
                "local_sgd_start": whole_number,
                "local_sgd_period": positive_int,
            },
            conflict=_ddp_options,
            reads_values=True,
        ),
        StrategyRow(
            "zero1",
            "torch's ZeroRedundancyOptimizer over DistributedDataParallel: the optimizer's state is sharded",
            file="zero1",
            options={**_DDP_OPTIONS, "parameters_as_bucket_view": switch},
            conflict=_distributed_data_parallel_options,
            reads_values=True,
        ),
        StrategyRow(
            "fsdp1",
            "torch's FullyShardedDataParallel, wrapped by block",
            file="fsdp1",
            options={
                "sharding": one_of("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD"),
                "use_orig_params": switch,
                **_SHARDING_OPTIONS,
            },
            by_block=True,
            conflict=_fsdp1_options,
            misfit=_fsdp1_ranks,
        ),
        StrategyRow(
            "fsdp2",
            "torch's fully_shard, by block",
            file="fsdp2",
            options={"reshard_after_forward": switch, **_SHARDING_OPTIONS},
            by_block=True,
            misfit=_whole_replicas,
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
    """Returns the strategy's row of the table, or a new row for a user's function.

    The error for an unknown name lists the names in the table and in ``more``.
    """
    if strategy.function is not None:
        return StrategyRow(strategy.name, "a strategy of the user's own")
    row = STRATEGIES.get(ALIASES.get(strategy.name, strategy.name))
    if row is None:
        raise SettingError(
            f"strategy {strategy.name!r} is unknown: {_closest(strategy.name, [*STRATEGIES, *ALIASES, *more])}"
            f"known strategies: {', '.join(sorted([*STRATEGIES, *more]))}"
        )
    return row


def resolve(given: str | Strategy | Callable[..., Any], more: Mapping[str, Callable[..., Any]] = NO_MORE) -> Strategy:
    """Returns the strategy that a user has given as a name or function, with parsed options.

    ``more``: functions of strategies outside of the table, by name. Raises a SettingError for a wrong name or option.
    """
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
            known = f"{_closest(said, row.options)}it takes {', '.join(sorted(row.options)) or 'none'}"
            raise SettingError(f"strategy {strategy}: {row.name} has no option {said}; {known}")
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
            f"strategy {strategy.name!r} does not synchronise gradients, so it needs world_size=1, but world_size is "
            f"{world_size}: use 1, or a strategy that synchronises, such as 'ddp'"
        )
    wrong = row.misfit(strategy.options, world_size) if row.misfit is not None else None
    if wrong is not None:
        raise SettingError(f"strategy {strategy}: {wrong}")


def modules_of(strategy: Strategy | None) -> tuple[str, ...]:
    """Returns the Python modules that ranks import for a strategy; empty for a user's function or step."""
    return () if strategy is None or strategy.function is not None else (row_of(strategy).module,)


def parallelise(
    strategy: str | Strategy, module: nn.Module, ctx: RankView, blocks: Sequence[nn.Module] = ()
) -> Parallel:
    """Wraps or changes the module for this rank as a strategy requires.

    ``blocks`` are the modules inside ``module`` that a sharding strategy shards one by one.
    """
    resolved = resolve(strategy)
    require_world_size(resolved, ctx.world_size)
    row = row_of(resolved)
    function = resolved.function or getattr(import_module(row.module), row.name)
    by_block = {"blocks": tuple(blocks)} if row.by_block else {}
    parallel = function(module, ctx, **by_block, **resolved.options)
    if not isinstance(parallel, Parallel):
        kind = "None" if parallel is None else f"a {type(parallel).__name__}"
        raise SettingError(f"strategy {resolved} returned {kind}: return a pytest_ddpperf.Parallel(module, ...)")
    return parallel


def _closest(word: str, known: Iterable[str]) -> str:
    hint = closest(word.lower(), known)
    return f"{hint} " if hint else ""
