"""Calls of functions of Python that no operator shows: passes of backward, and what a step should hardly call."""

from __future__ import annotations

import functools
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import autograd

from pytest_ddpperf.instruments.torch_internals import backward_under_way, replaced, uncompiled

BACKWARD = "backward"

_COSTLY = (  # functions that wait for a device, give memory back, or walk through all objects
    (gc, "gc", ("collect",)),
    (torch.cuda, "torch.cuda", ("empty_cache", "ipc_collect", "synchronize")),
    (getattr(torch, "accelerator", None), "torch.accelerator", ("empty_cache", "synchronize")),
)


@contextmanager
def calls_counted(calls: Counter[str]) -> Iterator[None]:
    """Within, ``calls`` counts passes of backward as ``BACKWARD``, and calls of costly functions by their names.

    A pass accumulates gradients. One inside of another, such as a checkpoint's, is none. Functions of torch that do
    nothing on a CPU are seen there too.
    """
    run: Callable[..., Any] = autograd._engine_run_backward  # type: ignore[attr-defined]  # noqa: SLF001  all begin there

    @uncompiled
    def passed(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("accumulate_grad") and backward_under_way() == -1:
            calls[BACKWARD] += 1
        return run(*args, **kwargs)

    def followed(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return function(*args, **kwargs)

        return call

    with ExitStack() as stack:
        stack.enter_context(replaced(autograd, "_engine_run_backward", passed))
        for module, path, names in _COSTLY:
            for name in (name for name in names if hasattr(module, name)):
                by = followed(getattr(module, name), f"{path}.{name}")
                stack.enter_context(replaced(module, name, by))
        yield
