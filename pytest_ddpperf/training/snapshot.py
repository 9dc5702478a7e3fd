"""What training changes, kept aside to be put back."""

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
    """Copies of this rank's parameters, buffers, optimizer state and loss scale; calling the result puts them back.

    The copies are on the CPU, so that what fits on a device still does. Gradients are not kept: the next step makes
    them anew.

    Args:
        module: whole or sharded, between two steps.
        optimizer: one that wraps another in its ``optim`` keeps no state besides.
        scaler: of fp16 gradients.
    """
    inner: Any = getattr(optimizer, "optim", optimizer)
    tensors = [(tensor, _kept(tensor)) for tensor in (*module.parameters(), *module.buffers())]
    states = [(state, {name: _kept(value) for name, value in state.items()}) for state in inner.state.values()]
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
    """The bytes of the tensors of which ``snapshot`` makes copies, in the host's memory."""
    inner: Any = getattr(optimizer, "optim", optimizer)
    states = (value for state in inner.state.values() for value in state.values() if isinstance(value, Tensor))
    return sum(_local(tensor).nbytes for tensor in (*module.parameters(), *module.buffers(), *states))


def _kept(value: Any) -> Any:
    """A copy: of a tensor this rank's part, on the CPU."""
    return _local(value).detach().to("cpu", copy=True) if isinstance(value, Tensor) else copy.deepcopy(value)


def _local(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor, in its own memory. Only DTensors have shards; most ranks never import them."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()
