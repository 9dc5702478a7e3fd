"""What a step makes a GPU do, and how often it waits for it, from the profiler's events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_ddpperf.instruments.activity import activity_of

STEP = "ddpperf_counted_step"

_ANONYMOUS = "(anonymous namespace)::"
_ARGUMENTS = re.compile(r"[<(].*", re.DOTALL)
_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})
_WAITS = frozenset({"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"})


class Recorded(NamedTuple):
    """One event of a profile: kineto's word for what it is, its name, start and end in nanoseconds."""

    activity: str
    name: str
    start: int = 0
    end: int = 0


def device_work(run: Callable[[], object]) -> dict[str, dict[str, float]]:
    """The details of ``kernel_launches``, ``device_copies`` and ``device_synchronisations`` of one step on a GPU."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        with record_function(STEP):
            run()
        torch.cuda.synchronize()
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    if results is None:
        return {}
    return work_in(
        [Recorded(activity_of(event), event.name(), event.start_ns(), event.end_ns()) for event in results.events()]
    )


def work_in(events: Sequence[Recorded]) -> dict[str, dict[str, float]]:
    """Counts kernels by name without arguments, copies by kind (``Memcpy HtoD``), and waits by the CUDA call.

    Only waits during the event ``STEP`` count, the time that the host was in the step: those before or after it are
    ours or the profiler's. An ``.item()`` is a wait.
    """
    kernels: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    steps = [event for event in events if event.name == STEP and event.activity == "user_annotation"]
    for event in events:
        short = _ARGUMENTS.sub("", event.name.removeprefix("void ").replace(_ANONYMOUS, "")).strip()
        if event.activity == "kernel":
            kernels[short] += 1
        elif event.activity in _COPIES:
            copies[short] += 1
        elif event.name in _WAITS and any(step.start <= event.start < step.end for step in steps):
            waits[event.name] += 1
    return {
        "kernel_launches": _floats(kernels),
        "device_copies": _floats(copies),
        "device_synchronisations": _floats(waits),
    }


def _floats(times: Counter[str]) -> dict[str, float]:
    return {name: float(number) for name, number in times.items()}
