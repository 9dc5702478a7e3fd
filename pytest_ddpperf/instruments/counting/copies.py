"""Describes a rank's model and data in numbers, so that the controller can check that all ranks' models are equal."""

from __future__ import annotations

import functools
import gc
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from pytest_ddpperf.instruments.counting.loaders import HEAD, Loaders, checksum
from pytest_ddpperf.instruments.counting.sites import Place, SiteCounts, Stack, call_sites, made_at
from pytest_ddpperf.instruments.torch_internals import backward_under_way, replaced, uncompiled
from pytest_ddpperf.records.alike import RankCopy

_CALLS = 8  # of models, whose inputs are looked at
_PARTS = 8  # of a parameter, each with a separate sum
# By how much a parameter may differ from that of another rank, as a share of its norm. An all-reduce of gloo or NCCL
# gives each rank the same bits, and so do optimizers on machines of one kind. On others the last bit may differ.
_ROUNDING = {torch.float16: 1e-3, torch.bfloat16: 1e-3}
_ROUNDING_ELSE = 1e-6
_HOOKS = ("default_hooks", "powerSGD_hook", "quantization_hooks")  # of DDP, after which gradients are equal


def _joins_data(tensor: Tensor) -> bool:
    """Returns whether ``torch.cat`` or ``torch.stack`` joined activations with data that needs no gradients."""
    made = tensor.grad_fn
    return made is not None and made.name().startswith(("Cat", "Stack")) and (None, 0) in made.next_functions


class CopyWatch:
    """Records which models the counted steps train, and a checksum of the data that these models get."""

    def __init__(self) -> None:
        # A step may make a model for itself, so none is kept alive.
        self._models = WeakKeyDictionary[nn.Module, None]()
        self._reduced = WeakKeyDictionary[DistributedDataParallel, None]()  # that reduced gradients
        self._calls, self._open = 0, False
        self._batch: int | None = None
        self._stack = Stack()
        self._entered: Place | None = None  # the last call of no_sync
        self._deferred = False  # whether the last forward of a wrapper was inside of it

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Records, in this context, the line of code of each call of DDP's ``no_sync``."""
        defer = DistributedDataParallel.no_sync

        @uncompiled
        @functools.wraps(defer)
        def deferring(wrapped: DistributedDataParallel) -> Any:
            self._entered = self._stack.place()
            return defer(wrapped)

        with replaced(DistributedDataParallel, "no_sync", deferring):
            yield

    def called(self, module: nn.Module, given: Any, outermost: bool) -> None:  # noqa: FBT001 - no other module runs
        """Records a module that is called in training, and adds the data that it gets to the checksum of the batch."""
        if not torch.is_grad_enabled() or backward_under_way() != -1:
            return
        if outermost:
            self._open = next(module.parameters(), None) is not None
            if self._open:
                self._models[module] = None
        if isinstance(module, DistributedDataParallel):
            self._deferred = not module.require_backward_grad_sync
            if not self._deferred:
                self._reduced[module] = None
        if not self._open or self._calls == _CALLS:
            return
        # Looking is no part of the step. A layout may have no plain storage, and a class of the user may refuse.
        with torch._C.DisableTorchFunction(), _disable_current_modes(), suppress(Exception):  # noqa: SLF001
            leaves = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)]
            data = [leaf for leaf in leaves if not leaf.requires_grad]
            if tensors := data or [leaf for leaf in leaves if outermost and _joins_data(leaf)]:
                self._open, self._calls = not data, self._calls + 1
                self._batch = checksum(tensors, self._batch or 0, HEAD)

    def buckets(self, size: float) -> SiteCounts:
        """Returns lines that made DDP wrappers, with 1.0 for ``ddp_buckets``, with ``size`` (bytes) for peak memory."""
        made = {each: place for each in self._reduced if (place := made_at(each)) is not None}
        copying = {("buckets", place): size for each, place in made.items() if not each.gradient_as_bucket_view}
        of_all = dict.fromkeys((("buckets", place) for place in made.values()), 1.0)
        return {"ddp_buckets": of_all, "peak_tensor_bytes": copying if len(copying) == 1 else {}}

    def copy(self, loaders: Loaders, steps: int, of_data: tuple[str, ...], roots: Sequence[str]) -> RankCopy:
        """Returns a description of this rank's model and data after ``steps`` steps."""
        peers = next((_peers(each) for each in self._reduced), ())
        hooks = (hook for each in self._reduced for hook, _ in each._comm_hooks)  # noqa: SLF001
        reduce = all(getattr(hook, "__module__", "").endswith(_HOOKS) for hook in hooks)  # to equal gradients
        alike = reduce and all(_peers(each) == peers for each in self._reduced)
        named = {
            f"{number or ''}{'.' * bool(number)}{name}": parameter
            for number, model in enumerate(self._reduced if peers else self._models)
            for name, parameter in _own_parameters(model)
            if alike
        }
        deferred = {("no_sync", self._entered): 1.0} if self._deferred and self._entered else {}
        sites = call_sites([{"drawn": loaders.drawn_by(steps), "deferred": deferred}], roots)
        shapes = repr([(name, tuple(parameter.shape)) for name, parameter in named.items()])
        return RankCopy(
            place=_place(self._models, of_data, peers),
            samples=loaders.samples(steps, dist.get_world_size() if dist.is_initialized() else 1),
            batch=self._batch,
            model=zlib.crc32(shapes.encode()),
            parameters={name: _sums(parameter) for name, parameter in named.items()},
            peers=peers,
            loaded=bool(loaders.used(steps)),
            sites=sites,
        )


def _peers(wrapped: DistributedDataParallel) -> tuple[int, ...]:
    """Returns the ranks of a DDP wrapper's process group; empty if the group no longer exists."""
    known = wrapped.process_group in dist.distributed_c10d._world.pg_group_ranks  # noqa: SLF001 - else it raises
    return tuple(dist.get_process_group_ranks(wrapped.process_group)) if known else ()


def _own_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields names and tensors of the trained parameters of which each rank has a whole copy, not a shard."""
    inside, ignored = model, frozenset[str]()
    if isinstance(model, DistributedDataParallel):
        inside, ignored = model.module, frozenset(model.parameters_to_ignore)
    if any(type(each).__name__ == "FullyShardedDataParallel" for each in inside.modules()):
        return
    for name, parameter in inside.named_parameters():
        plain = type(parameter) is nn.Parameter and parameter.is_floating_point()
        if plain and parameter.requires_grad and name not in ignored:
            yield name.replace("_orig_mod.", ""), parameter


@torch.no_grad()
def _sums(parameter: Tensor) -> tuple[float, ...]:
    """Returns the largest rounding error of a sum, then sums of a parameter's elements, to compare ranks' copies."""
    flat = parameter.reshape(-1)
    whole = flat.numel() // _PARTS * _PARTS
    size, rest = (_PARTS, whole // _PARTS), flat[whole:].double()
    sums = (flat[:whole].view(shape).sum(axis, dtype=torch.float64) for shape, axis in ((size, 1), (size[::-1], 0)))
    most = torch.linalg.vector_norm(flat, dtype=torch.float64) * _ROUNDING.get(parameter.dtype, _ROUNDING_ELSE)
    return tuple(torch.cat((most[None], *sums, rest)).tolist())


def _place(models: Iterable[nn.Module], of_data: tuple[str, ...], peers: Sequence[int]) -> tuple[str, ...]:
    """Returns this rank's coordinates (such as ``tp 1``) in device meshes, along dimensions that do not split data.

    A dimension splits data if its name begins with a text in ``of_data``, or if it has as many ranks as DDP's process
    group, ``peers``. A dimension without a name splits data if ``fully_shard`` uses its mesh.
    """
    made: Any = sys.modules.get("torch.distributed.device_mesh")
    meshes = [] if made is None else [found for found in gc.get_objects() if type(found) is made.DeviceMesh]
    units = (unit for model in models for unit in model.modules() if type(unit).__name__.startswith("FSDP"))
    sharding = [getattr(each, "device_mesh", None) for unit in units for each in unit.parameters()]
    coordinates = set[str]()
    for mesh in meshes:
        names = mesh.mesh_dim_names or [""] * mesh.ndim
        for name, size, number in zip(names, mesh.shape, mesh.get_coordinate() or [-1] * mesh.ndim, strict=True):
            if size not in {1, len(peers)} and not (name.startswith(of_data) if name else mesh in sharding):
                coordinates.add(f"{name or tuple(mesh.shape)} {number}")
    return tuple(sorted(coordinates))
