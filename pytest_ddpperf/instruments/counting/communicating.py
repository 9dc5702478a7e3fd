"""Runs collectives on a CPU so that their end, and the death of the tensors they send, do not depend on luck."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._C import DispatchKey, DispatchKeySet
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_ddpperf.instruments.counting.collectives import NAMESPACES, completion_of, tensors_in
from pytest_ddpperf.instruments.counting.tensors import TensorTracker

_BACKENDS = "c10d"  # implemented by backends; the operators of other namespaces call these
_ON_CPU = DispatchKeySet(DispatchKey.CPU)
_MAX_WAIT = 2.0  # seconds; sends and receives in an order that waiting would block go on after that


def is_on_cpu(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether an operator communicates tensors on a CPU."""
    return (
        isinstance(func, OpOverload)
        and func.namespace in NAMESPACES
        and {tensor.device.type for tensor in tensors_in(args)} == {"cpu"}
    )


def communicate(func: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], tracker: TensorTracker) -> Any:
    """Runs a collective on a CPU: its backend gets tensors that are lent to it, and the result is awaited at once.

    For a functional collective this applies to the collectives that it calls.
    """
    if func.namespace == _BACKENDS:
        out = func(*_mapped(tracker.lend, args), **kwargs)
        _await(func, out)
        return out
    with _Inside(tracker):  # below the mode that led here, so that the call does not come here again
        return func.redispatch(_ON_CPU, *args, **kwargs)


class _Inside(TorchDispatchMode):
    """Sees the collectives that a functional collective calls; nothing of them is counted."""

    def __init__(self, tracker: TensorTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch
        self._tracker = tracker

    def __torch_dispatch__(
        self, func: Any, types: tuple[type, ...], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace != _BACKENDS:
            return func(*args, **kwargs or {})
        for tensor in tensors_in(args):  # including new results that the tracker does not know yet
            self._tracker.see(tensor, "activations" if torch.is_grad_enabled() else "temporaries")
        return communicate(func, args, kwargs or {}, self._tracker)


def _mapped(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    """An operator's arguments with other tensors in place of its own."""
    if isinstance(value, (list, tuple)):
        return type(value)(_mapped(function, inner) for inner in value)
    return function(value) if isinstance(value, torch.Tensor) else value


def _await(func: OpOverload, out: Any) -> None:
    """Waits for a collective, but not for sends and receives, whose other side may not have begun."""
    if any(word in func._schema.name for word in ("send", "recv")):  # noqa: SLF001  torch offers no other way to ask
        return
    done = completion_of(out)
    deadline = time.monotonic() + _MAX_WAIT
    while not done() and time.monotonic() < deadline:
        time.sleep(2e-5)
