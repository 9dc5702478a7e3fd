from __future__ import annotations

import gc
import io
import multiprocessing
import subprocess
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from gc import collect
from typing import Any

import pytest
import torch
from torch import nn
from torch.cuda import empty_cache
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from pytest_ddpperf.instruments.counting.python import calls_counted, drops_seen, mark_used


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


def test_calls_that_free_memory_or_wait_count_on_a_cpu_too_but_not_in_another_thread() -> None:
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


def test_functions_that_a_script_has_imported_by_name_count_too() -> None:
    before = collect, empty_cache
    with counted() as calls:
        collect()
        empty_cache()
    assert calls == {("allocator_calls", "gc.collect"): 1, ("allocator_calls", "torch.cuda.empty_cache"): 1}
    assert (collect, empty_cache) == before == (gc.collect, torch.cuda.empty_cache)


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


def test_a_pass_that_returns_the_gradients_of_parameters_counts_and_a_penalty_on_inputs_does_not() -> None:
    model, inputs = nn.Linear(2, 1), torch.ones(1, 2, requires_grad=True)
    with counted() as calls:
        for _ in range(2):
            torch.autograd.grad(model(inputs).sum(), (inputs, *model.parameters()))
        torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
    assert calls == {("backward_passes", "backward"): 2}


@pytest.mark.parametrize(("value", "slow"), [(None, 0), ("", 0), ("0", 0), ("1", 1)])
def test_a_variable_that_makes_each_kernel_wait_is_a_slow_mode(
    monkeypatch: pytest.MonkeyPatch, value: str | None, slow: int
) -> None:
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING", raising=False)
    if value is not None:
        monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    with counted() as calls:
        torch.ones(2, requires_grad=True).sum().backward()  # type: ignore[no-untyped-call, unused-ignore]
    assert calls["slow_modes", "CUDA_LAUNCH_BLOCKING"] == slow


def test_a_step_of_a_scheduler_counts_once_also_if_it_steps_others() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    warm, cosine = lr_scheduler.LinearLR(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, 9)
    both = lr_scheduler.SequentialLR(optimizer, [warm, cosine], [3])
    chained = lr_scheduler.ChainedScheduler([warm, cosine])
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
    optimizer.step()
    with counted() as calls:
        warm.step()
        both.step()
        chained.step()
        plateau.step(1.0)
    assert calls == {("scheduler_steps", "scheduler.step"): 4}


def drops(*, gradients: bool = True, used: bool = False, to_none: bool = True, twice: bool = False) -> int:
    """Count the drops of gradients by a model's and an optimizer's ``zero_grad`` after a backward pass."""
    model, found = nn.Linear(2, 2), list[int]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    with drops_seen(lambda: found.append(1)):
        if gradients:
            model(torch.ones(1, 2)).sum().backward()
        if used:
            optimizer.step()
            mark_used(parameter.grad for parameter in model.parameters() if parameter.grad is not None)
        optimizer.zero_grad(set_to_none=to_none)
        if twice:
            model.zero_grad(set_to_none=to_none)
    return len(found)


def test_gradients_are_dropped_if_no_optimizer_used_them_since_backward() -> None:
    assert drops() == drops(to_none=False) == drops(to_none=False, twice=True) == 1
    assert drops(used=True) == drops(used=True, to_none=False, twice=True) == 0
    assert drops(gradients=False) == 0  # of before, perhaps used


def test_gradients_are_found_although_autograd_refuses_some_views() -> None:
    flat = nn.Parameter(torch.ones(4))
    stale = torch.split(flat, 2)  # as the parameters of FSDP1 after a step
    with torch.no_grad():
        flat.mul_(2)
    with pytest.raises(RuntimeError, match="modified inplace"):
        _ = stale[0].is_leaf
    assert drops() == 1
