"""Code that FSDP1 and FSDP2 share: units, meshes, types, and checks of options that torch checks late or never."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.torch_internals import replaced
from pytest_ddpperf.strategies.strategy import Precision, RankView

DTYPES = {None: None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}  # None: as they are
_NARROWING: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")  # by the bits of the fraction: 23, 10, 10, 7


def still_sent(*, resharded: bool) -> str:
    """Describes what FSDP sends in a step without averaging; if ``resharded``, backward gathers parameters again."""
    return "the parameters that are gathered for forward" + (" and again for backward" if resharded else "")


def narrowest(*names: str | None) -> Precision:
    """Returns the least precise of the named types; fp32 if all names are None."""
    given = [precision for precision in _NARROWING if precision in names]
    return given[-1] if given else "fp32"


def shard_mesh(ctx: RankView, replicas: int | None) -> DeviceMesh:
    """Returns FSDP's device mesh: one row of all ranks, or with ``replicas`` one row for each copy of the model.

    The device is given explicitly, because torch would use the machine's accelerator even if ranks compute on the CPU.
    """
    if replicas is None:  # init_device_mesh before torch 2.11 takes NCCL on a GPU where ranks talk by gloo
        world: Any = dist.group.WORLD
        return DeviceMesh.from_group(world, ctx.device.type, mesh_dim_names=("shard",))
    shape = (replicas, ctx.world_size // replicas)
    return init_device_mesh(ctx.device.type, shape, mesh_dim_names=("replicate", "shard"))


class OffloadedScaler(ShardedGradScaler):
    """A gradient scaler for shards that lie on the CPU, which misses no overflow in them.

    torch, up to 2.13 at least, copies the flag of an overflow to the CPU without waiting. This copy may overwrite a
    flag that was just set on the CPU (pytorch/pytorch#176429). This scaler does not copy tensors that are on the CPU.
    """

    def _unscale_grads_(
        self, optimizer: Any, inv_scale: Tensor, found_inf: Tensor, *args: Any, **kwargs: Any
    ) -> dict[torch.device, Tensor]:
        found: dict[torch.device, Tensor] = super()._unscale_grads_(
            optimizer, inv_scale.cpu(), found_inf.cpu(), *args, **kwargs
        )
        return found


def require_gpu(strategy: str, ctx: RankView) -> None:
    """Raises a SettingError for CPU offloading without a GPU, because torch's pinned memory needs a GPU."""
    if ctx.device.type == "cpu":
        reason = f"{strategy}[cpu_offload=true] needs GPUs, but these ranks compute on the CPU"
        raise SettingError(f"{reason}: leave cpu_offload out, or use device=cuda")


def units_of(module: nn.Module, blocks: Sequence[nn.Module], strategy: str) -> tuple[nn.Module, ...]:
    """Returns the modules to shard one by one: first the blocks, inner before outer ones, and last the whole module.

    Raises a SettingError if units share a parameter, because each unit would train a separate copy without a warning.
    """
    chosen = {module, *blocks}
    units = tuple(inside for inside in reversed(list(module.modules())) if inside in chosen)
    homes: dict[nn.Parameter, str] = {}
    for unit, parameters in parameters_of_units(module, units).items():
        for name, parameter in parameters:
            home = homes.setdefault(parameter, unit)
            if home != unit:
                raise SettingError(
                    f"{strategy} cannot shard {home or 'the rest of the model'} and {unit or 'the rest of the model'} "
                    f"separately, because they share the parameter {name}: choose blocks that share no parameter, or "
                    "give Workload(blocks=lambda model: [])"
                )
    return units


def parameters_of_units(module: nn.Module, units: Sequence[nn.Module]) -> dict[str, list[tuple[str, nn.Parameter]]]:
    """Returns the names and parameters of each unit, without the parameters of units inside it."""
    names = {inside: name for name, inside in module.named_modules() if inside in units}
    found: dict[str, dict[nn.Parameter, str]] = {names[unit]: {} for unit in units}
    homes: dict[str, str] = {}  # the name of the unit of each module
    for path, inside in module.named_modules(remove_duplicate=False):
        homes[path] = names.get(inside) or homes.get(path.rpartition(".")[0], "")
        for name, parameter in inside.named_parameters(recurse=False):
            found[homes[path]].setdefault(parameter, f"{path}.{name}".lstrip("."))
    return {unit: [(name, parameter) for parameter, name in own.items()] for unit, own in found.items()}


@contextmanager
def gradients_kept() -> Iterator[None]:
    """Skips FSDP's reduction of gradients in this context: each shard then holds gradients of this rank alone.

    FSDP's own ``no_sync`` keeps whole gradients, with which the optimizer of the shards cannot step.
    """
    modules: list[Any] = [sys.modules[name] for name in _SENDERS if name in sys.modules]
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(replaced(module, "dist", SimpleNamespace(**{**vars(dist), **_SILENCED})))
        yield


def _own_chunk(output: Tensor, input: Tensor, *_args: object, **_kwargs: object) -> None:  # noqa: A002  torch's name
    output.copy_(input.reshape(-1)[: output.numel()].view_as(output))  # any chunk will do


_SENDERS = ("torch.distributed.fsdp._runtime_utils", "torch.distributed.fsdp._fully_shard._fsdp_collectives")
# The functions that add gradients up, by the names of all supported torch versions.
_SILENCED: dict[str, Callable[..., None]] = {
    "reduce_scatter_single": _own_chunk,
    "reduce_scatter_tensor": _own_chunk,
    "all_reduce": lambda *_args, **_kwargs: None,
}
