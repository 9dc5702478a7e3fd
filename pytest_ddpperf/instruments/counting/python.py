"""What a step does in Python, where no operator shows it: calls, and objects that it leaves behind."""

from __future__ import annotations

import functools
import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import autograd

from pytest_ddpperf.instruments.torch_internals import backward_under_way, replaced, uncompiled

BACKWARD = "backward"
LEAST = 1.0  # objects of a type a step; less is none of the step's own

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


class ObjectCensus:
    """Counts the objects that the garbage collector knows, between steps.

    What a rank inherits from the process that forked it is frozen, and neither counted nor walked through.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[int, Counter[str]]] = []  # steps so far, and objects by type

    def take(self, steps: int) -> None:
        """Counts what is there after so many steps; garbage is collected before."""
        gc.collect()
        kinds = map(type, gc.get_objects())
        names = (f"{getattr(kind, '__module__', '')}.{kind.__qualname__}" for kind in kinds)  # C types may have none
        self._taken.append((steps, Counter(names)))

    def left_behind(self) -> dict[str, float] | None:
        """Returns the objects that each step leaves behind, by type; None after fewer than three counts.

        It is the least growth of all stretches between two counts: a cache that fills up grows in one of them only.
        """
        grown = [
            {kind: (number - before[kind]) / (steps - steps_before) for kind, number in after.items()}
            for (steps_before, before), (steps, after) in pairwise(self._taken)
        ]
        if len(grown) < 2:  # noqa: PLR2004
            return None
        least = {kind: min(each.get(kind, 0.0) for each in grown) for kind in grown[-1]}
        return {kind.removeprefix("builtins."): growth for kind, growth in least.items() if growth >= LEAST}
