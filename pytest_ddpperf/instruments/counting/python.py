"""Counts the work of a step in Python that no operator shows: calls, started processes, and rows of batches."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys
import threading
from collections import Counter, UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import process
from types import ModuleType
from typing import Any
from weakref import ReferenceType, ref

import torch
import torch.distributed as dist
from torch import Tensor, autograd, nn
from torch.distributed import distributed_c10d
from torch.optim import lr_scheduler
from torch.utils._pytree import tree_leaves
from torch.utils.data._utils.worker import _worker_loop

from pytest_ddpperf.instruments.counting.module_tracker import gradients_of, gradients_of_optimizer, threads_of_step
from pytest_ddpperf.instruments.torch_internals import backward_under_way, replaced, uncompiled
from pytest_ddpperf.records.sites import BACKWARD, SETTINGS, part_of

_BY = " x "  # between the sizes of a shape
IMAGE = 3  # dimensions of a single image, of which a list may hold a batch


_SCHEDULERS = ("LRScheduler", "ReduceLROnPlateau", "SequentialLR", "ChainedScheduler", "CosineAnnealingWarmRestarts")
_COSTLY = (  # functions that wait, give memory back, walk through all objects, start a process, save, make a group
    ("allocator_calls", gc, "gc", ("collect",)),
    ("allocator_calls", torch.cuda, "torch.cuda", ("empty_cache", "ipc_collect", "synchronize")),
    ("allocator_calls", torch.cpu, "torch.cpu", ("synchronize",)),  # what code for any device calls here
    ("allocator_calls", torch.cpu.Stream, "torch.cuda.Stream", ("synchronize",)),  # if it stands for a GPU's
    ("allocator_calls", getattr(torch, "accelerator", None), "torch.accelerator", ("empty_cache", "synchronize")),
    ("processes_started", process.BaseProcess, "multiprocessing.Process", ("start",)),
    ("processes_started", subprocess.Popen, "subprocess.Popen", ("__init__",)),
    ("processes_started", os, "os", ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system")),
    ("optimizers_made", torch.optim.Optimizer, "torch.optim.Optimizer", ("__init__",)),
    *(("checkpoints_saved", module, "torch", ("save",)) for module in (torch, torch.serialization)),
    ("synchronisations", Tensor, "tensor", ("cpu", "tolist", "__repr__")),
    *(("scheduler_steps", getattr(lr_scheduler, kind), "scheduler", ("step",)) for kind in _SCHEDULERS),
    *(("collective_calls", module, "torch.distributed", ("new_group",)) for module in (dist, distributed_c10d)),
)
"""Functions, each with the metric that counts it."""
_OF_PASS = ("retain_graph", "create_graph")  # what backward is given after tensors and their gradients
_INPUTS = 4  # the place of the tensors that are differentiated by
_LABELS = {"__repr__": "print(tensor)", "_save_state_dict": "torch.distributed.checkpoint.save"}
_BARE = ("cpu", "tolist")  # which call no operator on a CPU, and elsewhere one that is counted
_SLOW_MODES: Mapping[str, Callable[[], bool]] = {
    "anomaly detection": torch.is_anomaly_enabled,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "profiler": torch._C._autograd._profiler_enabled,  # noqa: SLF001  there is no public name
    "CUDA_LAUNCH_BLOCKING": lambda: os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in {"", "0"},
}
_USED = "_ddpperf_used"  # attribute of a gradient that an optimizer used or that was zeroed: its version since then


@contextmanager
def calls_counted(
    called: Callable[[str, str], None], device: str, waited: Callable[[str, Tensor], None]
) -> Iterator[None]:
    """Calls ``called(metric, name)``, in this context, for each backward pass and each call of a costly function.

    For a function that reads a tensor's value, ``waited(name, tensor)`` is called instead. ``device`` is the type of
    the step's device. A backward pass counts if it accumulates gradients, or returns gradients of parameters, and is
    not nested in another pass. Starts of DataLoader workers do not count, because chance decides when an epoch begins.
    """
    run: Callable[..., Any] = autograd._engine_run_backward  # type: ignore[attr-defined]  # noqa: SLF001  all begin there
    under_way = set[int]()  # threads in a call, of which no call inside counts

    @uncompiled
    def passed(*args: Any, **kwargs: Any) -> Any:
        trains = kwargs.get("accumulate_grad") or any(isinstance(each, nn.Parameter) for each in args[_INPUTS])
        if trains and backward_under_way() == -1:
            called("backward_passes", "backward")
            for name in (name for name, value in zip(_OF_PASS, args[2:4], strict=False) if value):
                called(SETTINGS, part_of(BACKWARD, name, value=True))
            for mode in (name for name, is_on in _SLOW_MODES.items() if is_on()):
                called("slow_modes", mode)
        return run(*args, **kwargs)

    def tell(metric: str, name: str, first: Any) -> None:
        if metric == "synchronisations":
            waited(name, first)
        else:
            called(metric, name)

    saver = sys.modules.get("torch.distributed.checkpoint.state_dict_saver")
    counted = _BARE if device != "cpu" else ()  # as operators
    wrappers: dict[Any, Any] = {}  # by function: it is pickled by another name than the one that it is called by
    with ExitStack() as stack:
        stack.enter_context(replaced(autograd, "_engine_run_backward", passed))
        for metric, module, path, names in (*_COSTLY, ("checkpoints_saved", saver, "", ("_save_state_dict",))):
            for name in (name for name in names if hasattr(module, name) and name not in counted):
                function, told = getattr(module, name), partial(tell, metric, _LABELS.get(name, f"{path}.{name}"))
                of = device if metric == "synchronisations" else ""
                by = wrappers.setdefault(function, _followed(function, told, of, under_way))
                stack.enter_context(replaced(module, name, by))
        for module, name, by in [*_named(wrappers)]:
            stack.enter_context(replaced(module, name, by))
        yield


def _named(wrappers: Mapping[Any, Any]) -> Iterator[tuple[ModuleType, str, Any]]:
    """Yields each name that a module has for a wrapped function, as by ``from gc import collect``, and the wrapper."""
    by_id = {id(function): by for function, by in wrappers.items()}
    for module in [each for each in [*sys.modules.values()] if isinstance(each, ModuleType)]:
        names = [*vars(module).items()]  # other threads may import
        yield from ((module, name, by_id[id(value)]) for name, value in names if id(value) in by_id)


@contextmanager
def drops_seen(dropped: Callable[[], None]) -> Iterator[None]:
    """Calls ``dropped``, in this context, for each ``zero_grad`` that drops gradients that no optimizer has used."""

    def emptying(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def empty(owner: Any, *args: Any, **kwargs: Any) -> Any:
            module = isinstance(owner, nn.Module)
            held = gradients_of([*owner.parameters()]) if module else gradients_of_optimizer(owner)
            if any(vars(each).get(_USED) != each._version for each in held):  # noqa: SLF001  there is no public name
                dropped()
            function(owner, *args, **kwargs)
            mark_used(held)

        return uncompiled(empty)

    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - else classes of the user are asked
        mark_used(gradients_of([each for each in gc.get_objects() if issubclass(type(each), Tensor)]))
    of_optimizers = replaced(torch.optim.Optimizer, "zero_grad", emptying(torch.optim.Optimizer.zero_grad))
    with of_optimizers, replaced(nn.Module, "zero_grad", emptying(nn.Module.zero_grad)):
        yield


def mark_used(gradients: Iterable[Tensor]) -> None:
    """Marks gradients as used, so that ``drops_seen`` does not count a ``zero_grad`` that drops these gradients."""
    for each in gradients:
        vars(each)[_USED] = each._version  # noqa: SLF001  there is no public name


def _followed(function: Callable[..., Any], report: Callable[[Any], None], device: str, under_way: set[int]) -> Any:
    """Wraps a function; outermost calls report their first argument if it is on ``device``, or if ``device`` is ""."""
    of_step = threads_of_step()

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        thread, first = threading.get_ident(), args[0] if args else None
        if thread in under_way or not of_step():
            return function(*args, **kwargs)
        loads = isinstance(first, process.BaseProcess) and getattr(first, "_target", None) is _worker_loop
        if not loads and (not device or _device_of(first) == device):
            report(first)
        under_way.add(thread)
        try:
            return function(*args, **kwargs)
        finally:
            under_way.discard(thread)

    return call


def _device_of(tensor: Any) -> str:
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - else classes of the user are asked
        return tensor.device.type if isinstance(tensor, Tensor) else ""


def shape_of(*given: Any) -> tuple[int, ...]:
    """Returns the shape of the tensor with the most dimensions in a batch; empty if the batch's size is uncertain.

    The first dimension counts the samples. It is uncertain, for example, if the tensors' first dimensions differ, if
    the batch has only one row, or if the batch is a list of images.
    """
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - else classes of the user are asked
        tensors = _tensors(given)
        if not tensors or any(each.is_nested or hasattr(each, "device_mesh") for each in tensors):
            return ()
        widest, images = max(tensors, key=Tensor.dim), len(tensors) > 1 and {each.dim() for each in tensors} == {IMAGE}
        odd = images or len({each.shape[0] for each in tensors}) > 1 or widest.dim() == 1 or widest.shape[0] <= 1
        return () if odd else tuple(widest.shape)


def _tensors(given: Any) -> list[Tensor]:
    """Returns the tensors in a batch, except scalars; opens a ``UserDict``, which torch's pytree does not open."""
    leaves = [dict(leaf) if isinstance(leaf, UserDict) else leaf for leaf in tree_leaves(given)]
    return [leaf for leaf in tree_leaves(leaves) if isinstance(leaf, Tensor) and leaf.dim()]


class BatchRows:
    """The batches that a step loads, and the batches that the step gives to models."""

    def __init__(self) -> None:
        self._of_step = threads_of_step()
        self.begin_step()

    def begin_step(self) -> None:
        """Forgets the batches of the previous step."""
        self._models: set[int] = set()
        self._inputs: list[ReferenceType[Tensor]] = []
        self._forward: list[tuple[int, ...]] = []  # shapes
        self._loaded: list[tuple[int, ...]] = []

    def loaded(self, batches: Any, batch: Any) -> None:
        """Records the shape of a batch; ``batches`` is the iterator of the DataLoader that made the batch."""
        if not self._of_step():
            return
        samples = getattr(getattr(batches, "_index_sampler", None), "batch_size", None)
        shape = shape_of(batch)
        self._loaded.append(() if isinstance(samples, int) and shape[:1] != (samples,) else shape)

    def forwarded(self, model: nn.Module, given: Any, joined: Mapping[int, ReferenceType[Tensor]]) -> bool:
        """Returns whether a model's call trains. If so, records the inputs' shape (``()`` for concatenated ones)."""
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as above
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            if not torch.is_grad_enabled() or backward_under_way() != -1 or not trained:
                return False
            tensors = _tensors(given)
            again = any(tensor is known() for tensor in tensors for known in self._inputs)
            grown = any(_is_flattened(one) or ((known := joined.get(id(one))) and known() is one) for one in tensors)
        self._inputs += map(ref, tensors)
        self._models.add(id(model))
        # Ranks that share out parameters by DTensors may train on parts of one batch, but not with fully_shard alone.
        mesh, sharded = getattr(trained[0], "device_mesh", None), type(model).__name__.startswith("FSDP")
        parts = mesh is not None and not (sharded and mesh.ndim == 1 + ("replicate" in str(mesh.mesh_dim_names)))
        self._forward.append(() if again or grown or parts else shape_of(given))
        return True

    def rows(self, passes: float) -> dict[str, float]:
        """Returns the number of rows in the step for each shape of a batch; empty if the rows are uncertain.

        The rows are certain if the step trains one model, and calls the model for each of the ``passes`` backward
        passes, each time with other tensors. Batches of DataLoaders must have as many rows as the model's inputs.
        """
        forward, loaded = (sum(shape[0] for shape in shapes if shape) for shapes in (self._forward, self._loaded))
        sure = len(self._models) == 1 and len(self._forward) == passes and all((*self._forward, *self._loaded))
        if not sure or loaded not in {0, forward}:
            return {}
        found = Counter[str]()
        for shape in self._forward:
            found[f"batches of {_BY.join(map(str, shape))}"] += shape[0]
        return {shape: float(rows) for shape, rows in found.items()}


def rows_by_shape(rows: Mapping[str, float], steps: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Returns a step's rows by shape of the batch, or only by batch size if the other dimensions vary in ``steps``."""
    alike, found = len({shape.partition(_BY)[2] for each in steps for shape in each}) == 1, Counter[str]()
    for shape, number in rows.items():
        found[shape if alike else shape.partition(_BY)[0]] += int(number)
    return {shape: float(number) for shape, number in found.items()}


def _is_flattened(tensor: Tensor) -> bool:
    """Returns whether a tensor is a view that makes several rows of each row of its base."""
    base = tensor._base  # noqa: SLF001  torch has no other name for it
    return base is not None and base.dim() > 0 and base.shape[0] < tensor.shape[0]
