"""Runs a script for GPUs on CPU ranks: ignores its GPU calls, or redirects them to the CPU. Needs torch."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.autocast_mode import autocast
from torch.distributed import device_mesh, distributed_c10d
from torch.jit import _builtins
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _device

from pytest_ddpperf.instruments.torch_internals import replaced, unnamed
from pytest_ddpperf.launch.faults.stacks import in_library
from pytest_ddpperf.records.finding import Finding

_CPU = torch.device("cpu")
_GPU = re.compile(r"cuda(?::\d+)?|cpu:\d+")  # a script may name the CPU as it would name its GPU
_NCCL = re.compile(r"nccl|.*cuda:nccl.*", re.IGNORECASE)
_IDS = ("device_ids", "output_device", "device_id")  # of GPUs
_RESETS = tuple(f"reset_{each}" for each in ("peak_memory_stats", "accumulated_memory_stats", "max_memory_allocated"))
_IGNORED = ("synchronize", "ipc_collect", "init", "set_stream", *_RESETS)
_EMPTY = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")  # on a CPU
_ASKING = ("current_accelerator", "device_count")  # by these libraries choose what they do on a CPU


class GpuCalls:
    """The calls for a GPU in a script that runs on the CPU; ``remarks`` has a finding that names the calls."""

    def __init__(self, ranks: int, roots: tuple[str, ...]) -> None:
        self.remarks: list[Finding] = []
        self._ranks, self._roots = ranks, roots  # on this machine; of the project
        self._index = 0  # of the GPU that the script has chosen
        self._noted: dict[tuple[str, Any], float] = {}  # by call and place
        self._stack = ExitStack()

    @contextmanager
    def on_cpu(self) -> Iterator[None]:
        """Ignores, in this context, calls that only choose a GPU or wait for one; keeps data on the CPU."""
        cpu: Any = torch.cpu
        answers: dict[str, Callable[..., Any]] = dict.fromkeys(_IGNORED, _ignored)
        answers |= dict.fromkeys(("current_stream", "default_stream"), lambda *_, **__: cpu.current_stream())
        answers["device_count"] = lambda: self._ranks
        with self._stack:
            self._answer(torch.cuda, **answers, set_device=self._choose, current_device=lambda: self._index)
            for name, method in (("synchronize", _ignored), ("query", lambda _: True), ("record_event", _recorded)):
                self._stack.enter_context(replaced(cpu.Stream, name, method))
            self._answer(torch.cuda, stream=cpu.stream, device=lambda _: nullcontext())
            for kind in (cpu.Event, cpu.Stream):
                self._stack.enter_context(replaced(torch.cuda, kind.__name__, self._noted_kind(kind)))
            self._answer(torch.cuda.nvtx, range_push=_ignored, range_pop=_ignored, mark=_ignored)
            self._answer(torch.accelerator, **answers, current_accelerator=lambda *_: _CPU)
            self._answer(torch.accelerator, **dict.fromkeys(("empty_cache", "empty_host_cache"), _ignored))
            self._answer(torch.accelerator, memory_stats=lambda *_: {}, **dict.fromkeys(_EMPTY, lambda *_: 0))
            self._answer(torch.accelerator, set_device_index=self._choose, current_device_index=lambda: self._index)
            self._answer(nn.SyncBatchNorm, convert_sync_batchnorm=lambda module, *_, **__: module)  # needs a GPU
            self._answer(Tensor, **dict.fromkeys(("cuda", "pin_memory", "record_stream"), lambda own, *_, **__: own))
            for kind in (nn.Module, Tensor):
                self._move(kind, "to")
            for made in (DistributedDataParallel, autocast, _device.DeviceContext, device_mesh.DeviceMesh):
                self._move(made, "__init__")
            for module in (dist, device_mesh, distributed_c10d):
                self._move(module, "init_device_mesh", "barrier", "init_process_group", "new_group")
            yield

    def _noted_kind(self, kind: type) -> type:
        """Returns a subclass of ``kind`` whose constructor only records the call. Annotations may need a class."""
        return type(kind.__name__, (kind,), {"__init__": lambda *_, **__: self._note(kind.__name__)})

    def _choose(self, device: Any) -> None:
        self._index = device if isinstance(device, int) else torch.device(device).index or 0

    def _replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        function = getattr(owner, name, None)
        if function is not None:
            called = unnamed(lambda *args, **kwargs: by(name, function, args, kwargs))
            self._stack.enter_context(replaced(owner, name, functools.wraps(function)(called)))
            operators: Any = _builtins._get_builtin_table()  # type: ignore[no-untyped-call]  # noqa: SLF001 - of torch.jit
            if id(function) in operators:
                operators[id(called)] = operators[id(function)]
                self._stack.callback(operators.pop, id(called))

    def _answer(self, owner: Any, **answers: Callable[..., Any]) -> None:
        """Replaces functions by ``answers``, and records calls. Libraries' calls of ``_ASKING`` reach the originals."""

        @unnamed
        def call(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if name in _ASKING and in_library(sys._getframe(2).f_code.co_filename):  # noqa: SLF001
                return function(*args, **kwargs)
            self._note(name)
            return answers[name](*args, **kwargs)

        for name in answers:
            self._replace(owner, name, call)

    def _move(self, owner: Any, *names: str) -> None:
        @unnamed
        def call(name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            moved = [_on_cpu(given, index=name == "to" and place == 1) for place, given in enumerate(args)]
            if owner is DistributedDataParallel:
                moved[2:4] = [None] * len(moved[2:4])  # the ids of GPUs
            named = {key: _on_cpu(given, index=key == "device") for key, given in kwargs.items()}
            named |= dict.fromkeys((key for key in _IDS if key in kwargs), None)
            changed = [str(old) for old, new in zip(args, moved, strict=True) if old is not new]
            changed += [key if key in _IDS else str(old) for key, old in kwargs.items() if old is not named[key]]
            if changed:
                self._note(f"{owner.__name__ if name == '__init__' else name}({changed[0]})")
            return function(*moved, **named)

        for name in names:
            self._replace(owner, name, call)

    @unnamed
    def _sharded(self, _: str, init: Callable[..., None], args: Any, kwargs: Any) -> None:
        """Gives FSDP1 the CPU as its device, because otherwise it requires a GPU."""
        self._note("FullyShardedDataParallel(device_id)")
        init(*args, **{**kwargs, "device_id": _CPU})

    def _note(self, call: str) -> None:
        from pytest_ddpperf.instruments.counting.sites import Stack, call_sites

        if not self._noted:
            self._move(torch, "load", *(made.__name__ for made in _device._device_constructors()))  # noqa: SLF001
            self._move(torch, *(name for name in dir(torch) if name.endswith("_like")))
            self._move(Tensor, *(name for name in dir(Tensor) if name.startswith("new_")))
            if (fsdp := sys.modules.get("torch.distributed.fsdp")) is not None:  # to import it takes seconds
                self._replace(fsdp.FullyShardedDataParallel, "__init__", self._sharded)
        place = Stack().place()
        if (call, place) not in self._noted:
            self._noted[call, place] = 1.0
            sites = call_sites([{"calls": self._noted}], self._roots)
            self.remarks[:] = [Finding("without_gpu", {"sites": sites["calls"]})]


def _ignored(*_: Any, **__: Any) -> None: ...


def _recorded(_: Any, event: Any = None) -> Any:
    return event or torch.cpu.Event()


def _on_cpu(given: Any, *, index: bool) -> Any:
    """Replaces an argument that names a GPU or NCCL by the CPU or gloo; with ``index``, a number names a GPU."""
    if isinstance(given, torch.device):
        return _CPU if given.type == "cuda" or given.index else given
    if isinstance(given, str):
        return "cpu" if _GPU.fullmatch(given) else "gloo" if _NCCL.fullmatch(given) else given
    return _CPU if index and type(given) is int else given
