"""Options of a strategy that exclude each other, or do not fit a number of ranks. Imports no torch.

Each function returns what is wrong and the cure, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OF_HOOK = {
    "powersgd_rank": "powersgd",
    "powersgd_start": "powersgd",
    "local_sgd_start": "post_local_sgd",
    "local_sgd_period": "post_local_sgd",
}
_EARLIEST_POWERSGD = 2  # DDP rebuilds its buckets after the first step, and PowerSGD remembers their layout


def ddp_options(options: Mapping[str, Any]) -> str | None:
    """An option of a communication hook needs that hook, and a value that the hook supports."""
    hook = options.get("comm_hook")
    for name, needed in _OF_HOOK.items():
        if name in options and hook != needed:
            chosen = "no hook is chosen" if hook is None else f"comm_hook={hook} is chosen"
            return f"{name} is an option of comm_hook={needed}, and {chosen}: add comm_hook={needed}, or drop {name}"
    start = options.get("powersgd_start", _EARLIEST_POWERSGD)
    if start < _EARLIEST_POWERSGD:
        return (
            f"powersgd_start={start}: DDP lays its buckets out anew after the first step, so PowerSGD can begin after "
            f"{_EARLIEST_POWERSGD} steps at the earliest: use powersgd_start={_EARLIEST_POWERSGD} or more"
        )
    if options.get("local_sgd_period") == 1:
        return (
            "local_sgd_period=1 averages the parameters after every step, which costs as much as to average the "
            "gradients: use 2 or more, or ddp without a hook"
        )
    return distributed_data_parallel_options(options)


def distributed_data_parallel_options(options: Mapping[str, Any]) -> str | None:
    """A static graph finds its unused parameters by itself; torch warns of both options together."""
    if options.get("static_graph") and options.get("find_unused_parameters"):
        return "static_graph=true finds unused parameters by itself: drop find_unused_parameters"
    return None


def fsdp1_options(options: Mapping[str, Any]) -> str | None:
    """Copies of the model and hybrid sharding need each other."""
    hybrid = options.get("sharding") == "HYBRID_SHARD"
    if hybrid and "replicas" not in options:
        return "sharding=HYBRID_SHARD needs the number of copies of the model: add replicas=2, for example"
    if "replicas" in options and not hybrid:
        return "replicas is an option of sharding=HYBRID_SHARD: add that, or drop replicas"
    return None


def fsdp1_ranks(options: Mapping[str, Any], world_size: int) -> str | None:
    """Copies must have equally many ranks, and more than one, or torch leaves out the sum over the copies."""
    replicas = options.get("replicas")
    if replicas is not None and replicas == world_size > 1:
        return (
            f"replicas={replicas} with world size {world_size} leaves one rank for each copy, and then FSDP1 "
            "synchronises nothing: use fewer replicas, or sharding=NO_SHARD"
        )
    return whole_replicas(options, world_size)


def whole_replicas(options: Mapping[str, Any], world_size: int) -> str | None:
    """Copies of the model must have equally many ranks."""
    replicas = options.get("replicas")
    if replicas is not None and world_size % replicas:
        return (
            f"replicas={replicas} does not divide world size {world_size}: each copy of the model needs equally many "
            "ranks"
        )
    return None
