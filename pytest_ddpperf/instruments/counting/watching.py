"""Watches steps without counting them: whether each calls torch as the one before did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, autograd
from torch.overrides import TorchFunctionMode

from pytest_ddpperf.errors import TrainingEnded
from pytest_ddpperf.instruments.torch_internals import collectives_called, replaced

_MASK = (1 << 64) - 1


class Graph(NamedTuple):
    """What any step shows, counted or not: the nodes that it adds to autograd's graph, and its collectives."""

    nodes: int
    collectives: int

    @classmethod
    def so_far(cls) -> Graph:
        """Returns what this thread has added, and called in the default group, since it began."""
        return cls(torch._C._autograd._get_sequence_nr(), collectives_called())  # noqa: SLF001 - no public number

    def since(self, before: Graph) -> Graph:
        """Returns what came after ``before``."""
        return Graph(self.nodes - before.nodes, self.collectives - before.collectives)


class CallWatch(TorchFunctionMode):
    """While it is entered, adds up which functions of torch Python calls, with tensors of which shapes.

    This takes a tenth of the time that it takes to see each operator. A function of torch that calls others is one
    call. Hooks that backward runs are seen, too. Not seen is what C++ decides alone, such as a scripted module.
    """

    def __init__(self, paused: Callable[[], bool]) -> None:
        super().__init__()
        self._paused = paused
        self.calls = 0  # a sum over the calls, so that their order does not matter

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._paused():
            shapes = tuple(_shapes((*args, *kwargs.values()) if kwargs else args))
            self.calls = (self.calls + hash((func, shapes))) & _MASK
        return func(*args, **kwargs)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within, calls are added up from zero, those of hooks that backward runs among them."""
        run: Callable[..., Any] = autograd._engine_run_backward  # type: ignore[attr-defined]  # noqa: SLF001  all begin there

        def with_hooks(*args: Any, **kwargs: Any) -> Any:
            with self:  # torch leaves a mode while the function runs that it was called for
                return run(*args, **kwargs)

        self.calls = 0
        with replaced(autograd, "_engine_run_backward", with_hooks), self:
            yield


def _shapes(given: Any) -> Iterator[Any]:
    for each in given:
        if isinstance(each, Tensor):
            yield each.numel() if each.is_nested else each.shape
        elif isinstance(each, (list, tuple)):
            yield from _shapes(each)


class OtherSteps:
    """Runs steps beyond those counted whole, until training has ended or they take too long on any rank."""

    def __init__(self, run: Callable[[], Any], on_any_rank: Callable[[bool], bool], seconds: float) -> None:
        self._run, self.any = run, on_any_rank
        self._until = time.monotonic() + seconds
        self.over = self.ended = False  # whether no step follows; whether that is because training has ended

    def end_with(self, look: Callable[[Callable[[], Any]], bool]) -> bool:
        """Lets ``look`` run a step; returns whether it said on any rank that this is no step to go on after."""
        ended, last = False, False
        try:
            last = look(self._run)
        except (TrainingEnded, StopIteration):
            ended = True
        if not self.any(ended or last or time.monotonic() > self._until):
            return False
        self.ended, last = self.any(ended), self.any(last)
        self.over = self.ended or not last
        return last and not self.ended
