"""Saves and restores what training changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn


@torch.no_grad()
def snapshot(
    module: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None
) -> Callable[[], None]:
    """Copies this rank's parameters, buffers, optimizer state and loss scale; the result restores them.

    The copies lie on the CPU, so that a model that fits on a device still does. Gradients are not kept, because the
    next step computes them anew. An optimizer that wraps another one in ``optim`` must keep no other state.
    """
    tensors = [(tensor, _copied(tensor)) for tensor in (*module.parameters(), *module.buffers())]
    states = [(state, {name: _copied(value) for name, value in state.items()}) for state in _states(optimizer)]
    scale: Mapping[str, Any] = {} if scaler is None else scaler.state_dict()

    @torch.no_grad()
    def restore() -> None:
        for tensor, kept in tensors:
            _local(tensor).copy_(kept)
        for state, values in states:
            for name, kept in values.items():
                if isinstance(kept, Tensor):
                    _local(state[name]).copy_(kept)
                else:
                    state[name] = copy.deepcopy(kept)
        if scaler is not None and scale:
            scaler.load_state_dict(dict(scale))

    return restore


def snapshot_bytes(module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """The host memory that the tensors of a snapshot take."""
    kept = (value for state in _states(optimizer) for value in state.values() if isinstance(value, Tensor))
    return sum(_local(tensor).nbytes for tensor in (*module.parameters(), *module.buffers(), *kept))


def _states(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    inner: Any = getattr(optimizer, "optim", optimizer)
    return list(inner.state.values())


def _copied(value: Any) -> Any:
    """Copies a value; of a tensor this rank's part, to the CPU."""
    return _local(value).detach().to("cpu", copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor. Only DTensors have shards, and most ranks never import them."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
