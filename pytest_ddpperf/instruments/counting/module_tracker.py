"""Finds the modules that run in a step, and the optimizers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from types import FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd import graph
from torch.nn.modules import module as torch_modules
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import checkpoint
from torch.utils._pytree import tree_leaves

from pytest_ddpperf.instruments.counting.sites import Place, Stack
from pytest_ddpperf.instruments.counting.storages import bytes_of
from pytest_ddpperf.instruments.torch_internals import backward_under_way, replaced, uncompiled


class Running(NamedTuple):
    """The module that runs while an operator is called."""

    module: str  # the path of the innermost running module
    called_at: Place | None = None  # the line that called the whole model, or the operator outside of any
    line: Place | None = None  # that called the operator, if that was asked


OUTSIDE = "outside of modules"
RECOMPUTED = "recomputed in backward"  # by an unknown module; the modules inside of it are known

_RECOMPUTING = frozenset({checkpoint.__file__, torch_modules.__file__})  # a checkpoint, or a module's forward


class Attribution:
    """The assignment of operators to modules, and to forward or backward.

    In forward an operator belongs to the innermost running module. The sequence number of the operator's autograd node
    is noted. In backward, the number of the running node leads back to the module. This needs no hooks in the graph,
    which could change the work of backward.
    """

    def __init__(self) -> None:
        self._modules: dict[int, Running] = {}

    def place(self, running: Running) -> tuple[Running, bool, bool]:
        """Returns the running operator's module, whether the operator is part of backward, and whether it recomputes.

        ``running`` is the innermost running module. An operator recomputes, and counts as forward, if a checkpoint or a
        module calls it during backward and autograd records it.
        """
        in_backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001  torch offers no other way to ask
        node = torch._C._current_autograd_node() if in_backward else None  # noqa: SLF001
        recorded = torch.is_grad_enabled()
        backward = node is not None and not (recorded and _recomputes())
        if node is not None and backward:
            running = self._modules.get(node._sequence_nr(), running)  # noqa: SLF001
        elif in_backward and running.module == OUTSIDE:
            running = Running(RECOMPUTED)
        if recorded or not backward:
            # The node of this operator, if it has one, was created just before this call.
            self._modules[torch._C._autograd._get_sequence_nr() - 1] = running  # noqa: SLF001
        return running, backward, node is not None and not backward

    def forget(self) -> None:
        """Begins a new step, which has a new graph."""
        self._modules.clear()


def _recomputes() -> bool:
    frame: FrameType | None = sys._getframe()  # noqa: SLF001  inspect is much slower
    while frame is not None and frame.f_code.co_filename != graph.__file__:
        if frame.f_code.co_filename in _RECOMPUTING:
            return True
        frame = frame.f_back
    return False


def threads_of_step() -> Callable[[], bool]:
    """Returns a function that returns whether its caller's thread is this thread, the main one or one of autograd's.

    Other threads do not count, because their work in a step depends on timing.
    """
    own = {threading.get_ident(), threading.main_thread().ident}  # a script has the main one
    return lambda: threading.get_ident() in own or backward_under_way() != -1


_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"})
_PARALLEL = (DistributedDataParallel, DataParallel)


class ModuleTracker:
    """The modules and optimizers of a step, found when they are used, and held by weak references only."""

    def __init__(
        self,
        on_gradients: Callable[[list[torch.Tensor]], None],
        on_step: Callable[[torch.optim.Optimizer], None],
        on_call: Callable[[nn.Module, Any, bool], None],
    ) -> None:
        self.roots = WeakKeyDictionary[nn.Module, None]()  # that ran while no other did: whole models, losses
        self.optimizers = WeakKeyDictionary[torch.optim.Optimizer, None]()  # that stepped, also inside of another one
        self._on_gradients = on_gradients
        self._on_step = on_step
        self._on_call = on_call  # of a module, with what it is given, and whether no other module runs
        self._running: list[Running] = []
        self._stack = Stack()
        self._paths = WeakKeyDictionary[nn.Module, str]()

    def add(self, module: nn.Module) -> None:
        """Adds a model, with the paths of all its modules, before the model runs."""
        if module in self._paths:
            return
        prefix, known = _kind(module), list(map(_kind, filter(_has_parameters, self.roots)))
        self.roots[module] = None
        if _has_parameters(module):
            prefix = f"{prefix}{known.count(prefix) + 1 if prefix in known else ''}" if known else ""
        for name, inside in module.named_modules():
            path = ".".join(part for part in (prefix, *_parts(module, name)) if part)
            self._paths.setdefault(inside, path or "model")

    @property
    def running(self) -> Running:
        """Returns the innermost module whose forward is running; its name omits the names of wrappers."""
        return self._running[-1] if self._running else Running(OUTSIDE)

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Returns all parameters of models and optimizers, each once."""
        groups = (group["params"] for optimizer in self.optimizers for group in optimizer.param_groups)
        return list(dict.fromkeys(chain(*(root.parameters() for root in self.roots), *groups)))

    @property
    def buffers(self) -> list[torch.Tensor]:
        """Returns all buffers of models, each once."""
        return list({buffer: None for root in self.roots for buffer in root.buffers()})

    @property
    def optimizer_state(self) -> list[torch.Tensor]:
        """Returns the tensors that optimizers keep for parameters, or have as settings, such as a learning rate."""
        kept = [state for optimizer in self.optimizers for state in optimizer.state.values()]
        settings = [value for each in self.optimizers for group in each.param_groups for value in group.values()]
        return [leaf for leaf in (*tree_leaves(kept), *settings) if isinstance(leaf, torch.Tensor)]

    def state_bytes(self) -> dict[str, float]:
        """Returns this rank's bytes of ``parameters``, their present ``gradients`` and ``optimizer_state``, by name.

        Each storage counts once, with all its bytes: Adam in fp32 has 16 bytes a parameter, also under autocast.
        Sharded tensors count with this rank's part. Scalars that optimizers keep (Adam's count of steps) do not count.
        """
        parameters = self.parameters
        known: set[int] = set()
        return {
            "parameters": float(bytes_of(parameters, known)),
            "gradients": float(bytes_of(gradients_of(parameters), known)),
            "optimizer_state": float(bytes_of((state for state in self.optimizer_state if state.dim()), known)),
        }

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Records the modules that run and the optimizers that step in this context."""
        self._running.clear()
        called, of_step = nn.Module.__call__, threads_of_step()

        @uncompiled
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not of_step():
                return called(module, *args, **kwargs)
            outermost, around = not self._running, self.running
            self._on_call(module, (args, kwargs), outermost)
            if outermost:
                self.add(module)
            path = self._paths.get(module) or around.module
            self._running.append(Running(path, around.called_at or self._stack.call()))
            try:
                return called(module, *args, **kwargs)
            finally:
                self._running.pop()

        with ExitStack() as hooks:
            hooks.callback(register_optimizer_step_pre_hook(self._begin_step).remove)
            hooks.callback(register_optimizer_step_post_hook(self._end_step).remove)
            hooks.enter_context(replaced(nn.Module, "__call__", call))
            yield

    def _begin_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        self.optimizers[optimizer] = None
        self._on_gradients([parameter for group in optimizer.param_groups for parameter in group["params"]])

    def _end_step(self, optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._stack.optimizer_steps() == 1:
            self._on_step(optimizer)


def gradients_of(parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the gradients of these parameters; parameters without a gradient are skipped."""
    found = list[torch.Tensor]()
    for each in parameters:
        with suppress(RuntimeError):  # for a view whose base changed in place, as FSDP1 leaves after a step
            if each.is_leaf and each.grad is not None and not each.grad.is_inference():
                found.append(each.grad)
    return found


def gradients_of_optimizer(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns the gradients of the parameters that an optimizer updates."""
    return gradients_of([parameter for group in optimizer.param_groups for parameter in group["params"]])


def ddp_buckets(modules: Iterable[nn.Module]) -> dict[str, float]:
    """Returns the bytes of each bucket of DistributedDataParallel, in the order in which buckets are sent."""
    sizes: list[str] = []
    for child in (child for module in modules for child in module.modules()):
        if isinstance(child, DistributedDataParallel):
            said = child._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # noqa: SLF001  there is no public reader
            # It rebuilds its buckets after the first steps.
            sizes += str(said.get("rebuilt_bucket_sizes") or said.get("bucket_sizes", "")).split(",")
    return {f"bucket {number}": float(size) for number, size in enumerate(filter(str.strip, sizes))}


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _parts(root: nn.Module, name: str) -> list[str]:
    parts = name.split(".")
    return [part for part in (parts[1:] if isinstance(root, _PARALLEL) else parts) if part not in _WRAPPERS]


def _kind(root: nn.Module) -> str:
    inside = (each for name, each in root.named_children() if name in _WRAPPERS or isinstance(root, _PARALLEL))
    return _kind(wrapped) if (wrapped := next(inside, None)) is not None else type(root).__name__
