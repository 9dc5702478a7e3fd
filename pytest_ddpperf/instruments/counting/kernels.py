"""What a step makes a GPU do, and how often it waits for it, read from the profiler's events."""

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
    """One event of a profile.

    Attributes:
        activity: what it is, as Kineto has it: ``kernel``, ``gpu_memcpy``, ``gpu_memset``, ``user_annotation`` ...
        name: as torch or CUDA has it.
        start: in nanoseconds; ``end`` likewise.
    """

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
    return work_in([Recorded(activity_of(one), one.name(), one.start_ns(), one.end_ns()) for one in results.events()])


def work_in(events: Sequence[Recorded]) -> dict[str, dict[str, float]]:
    """The kernels and copies among a profiler's events, and the host's waits for the device.

    Args:
        events: among them one named ``STEP``, which lasts as long as the host was in the step: a wait before or after
            it is ours or the profiler's own. Other events of the host are left out.

    Returns:
        ``kernel_launches`` by the kernel's name without its arguments, ``device_copies`` by kind (``Memcpy HtoD``),
        ``device_synchronisations`` by the call of CUDA's runtime, whoever made it: an ``.item()`` is one.
    """
    kernels: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    steps = [one for one in events if one.name == STEP and one.activity == "user_annotation"]
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
