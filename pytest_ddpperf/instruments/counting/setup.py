"""Finds wrappers, checkpoints and optimizers, their settings that are not the default, and the code that made them."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.distributed._composable_state import _get_module_state
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper
from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint

from pytest_ddpperf.instruments.counting.sites import Place, Stack, made_at
from pytest_ddpperf.instruments.torch_internals import backward_under_way, replaced, uncompiled
from pytest_ddpperf.records.sites import CHECKPOINT, SETTINGS, part_of

_NOWHERE = Place("", 0, "", backward=False)
_OFF_IN_DDP = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph")
_OF_DDP = {"broadcast_buffers": True, **dict.fromkeys(_OFF_IN_DDP, False)}
"""Settings and their defaults."""
_BUCKET = 25.0  # MiB of DDP's buckets, if nothing is said
_OF_FSDP1 = {"limit_all_gathers": True, "forward_prefetch": False, "_use_orig_params": False}
_DTYPES = ("param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype")
_SIMPLE = (bool, int, float, str, tuple)
_FRAMES = 12  # between a checkpoint and the module that wraps what it recomputes


@contextmanager
def checkpoints_seen(seen: Callable[[str, str, Place], None]) -> Iterator[None]:
    """Calls ``seen``, in this context, for each activation checkpoint in forward, with the line that created it."""
    stack = Stack()

    def followed(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if backward_under_way() == -1:
                seen(SETTINGS, CHECKPOINT, _wrapped_at() or stack.place())
            return function(*args, **kwargs)

        return uncompiled(call)

    frame: Any = checkpoint._CheckpointFrame  # noqa: SLF001  it has no public name
    reentrant: Any = checkpoint.CheckpointFunction
    begin, forward = followed(frame.__init__), staticmethod(followed(reentrant.forward))
    with replaced(frame, "__init__", begin), replaced(reentrant, "forward", forward):
        yield


def _wrapped_at() -> Place | None:
    """Returns the line that made the CheckpointWrapper around the running checkpoint; None without a wrapper."""
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  inspect is much slower
    for _ in range(_FRAMES):
        if frame is not None and frame.f_code is CheckpointWrapper.forward.__code__:
            return made_at(frame.f_locals.get("self"))
        frame = frame and frame.f_back
    return None


def settings_of(models: Iterable[nn.Module], optimizers: Iterable[torch.optim.Optimizer]) -> Counter[tuple[str, Place]]:
    """Counts wrappers, optimizers, and settings that differ from the default, by name and by line of code."""
    found, known = Counter[tuple[str, Place]](), set[int]()
    for module in dict.fromkeys(each for model in models for each in model.modules()):
        owner, kind, settings = _of_module(module)
        if kind and id(owner) not in known:
            known.add(id(owner))
            found.update(_parts(owner, kind, settings))
    for optimizer in optimizers:
        found.update(_parts(optimizer, f"optimizer {type(optimizer).__name__}", _of_optimizer(optimizer)))
    return found


def _parts(owner: object, kind: str, settings: Mapping[str, object]) -> list[tuple[str, Place]]:
    place = made_at(owner) or _NOWHERE
    told = {name: str(value).removeprefix("torch.") for name, value in settings.items()}
    return [(kind, place), *((part_of(kind, name, value), place) for name, value in told.items())]


def _of_module(module: nn.Module) -> tuple[object, str, Mapping[str, object]]:
    """Returns a module's DDP or FSDP wrapper, its name in counts and its settings; (None, "", {}) without a wrapper."""
    if isinstance(module, DistributedDataParallel):
        return module, "DistributedDataParallel", _of_ddp(module)
    if type(module).__name__ == "FullyShardedDataParallel":
        return module, f"FullyShardedDataParallel of {type(module.module).__name__}", _of_fsdp1(module)
    state: Any = _get_module_state(module)
    if not type(state).__name__.startswith("FSDP"):
        return None, "", {}
    return state, f"fully_shard of {type(module).__name__.removeprefix('FSDP')}", _of_fsdp2(state)


def _changed(wrapped: object, defaults: Mapping[str, object]) -> dict[str, object]:
    found = {name: getattr(wrapped, name, default) for name, default in defaults.items()}
    return {name.removeprefix("_"): value for name, value in found.items() if value != defaults[name]}


def _of_ddp(wrapped: Any) -> dict[str, object]:
    settings, size = _changed(wrapped, _OF_DDP), getattr(wrapped, "bucket_bytes_cap", 0) / 2**20
    settings |= {"bucket_cap_mb": f"{round(size, 4):g}"} if size not in {0, _BUCKET} else {}
    hooks = [getattr(hook, "__name__", type(hook).__name__) for hook, _ in wrapped._comm_hooks]  # noqa: SLF001  as above
    return {**settings, **({"comm_hook": hooks[-1]} if hooks else {}), **_dtypes(wrapped.mixed_precision)}


def _of_fsdp1(wrapped: Any) -> dict[str, object]:
    settings, sharding = _changed(wrapped, _OF_FSDP1), wrapped.sharding_strategy.name
    settings |= {"sharding_strategy": sharding} if sharding != "FULL_SHARD" else {}
    return {**settings, **_dtypes(wrapped.mixed_precision)}


def _of_fsdp2(state: Any) -> dict[str, object]:
    settings = _dtypes(state._mp_policy)  # noqa: SLF001  no public reader
    if state._is_root:  # noqa: SLF001  as above
        every = {parameter for module in state._modules for parameter in module.parameters()}  # noqa: SLF001  as above
        units = state._state_ctx.all_states  # noqa: SLF001  as above
        ignored = len(every) - sum(len(group.fsdp_params) for unit in units for group in _groups(unit))
        settings |= {"ignored_params": ignored} if ignored else {}
    for name in ("forward", "backward"):
        prefetched = len(getattr(state, f"_states_to_{name}_prefetch", ()))
        settings |= {f"{name}_prefetch": prefetched} if prefetched else {}
    for group in _groups(state):
        kept, whole = group.post_forward_mesh_info, getattr(group.mesh_info, "shard_mesh_size", 0)
        shape = tuple(group.mesh_info.mesh.shape)
        settings |= {"mesh": shape} if shape != (torch.distributed.get_world_size(),) else {}
        by_itself = state._is_root and getattr(state, "_auto_reshard_after_forward", True)  # noqa: SLF001  as above
        if kept is None and not by_itself:
            settings["reshard_after_forward"] = False
        elif kept is not None and kept.shard_mesh_size != whole:
            settings["reshard_after_forward"] = kept.shard_mesh_size
        offloads = getattr(group.offload_policy, "pin_memory", None) is not None  # the other policy has no such field
        settings |= {"offload_policy": type(group.offload_policy).__name__} if offloads else {}
    return settings


def _groups(state: Any) -> list[Any]:
    """Returns the parameter groups of a unit of ``fully_shard``; torch before 2.13 has one group at most."""
    return [*filter(None, getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group])]  # noqa: SLF001  as above


def _dtypes(policy: Any) -> dict[str, object]:
    return {name: dtype for name in _DTYPES if (dtype := getattr(policy, name, None)) is not None}


def _of_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, object]:
    usual, made = inspect.signature(type(optimizer).__init__).parameters, getattr(optimizer, "defaults", {})
    return {
        name: value
        for name, value in made.items()
        if name != "lr" and isinstance(value, _SIMPLE) and name in usual and usual[name].default != value
    }
