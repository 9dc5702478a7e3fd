"""Watches steps without counting them: whether each calls torch as the one before did."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MethodWrapperType
from typing import Any, NamedTuple

import torch
from torch import Tensor, autograd
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from pytest_ddpperf.errors import TrainingEnded
from pytest_ddpperf.instruments.torch_internals import collectives_called, process_groups, replaced

_TELLING = (torch.dtype, torch.device, torch.layout, bool, str)  # numbers change from step to step, as a learning rate


class Graph(NamedTuple):
    """What any step shows, counted or not: the nodes that it adds to autograd's graph, and its collectives."""

    nodes: int
    collectives: int

    @classmethod
    def so_far(cls) -> Graph:
        """Returns what this thread has added, and called in all groups, since it began."""
        return cls(torch._C._autograd._get_sequence_nr(), collectives_called(process_groups()))  # noqa: SLF001 - no public number

    def since(self, before: Graph) -> Graph:
        """Returns what came after ``before``."""
        return Graph(self.nodes - before.nodes, self.collectives - before.collectives)


class CallWatch(TorchFunctionMode):
    """While it is entered, adds up which functions of torch Python calls, and what they are given.

    Of tensors the shape, type and device count, of other arguments types, devices, words and truths. A function of
    torch that calls others is one call. Hooks that backward runs are seen, too, and in the thread of a script its
    steps. Not seen is what C++ decides alone, such as a scripted module.
    """

    def __init__(self, paused: Callable[[], bool]) -> None:
        super().__init__()
        self._paused = paused
        self.calls = 0  # a sum over the calls, so that their order does not matter

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if type(func) is not MethodWrapperType and not self._paused():  # an attribute that is read is no work
            self.calls = (self.calls + _mark(func, (*args, *kwargs.values()))) % 2**64
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


def _mark(func: Any, given: tuple[Any, ...]) -> int:
    """Returns a number that similar calls share; 1 if the arguments cannot be inspected, such as lazy parameters."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - else classes of the user are asked
        try:
            return hash((func, *_looks(given)))
        except Exception:  # noqa: BLE001 - tensors of the user may raise anything; nothing of that is the step's
            return 1


def _looks(given: Any) -> list[Any]:
    found: list[Any] = []
    for each in given:
        if isinstance(each, Tensor):
            if not isinstance(each, FakeTensor):
                found += (each.numel() if each.is_nested else each.shape, each.dtype, each.device)
        elif isinstance(each, (list, tuple)):
            found.append(len(each))
            if each and not isinstance(each[0], (int, float)):
                found += _looks(each)
        elif isinstance(each, _TELLING):
            found.append(each)
    return found


class OtherSteps:
    """Runs steps beyond those counted whole, until training has ended or they take too long on any rank."""

    def __init__(self, run: Callable[[], Any], on_any_rank: Callable[[bool], bool], seconds: float) -> None:
        self._run, self.any, self._seconds = run, on_any_rank, seconds
        self._until = time.monotonic() + seconds
        self.over = self.ended = False  # whether no step follows; whether that is because training has ended

    def begin_anew(self) -> None:
        """Gives the steps that follow as much time as those before."""
        self._until = time.monotonic() + self._seconds

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
