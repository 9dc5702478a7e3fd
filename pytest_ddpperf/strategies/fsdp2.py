"""torch's fully_shard (FSDP2): gathers a unit's parameters when the unit runs, and scatters its gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from pytest_ddpperf.errors import RankSkipped
from pytest_ddpperf.strategies import sharding
from pytest_ddpperf.strategies.replicas import replicate, whole
from pytest_ddpperf.strategies.strategy import Parallel, RankView


def fsdp2(
    module: nn.Module,
    ctx: RankView,
    *,
    blocks: Sequence[nn.Module] = (),
    reshard_after_forward: bool | None = None,
    cpu_offload: bool = False,
    param_dtype: str | None = None,
    reduce_dtype: str | None = None,
    replicas: int | None = None,
) -> Parallel:
    """Shards the module in place by FSDP2; each module in ``blocks`` is a unit, and so is the rest of the model.

    Parameters become DTensors with the same names. All ranks have to use the same parameters in a step.
    """
    if cpu_offload:
        sharding.require_gpu("fsdp2", ctx)
    # Before 2.7 its streams on the CPU lack methods, and autograd refuses its copies.
    if ctx.device.type == "cpu" and not hasattr(torch.cpu.Stream, "record_event"):
        reason = f"strategy fsdp2 on the CPU needs torch 2.7 or newer, and this is {torch.__version__}"
        raise RankSkipped(f"{reason}: use fsdp1, a newer torch, or device=cuda")
    units = sharding.units_of(module, blocks, "fsdp2")
    replicate(module, ctx)  # fully_shard takes each rank's shard from its own values
    mesh = sharding.shard_mesh(ctx, replicas)
    precision = MixedPrecisionPolicy(
        param_dtype=sharding.DTYPES[param_dtype], reduce_dtype=sharding.DTYPES[reduce_dtype]
    )
    offload = CPUOffloadPolicy() if cpu_offload else OffloadPolicy()
    reshards: Any = {} if reshard_after_forward is None else {"reshard_after_forward": reshard_after_forward}
    for unit in units:
        fully_shard(unit, mesh=mesh, **reshards, mp_policy=precision, offload_policy=offload)
    inner, frees_root = len(units) > 1, torch.__version__ >= "2.8"  # before, the outermost module stays whole
    resharded = inner if reshard_after_forward is None else reshard_after_forward and (inner or frees_root)
    clip = partial(_clip_offloaded, mesh=mesh, device=ctx.device) if cpu_offload else _clip
    return Parallel(
        module,
        no_sync=partial(_no_sync, module),
        unsynchronised=sharding.gradients_kept,
        still_sent=sharding.still_sent(resharded=resharded) if ctx.world_size > 1 else "",
        clip_grad_norm=partial(clip, module),
        # torch.amp.GradScaler asks all ranks when gradients are DTensors, but NCCL cannot when they are on the CPU.
        make_scaler=partial(ShardScaler, ctx.device.type, process_group=dist.group.WORLD) if cpu_offload else None,
        gradients=partial(_gradients, module, ctx.device),
        parameters=lambda: {name: _whole(parameter, ctx.device) for name, parameter in _sharded(module)},
        precision=sharding.narrowest(param_dtype, reduce_dtype),
    )


@contextmanager
def _no_sync(module: nn.Module) -> Iterator[None]:
    """Lets backward add up full gradients on this rank; the next backward outside of this context reduces the sums."""
    assert isinstance(module, FSDPModule)  # noqa: S101  fully_shard has made it one
    module.set_is_last_backward(False)
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)
        module.set_is_last_backward(True)


def _clip(module: nn.Module, max_norm: float) -> Tensor:
    norm = torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


@torch.no_grad()
def _clip_offloaded(module: nn.Module, max_norm: float, *, mesh: DeviceMesh, device: torch.device) -> Tensor:
    """Clips offloaded gradients to a global norm; the GPU adds up the shards' norms, because NCCL needs a GPU."""
    shards = _gradient_shards(module.parameters())
    square = torch.nn.utils.get_total_norm(shards).square().to(device)
    dist.all_reduce(square, group=mesh.get_group("shard"))
    norm = square.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as in clip_grad_norm_
    for shard in shards:
        shard.mul_(factor.to(shard.device))
    return norm


class ShardScaler(sharding.OffloadedScaler):
    """A gradient scaler that checks this rank's shards for overflow, and all-reduces the result on the GPU."""

    def _unscale_grads_(self, optimizer: Any, *args: Any, **kwargs: Any) -> dict[torch.device, Tensor]:
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        shards = [SimpleNamespace(grad=shard) for shard in _gradient_shards(parameters)]
        local = SimpleNamespace(param_groups=[{"params": shards}])
        return super()._unscale_grads_(local, *args, **kwargs)


def _gradient_shards(parameters: Any) -> list[Tensor]:
    """Returns this rank's shards of the gradients; changing these shards in place changes the parameters' gradients."""
    return [parameter.grad.to_local() for parameter in parameters if parameter.grad is not None]


def _gradients(module: nn.Module, device: torch.device) -> dict[str, Tensor | None]:
    return {
        name: None if parameter.grad is None else _whole(parameter.grad, device) for name, parameter in _sharded(module)
    }


def _sharded(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yields each parameter's name and shard, after releasing parameters that a forward pass has gathered."""
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            unit.reshard()
    return module.named_parameters()


def _whole(tensor: Tensor, device: torch.device) -> Tensor:
    """Gathers a DTensor into a plain, full tensor on the CPU; offloaded shards go through the GPU, which NCCL needs."""
    return whole(tensor.detach().to(device))
