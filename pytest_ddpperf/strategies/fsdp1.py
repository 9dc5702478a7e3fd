"""torch's FullyShardedDataParallel (FSDP1): each unit's parameters lie in one flat parameter, which is sharded."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import CustomPolicy

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.strategies import sharding as shards
from pytest_ddpperf.strategies.replicas import parameters_of, replicate
from pytest_ddpperf.strategies.strategy import Parallel, RankView


def fsdp1(
    module: nn.Module,
    ctx: RankView,
    *,
    blocks: Sequence[nn.Module] = (),
    sharding: str = "FULL_SHARD",
    use_orig_params: bool = True,
    cpu_offload: bool = False,
    param_dtype: str | None = None,
    reduce_dtype: str | None = None,
    replicas: int | None = None,
) -> Parallel:
    """Returns the module wrapped in FSDP1; each module in ``blocks`` is a unit, and so is the rest of the model.

    Without ``use_orig_params``, a unit must not have both frozen and trainable parameters. All ranks have to use the
    same units in a step. If a step uses only some parameters of a unit, the others get gradients of zeros.
    """
    if cpu_offload:
        shards.require_gpu("fsdp1", ctx)
    units = shards.units_of(module, blocks, "fsdp1")
    if not use_orig_params:
        _require_uniform(module, units)
        # FSDP1 splits flat parameters in the stream that gathers them: torch need not warn of it on this rank.
        accept: Any = getattr(torch.autograd.graph, "set_warn_on_accumulate_grad_stream_mismatch", None)
        if accept is not None:
            accept(enabled=False)
    replicate(module, ctx)  # torch's own sync_module_states refuses the CPU
    chosen = set(units) - {module}
    mixed = MixedPrecision(param_dtype=shards.DTYPES[param_dtype], reduce_dtype=shards.DTYPES[reduce_dtype])
    with warnings.catch_warnings():  # of settings that the test has chosen: NO_SHARD, and a single rank
        warnings.filterwarnings("ignore", "The `NO_SHARD` sharding strategy is deprecated", FutureWarning)
        warnings.filterwarnings("ignore", "FSDP is switching to use `NO_SHARD` instead", UserWarning)
        wrapped = FullyShardedDataParallel(
            module,
            sharding_strategy=ShardingStrategy[sharding],
            cpu_offload=CPUOffload(offload_params=True) if cpu_offload else None,
            auto_wrap_policy=CustomPolicy(lambda inside: inside in chosen),
            mixed_precision=mixed if param_dtype or reduce_dtype else None,
            device_id=ctx.device,  # by default torch looks for an accelerator
            use_orig_params=use_orig_params,
            device_mesh=None if replicas is None else shards.shard_mesh(ctx, replicas),
        )
    # The outermost unit keeps its parameters to backward with any sharding.
    resharded = sharding != "SHARD_GRAD_OP" and bool(chosen)
    return Parallel(
        wrapped,
        no_sync=wrapped.no_sync,
        unsynchronised=shards.gradients_kept,
        still_sent=shards.still_sent(resharded=resharded) if ctx.world_size > 1 and sharding != "NO_SHARD" else "",
        clip_grad_norm=wrapped.clip_grad_norm_,
        # torch.amp.GradScaler looks at this rank's shard only, and would skip a step on some ranks only.
        make_scaler=partial(
            shards.OffloadedScaler if cpu_offload else ShardedGradScaler,
            ctx.device.type,
            process_group=dist.group.WORLD,
        ),
        gradients=partial(_gradients, wrapped),
        parameters=partial(_whole, wrapped),
        precision=shards.narrowest(param_dtype, reduce_dtype),
    )


def _require_uniform(module: nn.Module, units: Sequence[nn.Module]) -> None:
    """Raises an error if a unit has frozen and trainable parameters: a flat parameter is all trained or all frozen."""
    for parameters in shards.parameters_of_units(module, units).values():
        trained = {parameter.requires_grad: name for name, parameter in reversed(parameters)}
        if len(trained) > 1:
            raise SettingError(
                f"fsdp1[use_orig_params=false] cannot flatten a trained parameter ({trained[True]}) together with a "
                f"frozen one ({trained[False]}): use use_orig_params=true"
            )


def _whole(wrapped: FullyShardedDataParallel) -> dict[str, Tensor]:
    """Returns the full parameters on the CPU, by their original names and in their original shapes."""
    with FullyShardedDataParallel.summon_full_params(wrapped, writeback=False):
        return parameters_of(wrapped)


@torch.no_grad()
def _gradients(wrapped: FullyShardedDataParallel) -> dict[str, Tensor | None]:
    """Returns the full gradients on the CPU by name; None for a gradient that no rank has.

    torch gathers gradients only with ``use_orig_params``. So this function puts the gradients into the parameters,
    gathers the parameters, and restores them. A second pass finds out which gradients exist on any rank.
    """
    shards = list(wrapped.parameters())
    kept = [shard.detach().clone() for shard in shards]
    try:
        for shard in shards:
            shard.zero_() if shard.grad is None else shard.copy_(shard.grad)
        gradients = _whole(wrapped)
        for shard in shards:
            shard.fill_(shard.grad is not None)
        given = _whole(wrapped)
    finally:
        for shard, value in zip(shards, kept, strict=True):
            shard.copy_(value)
    return {name: gradient if given[name].any() else None for name, gradient in gradients.items()}
