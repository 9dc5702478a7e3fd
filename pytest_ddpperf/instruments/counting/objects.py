"""Counts the Python objects and the graphs of autograd that steps leave behind, and finds the lines that make them."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import pairwise, takewhile
from traceback import FrameSummary
from types import FunctionType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor, autograd
from torch.utils.data import dataloader

from pytest_ddpperf.errors import TrainingEnded
from pytest_ddpperf.instruments.clock import collector_paused
from pytest_ddpperf.instruments.counting.sites import Place, file_of_trace, place_of
from pytest_ddpperf.instruments.torch_internals import forget_received

LEAST = 1.0  # objects of a type per step; fewer do not come from the step itself
_SHARED = (type, ModuleType, FunctionType)  # objects that a batch refers to, and that are no part of it
_TRACED = 3  # steps whose memory has its lines
_BLOCKS = 4  # of memory that a line has to leave behind in each
_FRAMES = 40  # of a stack that are kept: frames of torch lie between the allocation and the user's code
_TRACE_LINE = re.compile(r'  File "(.+)", line (\d+), in ')
_GRAPHS = "nodes of graphs"  # of autograd
_PARAMETER = "torch::autograd::AccumulateGrad"  # the name of a node that stands for a parameter, and that lives on
_SEEN = "pytest_ddpperf.seen"  # key of a node's metadata: the count that first found the node


class ObjectCensus:
    """A counter of the Python objects that the garbage collector tracks; objects are counted between two steps.

    Objects that a rank inherits from the process that forked it do not count. Batches that DataLoader workers have
    sent, and no step has used, do not count either, because their number depends on the clock.
    """

    def __init__(self) -> None:
        self._taken: list[tuple[int, Counter[str]]] = []  # steps so far, and objects by type
        self._graphs: list[tuple[int, ...]] = []  # for each node of a graph, the count that first found it

    def take(self, steps: int) -> None:
        """Collects garbage, then counts the existing objects; ``steps`` is the number of steps so far."""
        gc.collect()
        forget_received()
        objects = gc.get_objects()
        found = Counter(map(_kind, objects))
        found.subtract(map(_kind, _waiting(objects)))
        self._taken.append((steps, found))
        nodes = (node for node in _nodes(_ends_of_graphs(objects)) if node.name() != _PARAMETER)
        # A list would count itself.
        self._graphs.append(tuple(node.metadata.setdefault(_SEEN, len(self._taken)) for node in nodes))

    def left_behind(self) -> dict[str, dict[str, float]]:
        """Returns how many objects each step leaves behind, by metric and type; empty before the third ``take``."""
        grown = [
            {kind: (number - before[kind]) / (steps - steps_before) for kind, number in after.items()}
            for (steps_before, before), (steps, after) in pairwise(self._taken)
        ]
        if len(grown) < 2:  # noqa: PLR2004
            return {}
        # A cache grows only for a while.
        least = {kind: min(each.get(kind, 0.0) for each in grown) for kind in grown[-1]}
        left = {kind.removeprefix("builtins."): growth for kind, growth in least.items() if growth >= LEAST}
        return {"python_objects": left, "graphs_kept": self._graphs_kept()}

    def _graphs_kept(self) -> dict[str, float]:
        """Returns how many nodes of autograd graphs a step leaves behind; empty if their number does not grow."""
        ((begun, _), (middle, _), (end, _)), (_, before, after) = self._taken[-3:], self._graphs[-3:]
        kept = after.count(len(self._taken) - 1) / (middle - begun)  # newer nodes may be in use
        grows = 2 * (len(after) - len(before)) >= kept * (end - middle)  # a cache grows only for a while
        return {_GRAPHS: kept} if grows and kept >= LEAST else {}


def _kind(each: object) -> str:
    kind = type(each)
    return f"{getattr(kind, '__module__', '')}.{kind.__qualname__}"  # C types may have no module


def _ends_of_graphs(objects: Iterable[object]) -> Iterator[Any]:
    """Yields the ``grad_fn`` of each tensor in ``objects`` that keeps a graph alive, which ``detach`` would free."""
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - else classes of the user are asked
        for each in objects:
            with suppress(Exception):  # a tensor of a transformation that has ended, or a class of the user
                if issubclass(type(each), Tensor) and (end := cast("Tensor", each).grad_fn) is not None:
                    yield end


def _nodes(ends: Iterable[Any]) -> set[Any]:
    found, left = set[Any](), list(ends)
    while left:
        if (node := left.pop()) not in found:
            found.add(node)
            left += [before for before, _ in node.next_functions if before is not None]
    return found


def _waiting(objects: Iterable[object]) -> Iterator[object]:
    """Yields the parts of batches that workers have sent to DataLoaders in ``objects``, and that no step has used."""
    kind: Any = dataloader._MultiProcessingDataLoaderIter  # noqa: SLF001  torch has no other name for it
    left = [vars(each).get("_task_info") for each in objects if issubclass(type(each), kind)]
    known = set(map(id, left))
    while left:
        for inside in gc.get_referents(left.pop()):
            if gc.is_tracked(inside) and id(inside) not in known and not isinstance(inside, _SHARED):
                known.add(id(inside))
                left.append(inside)
                yield inside


def lines_of_left(run: Callable[[], object], *, traces: bool, graphs: bool = False) -> dict[str, dict[Place, float]]:
    """Runs three more steps; returns, by metric and line of code, the memory blocks and graphs that a step leaves.

    Lines of code are known only if ``traces`` is True; otherwise nothing is found. Graphs also need ``graphs``. Tracing
    never stops, because its end can crash another thread (fixed in Python 3.12.9 and 3.13.2).
    """
    if traces and not tracemalloc.is_tracing():
        tracemalloc.start(_FRAMES)
    traces = traces and tracemalloc.get_traceback_limit() >= _FRAMES  # other code may have started it with fewer
    taken, found = list[tracemalloc.Snapshot](), Counter[Place]()
    notes_lines = autograd.set_detect_anomaly(traces and graphs, check_nan=False)  # in each node of a graph
    with collector_paused(), suppress(TrainingEnded, StopIteration), notes_lines:
        for _ in range(_TRACED):
            run()
            gc.collect()
            taken += [tracemalloc.take_snapshot()] if traces else []
    for grown in taken[-1].compare_to(taken[0], "traceback") if taken else ():
        inside = takewhile(lambda frame: frame.filename != __file__, reversed(grown.traceback))  # of the call of a step
        found[place_of(inside, file_of_trace, _line, backward=False)] += grown.count_diff
    ends = [*_ends_of_graphs(gc.get_objects() if graphs else ())]
    keeping = {(end.name(), _made_at(end)) for end in ends}  # kinds and lines of tensors that keep a graph
    made = Counter(at for node in _nodes(ends) if (node.name(), at := _made_at(node)) in keeping)
    return {"python_objects": _per_step(found, _BLOCKS, _TRACED - 1), "graphs_kept": _per_step(made, LEAST, _TRACED)}


def _line(frame: tracemalloc.Frame | FrameSummary) -> tuple[int, str]:
    return frame.lineno or 0, ""


def _made_at(node: Any) -> Place:
    """Returns the line that made a node of a graph, if torch's anomaly detection was on."""
    lines = reversed("".join(node.metadata.get("traceback_", ())).splitlines())
    frames = [FrameSummary(at[1], int(at[2]), "") for at in map(_TRACE_LINE.match, lines) if at]
    return place_of(frames, file_of_trace, _line, backward=False)


def _per_step(found: Mapping[Place, int], least: float, steps: int) -> dict[Place, float]:
    return {at: more / steps for at, more in found.items() if at.file and more >= least * steps}
