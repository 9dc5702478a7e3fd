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
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from pytest_ddpperf.errors import TrainingEnded
from pytest_ddpperf.instruments.counting.python import ObjectCensus, calls_counted, lines_of_left


class Spec:
    """What a faulty step keeps."""


@pytest.fixture
def frozen() -> Iterator[None]:
    """As in a rank: what was there before is not counted."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@pytest.mark.usefixtures("frozen")
def test_the_objects_that_each_step_leaves_behind_are_counted_by_type() -> None:
    """Three steps, then two: each leaves four objects and a list of them."""
    census, kept = ObjectCensus(), list[list[Spec]]()
    for steps in range(6):
        kept.append([Spec() for _ in range(4)])
        if steps in {0, 3, 5}:
            census.take(steps)
    found = census.left_behind()
    assert found is not None
    assert found[name(Spec)] == 4.0
    assert found["list"] == 1.0


@pytest.mark.usefixtures("frozen")
def test_what_grows_in_one_stretch_only_is_a_cache() -> None:
    census, kept = ObjectCensus(), list[Spec]()
    for steps in (0, 2, 4):
        if steps == 2:
            kept.extend(Spec() for _ in range(100))
        census.take(steps)
    found = census.left_behind()
    assert found is not None
    assert name(Spec) not in found


@pytest.mark.usefixtures("frozen")
def test_garbage_in_cycles_is_not_left_behind() -> None:
    census = ObjectCensus()
    for steps in (0, 2, 4):
        for _ in range(20):
            spec = Spec()
            spec.__dict__["me"] = spec
        del spec
        census.take(steps)
    found = census.left_behind()
    assert found is not None
    assert name(Spec) not in found


@pytest.mark.usefixtures("frozen")
def test_fewer_than_three_counts_tell_nothing() -> None:
    census, kept = ObjectCensus(), list[Spec]()
    assert census.left_behind() is None
    for steps in (0, 2):
        kept.extend(Spec() for _ in range(100))
        census.take(steps)
    assert census.left_behind() is None


@pytest.mark.usefixtures("frozen")
def test_an_object_of_a_type_without_a_module_is_counted() -> None:
    """As a template makes one."""
    made: dict[str, object] = {}
    exec("kept = [type('T', (), {})()]", {}, made)  # noqa: S102
    assert not hasattr(type(made["kept"][0]), "__module__")  # type: ignore[index]
    census = ObjectCensus()
    for steps in (0, 1, 2):
        census.take(steps)
    assert census.left_behind() is not None


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
    left = census.left_behind()
    assert left is not None
    assert not {name(Spec), "torch.multiprocessing.reductions.StorageWeakRef", "dict"} & left.keys()


@pytest.fixture
def untraced() -> Iterator[None]:
    """As in a rank, whose memory is traced until it ends."""
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("untraced")
def test_memory_is_traced_once_and_never_stopped() -> None:
    """A thread that allocates while it waits for Python's lock would crash the process."""
    for _ in range(2):
        kept = list[Spec]()
        assert lines_of_left(lambda kept=kept: kept.extend(Spec() for _ in range(4)), traces=True)  # type: ignore[misc]
        assert tracemalloc.is_tracing()


@pytest.mark.usefixtures("untraced")
def test_no_line_is_looked_for_if_somebody_else_traces_with_short_stacks() -> None:
    tracemalloc.start(1)
    kept = list[Spec]()
    assert lines_of_left(lambda: kept.extend(Spec() for _ in range(4)), traces=True) == {}


@pytest.mark.usefixtures("frozen", "untraced")
def test_what_each_step_leaves_behind_has_its_line_and_what_the_last_one_holds_has_none() -> None:
    kept, held = list[Spec](), list[Spec]()

    def step() -> None:
        kept.extend(Spec() for _ in range(4))
        held[:] = [Spec() for _ in range(9)]

    found = lines_of_left(step, traces=True)
    first = step.__code__.co_firstlineno
    assert {(Path(place.file), place.line - first) for place in found} == {(Path(__file__), 1)}
    assert min(found.values()) >= 4.0
    assert len(kept) == 3 * 4


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("error", [TrainingEnded("it has ended"), StopIteration()])
def test_no_line_is_known_if_training_ends_in_the_second_step(error: Exception) -> None:
    kept = list[Spec]()

    def step() -> None:
        kept.extend(Spec() for _ in range(4))
        if len(kept) > 4:
            raise error

    assert lines_of_left(step, traces=True) == {}  # one step tells nothing
    assert len(kept) == 2 * 4


def test_a_rank_that_leaves_nothing_behind_takes_as_many_steps_as_the_others() -> None:
    made = list[int]()
    assert lines_of_left(lambda: made.append(1), traces=False) == {}
    assert len(made) == 3


def test_a_process_counts_once_however_it_is_started() -> None:
    calls = Counter[tuple[str, str]]()
    with calls_counted(lambda metric, name: calls.update([(metric, name)]), "cpu"):
        child = multiprocessing.get_context("fork").Process(target=gc.isenabled)
        child.start()
        subprocess.run(["true"], check=True)
        for _ in DataLoader(TensorDataset(torch.zeros(1)), num_workers=1):
            pass
    child.join()
    names = ("multiprocessing.Process.start", "subprocess.Popen.__init__")
    assert calls == {("processes_started", name): 1 for name in names}


def test_what_another_thread_calls_is_left_out_for_the_clock_decides_how_often_it_does() -> None:
    calls = Counter[tuple[str, str]]()
    monitor = threading.Thread(target=gc.collect)
    with calls_counted(lambda metric, name: calls.update([(metric, name)]), "cpu"):
        monitor.start()
        monitor.join()
        gc.collect()
    assert calls == {("allocator_calls", "gc.collect"): 1}


@pytest.mark.parametrize(
    ("device", "waits"), [("cpu", {"tensor.cpu": 1, "tensor.tolist": 1, "print(tensor)": 2}), ("cuda", {})]
)
def test_copies_to_the_host_and_checkpoints_count_if_no_operator_shows_them(device: str, waits: dict[str, int]) -> None:
    calls, tensor = Counter[tuple[str, str]](), torch.ones(2)
    with calls_counted(lambda metric, name: calls.update([(metric, name)]), device):
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
    calls, tensor = Counter[tuple[str, str]](), torch.ones(2, requires_grad=True)
    with calls_counted(lambda metric, part: calls.update([(metric, part)]), "cpu"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anomaly detection warns that it is slow
        with mode():
            tensor.sum().backward()  # type: ignore[no-untyped-call, unused-ignore]
    assert calls == {("backward_passes", "backward"): 1, **({("slow_modes", name): 1} if name else {})}
