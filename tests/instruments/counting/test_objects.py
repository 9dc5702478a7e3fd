"""Objects and graphs that steps leave behind."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pytest_ddpperf.errors import TrainingEnded
from pytest_ddpperf.instruments.counting.objects import ObjectCensus, lines_of_left


class Spec:
    """What a faulty step keeps."""


@pytest.fixture
def frozen() -> None:
    """As in a rank: what was there before is not counted."""
    gc.collect()
    gc.freeze()


def name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


class Cached:
    """What a step keeps once."""


class Cycle:
    """What only the garbage collector frees."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.usefixtures("frozen")
def test_the_objects_that_each_step_leaves_behind_are_counted_by_type() -> None:
    """Each leaves four objects and a list of them. One type has no module, as a template makes it."""
    census, kept, made = ObjectCensus(), list[list[Spec]](), dict[str, Any]()
    exec("kept = [type('T', (), {})()]", {}, made)  # noqa: S102
    assert not hasattr(type(made["kept"][0]), "__module__")
    for steps in range(6):
        kept.append([Spec() for _ in range(4)])
        for _ in range(20):
            Cycle()
        if steps in {1, 3, 5}:
            census.take(steps)
    left, unknown = census.left_behind()
    found = left["python_objects"]
    assert (found[name(Spec)], found["list"], unknown) == (4.0, 1.0, {})
    assert name(Cycle) not in found


@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("kind", ["python_objects", "graphs_kept"])
@pytest.mark.parametrize(("every", "known"), [(2, {50.0}), (4, {25.0}), (5, {25.0}), (8, set()), (100, {0.0})])
def test_what_some_steps_leave_behind_is_unknown_or_does_not_depend_on_which_steps_they_are(
    kind: str, every: int, known: set[float]
) -> None:
    """In each 100th step a cache grows, which no other step here does."""
    found, unknown = set[float](), set[str]()
    for first in range(min(every, 11)):
        census, kept = ObjectCensus(), list[Any]()
        for steps in range(12):
            loss = torch.ones(1, requires_grad=True) * 1
            for _ in range(99):
                loss = loss * 2
            if steps % every == first:
                kept.extend([loss] if kind == "graphs_kept" else [Cached() for _ in range(100)])
            if steps in {2, 6, 10}:
                census.take(steps)
        left, reasons = census.left_behind()
        found |= set() if kind in reasons else {sum(left[kind].values())}
        unknown |= {reasons.get(kind, "")} - {""}
    of = "nodes of graphs" if kind == "graphs_kept" else name(Cached)
    assert found == known
    assert unknown <= {f"{of} +100 in 4 steps, +0 in the next 4", f"{of} +0 in 4 steps, +100 in the next 4"}


@pytest.mark.usefixtures("frozen")
def test_fewer_than_three_counts_show_nothing() -> None:
    census, kept = ObjectCensus(), list[Spec]()
    assert census.left_behind() == ({}, {})
    for steps in (0, 2):
        kept.extend(Spec() for _ in range(100))
        census.take(steps)
    assert census.left_behind() == ({}, {})


@pytest.mark.usefixtures("frozen")
def test_batches_that_workers_of_a_loader_sent_do_not_count_as_left_behind() -> None:
    """torch notes each tensor that it receives until they are many, and keeps batches that come before their turn."""
    census, loader = ObjectCensus(), DataLoader(TensorDataset(torch.ones(64, 4)), 2, num_workers=1)
    batches: Any = iter(loader)
    for steps in range(6):
        next(batches)
        batches._task_info[100 + steps] = (0, {"early": [Spec() for _ in range(4)]})
        if steps in {1, 3, 5}:
            census.take(steps)
    for steps in range(6):
        del batches._task_info[100 + steps]
    left, _ = census.left_behind()
    assert not {name(Spec), "torch.multiprocessing.reductions.StorageWeakRef", "dict"} & left["python_objects"].keys()


@pytest.fixture
def untraced() -> Iterator[None]:
    """As in a rank, whose memory is traced until it ends."""
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("untraced")
def test_no_line_is_searched_if_another_tool_traces_memory_with_short_stacks() -> None:
    tracemalloc.start(1)
    kept = list[Spec]()
    assert lines_of_left(lambda: kept.extend(Spec() for _ in range(4)), traces=True)["python_objects"] == {}


@pytest.mark.usefixtures("frozen", "untraced")
def test_objects_that_each_step_leaves_behind_have_a_line_and_those_held_by_the_last_step_have_none() -> None:
    kept, held = list[Spec](), list[Spec]()

    def step() -> None:
        kept.extend(Spec() for _ in range(4))
        held[:] = [Spec() for _ in range(9)]

    found = lines_of_left(step, traces=True)["python_objects"]
    assert tracemalloc.is_tracing(), "to stop while a thread allocates and waits for Python's lock would crash"
    first = step.__code__.co_firstlineno
    assert {(Path(place.file), place.line - first) for place in found} == {(Path(__file__), 1)}
    assert min(found.values()) >= 4.0
    assert len(kept) == 3 * 4


def in_a_thread(step: Callable[[], None]) -> None:
    """Runs a step in a thread of its own, in which autograd numbers the nodes anew."""
    thread = Thread(target=step)
    thread.start()
    thread.join(60)


@pytest.mark.usefixtures("frozen", "untraced")
@pytest.mark.parametrize("run", [lambda step: step(), in_a_thread], ids=["main thread", "a thread for each step"])
@pytest.mark.parametrize(("summed", "nodes"), [(False, 3.0), (True, 4.0)])
def test_a_loss_kept_or_summed_with_its_graph_is_counted_and_has_its_line(
    run: Callable[[Callable[[], None]], None], *, summed: bool, nodes: float
) -> None:
    """Each step adds the nodes of the loss, of two products, and of the sum. The last weights are held for one step."""
    weight, last = torch.ones(3, requires_grad=True), {"total": torch.zeros(())}
    kept, detached = list[Tensor](), list[Tensor]()

    def step() -> None:
        loss = torch.nn.functional.mse_loss(weight * 1 * 2, torch.zeros(3))
        loss.backward()  # type: ignore[no-untyped-call]
        if summed:
            last["total"] = last["total"] + loss
        else:
            kept.append(loss)
        detached.append(loss.detach())
        last["weights"] = weight * 2

    census = ObjectCensus()
    for steps in range(7):
        run(step)
        if steps in {1, 3, 5}:
            census.take(steps)
        node: Any = (kept or [last["total"]])[-1].grad_fn
        node.metadata["of the user"] = []  # so that the collector tracks the dictionary, as it does in Python 3.14
    left, _ = census.left_behind()
    assert left["graphs_kept"] == {"nodes of graphs": nodes}
    assert left["python_objects"].keys() <= {"torch.Tensor", "list"}, "nodes are not counted twice"
    ((place, per_step),) = lines_of_left(step, traces=True, graphs=True)["graphs_kept"].items()
    line = place.line - step.__code__.co_firstlineno
    assert (place.file, line, per_step) == (__file__, 4 if summed else 1, 1.0)
    assert not torch.is_anomaly_enabled()


class Unreadable(Tensor):
    """A user's tensor with a ``grad_fn`` of its own."""

    @property
    def grad_fn(self) -> Any:  # type: ignore[override]
        raise AttributeError("it has none")


@pytest.mark.usefixtures("frozen")
def test_the_last_graph_may_grow_from_step_to_step() -> None:
    census, last = ObjectCensus(), dict[str, Tensor]()
    other = torch.ones(1).as_subclass(Unreadable)
    for steps in range(12):
        last["loss"] = torch.ones(1, requires_grad=True) * 1
        for _ in range(steps):
            last["loss"] = last["loss"] * 2
        if steps in {2, 6, 10}:
            census.take(steps)
    assert isinstance(other, Unreadable)
    left, unknown = census.left_behind()
    assert (left["graphs_kept"], unknown) == ({}, {})


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("error", [TrainingEnded("it has ended"), StopIteration()])
def test_no_line_is_known_if_training_ends_in_the_second_step(error: Exception) -> None:
    kept = list[Spec]()

    def step() -> None:
        kept.extend(Spec() for _ in range(4))
        if len(kept) > 4:
            raise error

    assert lines_of_left(step, traces=True)["python_objects"] == {}  # one step tells nothing
    assert len(kept) == 2 * 4


def test_a_rank_that_leaves_nothing_behind_takes_as_many_steps_as_the_others() -> None:
    made = list[int]()
    assert lines_of_left(lambda: made.append(1), traces=False) == {"python_objects": {}, "graphs_kept": {}}
    assert len(made) == 3
