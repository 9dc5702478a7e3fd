from __future__ import annotations

import gc
import io
import multiprocessing
import subprocess
import threading
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pytest_ddpperf.errors import TrainingEnded
from pytest_ddpperf.instruments.counting.python import ObjectCensus, calls_counted, lines_of_left


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
    """Three steps, then two: each leaves four objects and a list of them; a cache fills up in one of these stretches.

    One object is of a type without a module, as a template makes one.
    """
    census, kept, cache, made = ObjectCensus(), list[list[Spec]](), list[Cached](), dict[str, Any]()
    exec("kept = [type('T', (), {})()]", {}, made)  # noqa: S102
    assert not hasattr(type(made["kept"][0]), "__module__")
    for steps in range(6):
        kept.append([Spec() for _ in range(4)])
        cache.extend(Cached() for _ in range(100 if steps == 4 else 0))
        for _ in range(20):
            Cycle()
        if steps in {0, 3, 5}:
            census.take(steps)
    found = census.left_behind()["python_objects"]
    assert (found[name(Spec)], found["list"]) == (4.0, 1.0)
    assert not {name(Cached), name(Cycle)} & found.keys()


@pytest.mark.usefixtures("frozen")
def test_fewer_than_three_counts_show_nothing() -> None:
    census, kept = ObjectCensus(), list[Spec]()
    assert census.left_behind() == {}
    for steps in (0, 2):
        kept.extend(Spec() for _ in range(100))
        census.take(steps)
    assert census.left_behind() == {}


@pytest.mark.usefixtures("frozen")
def test_what_workers_of_a_loader_have_sent_is_not_left_behind_by_steps() -> None:
    """torch notes each tensor that it receives until they are many, and keeps batches that come before their turn."""
    census, loader = ObjectCensus(), DataLoader(TensorDataset(torch.ones(64, 4)), 2, num_workers=1)
    batches: Any = iter(loader)
    for steps in range(6):
        next(batches)
        batches._task_info[100 + steps] = (0, {"early": [Spec() for _ in range(4)]})
        if steps in {0, 3, 5}:
            census.take(steps)
    for steps in range(6):
        del batches._task_info[100 + steps]
    left = census.left_behind()["python_objects"]
    assert not {name(Spec), "torch.multiprocessing.reductions.StorageWeakRef", "dict"} & left.keys()


@pytest.fixture
def untraced() -> Iterator[None]:
    """As in a rank, whose memory is traced until it ends."""
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("untraced")
def test_no_line_is_looked_for_if_somebody_else_traces_with_short_stacks() -> None:
    tracemalloc.start(1)
    kept = list[Spec]()
    assert lines_of_left(lambda: kept.extend(Spec() for _ in range(4)), traces=True)["python_objects"] == {}


@pytest.mark.usefixtures("frozen", "untraced")
def test_what_each_step_leaves_behind_has_its_line_and_what_the_last_one_holds_has_none() -> None:
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


@pytest.mark.usefixtures("frozen", "untraced")
@pytest.mark.parametrize(("summed", "nodes"), [(False, 3.0), (True, 4.0)])
def test_a_loss_kept_or_summed_with_its_graph_is_counted_and_has_its_line(*, summed: bool, nodes: float) -> None:
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
    for steps in range(6):
        step()
        if steps in {0, 3, 5}:
            census.take(steps)
    assert census.left_behind()["graphs_kept"] == {"nodes of graphs": nodes}
    ((place, per_step),) = lines_of_left(step, traces=True, graphs=True)["graphs_kept"].items()
    line = place.line - step.__code__.co_firstlineno
    assert (place.file, line, per_step) == (__file__, 4 if summed else 1, 1.0)
    assert not torch.is_anomaly_enabled()


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


@contextmanager
def counted(device: str = "cpu") -> Iterator[Counter[tuple[str, str]]]:
    """Count calls in this context by metric and name."""
    calls = Counter[tuple[str, str]]()

    def waited(name: str, _tensor: torch.Tensor) -> None:
        calls["synchronisations", name] += 1

    with calls_counted(lambda metric, name: calls.update([(metric, name)]), device, waited):
        yield calls


def test_a_process_counts_once_however_it_is_started() -> None:
    with counted() as calls:
        child = multiprocessing.get_context("fork").Process(target=gc.isenabled)
        child.start()
        subprocess.run(["true"], check=True)
        for _ in DataLoader(TensorDataset(torch.zeros(1)), num_workers=1):
            pass
    child.join()
    names = ("multiprocessing.Process.start", "subprocess.Popen.__init__")
    assert calls == {("processes_started", name): 1 for name in names}


def test_calls_that_free_memory_or_wait_count_on_a_cpu_too_but_not_those_of_another_thread() -> None:
    """The clock decides how often another thread calls."""
    monitor, before = threading.Thread(target=gc.collect), (gc.collect, torch.cuda.empty_cache)
    with counted() as calls:
        monitor.start()
        monitor.join()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.empty_cache()
        torch.get_device_module("cpu").synchronize()
    names = {"gc.collect": 1, "torch.cuda.empty_cache": 2, "torch.cpu.synchronize": 1}
    assert calls == {("allocator_calls", name): times for name, times in names.items()}
    assert (gc.collect, torch.cuda.empty_cache) == before


@pytest.mark.parametrize(
    ("device", "waits"), [("cpu", {"tensor.cpu": 1, "tensor.tolist": 1, "print(tensor)": 2}), ("cuda", {})]
)
def test_copies_to_the_host_and_checkpoints_count_if_no_operator_shows_them(device: str, waits: dict[str, int]) -> None:
    tensor = torch.ones(2)
    with counted(device) as calls:
        tensor.cpu()
        tensor.tolist()
        str(tensor)
        f"{tensor}"
        torch.save(tensor, io.BytesIO())
    assert calls == {
        **{("synchronisations", name): times for name, times in waits.items()},
        ("checkpoints_saved", "torch.save"): 1,
    }


@pytest.mark.parametrize(
    ("mode", "name"),
    [(torch.autograd.detect_anomaly, "anomaly detection"), (torch.profiler.profile, "profiler"), (nullcontext, "")],
)
def test_a_backward_pass_in_a_mode_that_slows_it_counts(mode: Callable[[], Any], name: str) -> None:
    tensor = torch.ones(2, requires_grad=True)
    with counted() as calls, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anomaly detection warns that it is slow
        with mode():
            tensor.sum().backward()  # type: ignore[no-untyped-call, unused-ignore]
    assert calls == {("backward_passes", "backward"): 1, **({("slow_modes", name): 1} if name else {})}
