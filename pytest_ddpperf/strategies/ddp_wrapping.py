"""Wraps a module in DistributedDataParallel, for the strategies ``ddp`` and ``zero1``."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.strategies.replicas import gradients_of, is_expanded, parameters_of, replicate
from pytest_ddpperf.strategies.strategy import Parallel, RankView


def wrap(
    module: nn.Module, ctx: RankView, *, broadcast_buffers: bool | None = None, **options: Any
) -> DistributedDataParallel:
    """Wraps the module in DistributedDataParallel; options that are None keep torch's defaults."""
    _require_writable_buffers(module)
    if broadcast_buffers is not None:
        if not broadcast_buffers:
            replicate(module, ctx)  # before torch 2.13 false also left buffers unequal at the start
        # torch 2.13 has renamed the option, and warns of the old name.
        names = inspect.signature(DistributedDataParallel.__init__).parameters
        options["forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"] = broadcast_buffers
    device_ids = [ctx.device] if ctx.device.type == "cuda" else None
    given = {name: value for name, value in options.items() if value is not None}
    return DistributedDataParallel(module, device_ids=device_ids, **given)


def _require_writable_buffers(module: nn.Module) -> None:
    """Raises an error with the name of a buffer that is an expanded tensor; torch's error does not name the buffer."""
    ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
    for name, buffer in module.named_buffers():
        if name not in ignored and is_expanded(buffer):
            raise WorkloadError(
                f"DistributedDataParallel cannot write rank 0's values into the model's buffer {name}, because it is "
                "an expanded tensor, whose elements share memory: give register_buffer a copy (.clone()), or expand "
                "the buffer in forward"
            )


def parallel_of(wrapped: DistributedDataParallel, **fields: Any) -> Parallel:
    """Returns the ``Parallel`` of a wrapped module; ``fields`` sets further fields of the ``Parallel``."""
    module: nn.Module = wrapped.module
    return Parallel(
        wrapped,
        no_sync=_no_sync_but_first(wrapped) if wrapped.static_graph else wrapped.no_sync,
        gradients=partial(gradients_of, module),
        parameters=partial(parameters_of, module),
        **fields,
    )


def _no_sync_but_first(wrapped: DistributedDataParallel) -> Callable[[], AbstractContextManager[Any]]:
    """Returns a ``no_sync`` that has no effect on the first backward, from which torch learns the static graph.

    Works around https://github.com/pytorch/pytorch/issues/143580. The result is the same, because averaging does not
    change gradients that are equal on all ranks.
    """
    learned = False

    def no_sync() -> AbstractContextManager[Any]:
        nonlocal learned
        if learned:
            return wrapped.no_sync()
        learned = True
        return nullcontext()

    return no_sync


def import_distributed_optimizers() -> Any:
    """Imports torch.distributed.optim, which takes a second, and hides a warning that this import raises."""
    with warnings.catch_warnings():
        # The package also compiles functional optimizers with torch.jit, which torch has deprecated.
        warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)
        return import_module("torch.distributed.optim")


def require_optimizer(given: object, strategy: str) -> torch.optim.Optimizer:
    """Returns ``given`` if it is a torch optimizer, which the strategy can wrap; raises a WorkloadError otherwise."""
    if not isinstance(given, torch.optim.Optimizer):
        raise WorkloadError(
            f"strategy {strategy} needs a torch.optim.Optimizer, but the Workload's optimizer(parameters) returned "
            f"a value of type {type(given).__name__}: return a torch optimizer"
        )
    return given
