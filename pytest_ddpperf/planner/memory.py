"""Computes the bytes of training state on a rank, as ZeRO and FSDP define it."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_ddpperf.analysis.inputs import require_one_of, require_ranks
from pytest_ddpperf.planner.costs import hybrid_nodes

_LIKE = {"NO_SHARD": "none", "SHARD_GRAD_OP": "zero2", "FULL_SHARD": "zero3", "HYBRID_SHARD": "zero3"}  # FSDP's names
SHARDED: Mapping[str, tuple[bool, bool, bool]] = {
    "none": (False, False, False),
    "zero1": (False, False, True),
    "zero2": (False, True, True),
    "zero3": (True, True, True),
}
"""Whether parameters, gradients and optimizer states are sharded over the ranks."""

PRECISIONS: Mapping[str, tuple[float, float, float, float]] = {
    "fp32": (4, 4, 0, 4),
    "autocast": (4, 4, 0, 4),
    "mixed": (2, 2, 4, 4),
    "bf16": (2, 2, 0, 2),
}
"""Bytes of a parameter, of its gradient, of a master copy, and of each state of the optimizer.

``mixed`` is ZeRO's: a copy in half precision and a master copy in fp32. ``autocast`` is torch.amp's, whose parameters
and gradients stay in fp32; its temporary casts are not included.
"""
STATES: Mapping[str, int] = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}


def model_state_bytes(
    parameters: int,
    world_size: int,
    sharding: str = "none",
    optimizer: str = "adam",
    precision: str = "mixed",
    *,
    ddp_buckets: bool = False,
    unsharded_gradients: bool = False,
    ranks_per_node: int | None = None,
) -> float:
    """Returns bytes of parameters, gradients and optimizer states on a rank (Rajbhandari et al. 2020, section 5).

    7.5e9 parameters with Adam in mixed precision over 64 ranks take 120 GB, 31.4 GB (zero1), 16.6 GB (zero2) and 1.9 GB
    (zero3). Activations, temporary buffers and units that FSDP has gathered are not included.

    Args:
        parameters: number of parameters.
        world_size: number of ranks.
        sharding: none, zero1, zero2 or zero3; or FSDP's names NO_SHARD, SHARD_GRAD_OP, FULL_SHARD, and HYBRID_SHARD,
            which is zero3 over the ranks of a node.
        optimizer: sgd, momentum, adam or adamw.
        precision: mixed, fp32, autocast or bf16.
        ddp_buckets: whether DDP has buckets in addition to gradients, as without ``gradient_as_bucket_view``.
        unsharded_gradients: whether FSDP accumulates whole gradients under ``no_sync``, in addition to its shards.
        ranks_per_node: number of ranks of a node, for HYBRID_SHARD.
    """
    count, n = require_ranks("parameters", parameters, least=0), require_ranks("world_size", world_size)
    require_one_of("sharding", sharding, (*SHARDED, *_LIKE))
    shared = SHARDED[_LIKE.get(sharding, sharding)]
    n //= hybrid_nodes(sharding, n, ranks_per_node)
    parameter, gradient, master, state = PRECISIONS[require_one_of("precision", precision, PRECISIONS)]
    states = master + state * STATES[require_one_of("optimizer", optimizer, STATES)]
    each = (parameter, gradient, states)
    extra = gradient * (ddp_buckets + (unsharded_gradients and shared[1]))
    return count * (extra + sum(part / n if split else part for part, split in zip(each, shared, strict=True)))
