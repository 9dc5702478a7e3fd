"""What a step makes a GPU do, read from the profiler's events."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

from pytest_ddpperf.instruments.activity import activity_of

_ANONYMOUS = "(anonymous namespace)::"
_ARGUMENTS = re.compile(r"[<(].*", re.DOTALL)
_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})


def device_work(run: Callable[[], object]) -> dict[str, dict[str, float]]:
    """The details of ``kernel_launches`` and ``device_copies`` of one step on a GPU."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        run()
        torch.cuda.synchronize()
    results = profiler.profiler.kineto_results if profiler.profiler is not None else None
    return work_in((activity_of(event), event.name()) for event in results.events()) if results is not None else {}


def work_in(events: Iterable[tuple[str, str]]) -> dict[str, dict[str, float]]:
    """The kernels and copies among a profiler's events.

    Args:
        events: the type of each event's activity as Kineto has it (``kernel``, ``gpu_memcpy``, ``gpu_memset``; host
            side ones are left out), and its name.

    Returns:
        ``kernel_launches`` by the kernel's name without its arguments, ``device_copies`` by kind (``Memcpy HtoD``).
    """
    kernels: Counter[str] = Counter()
    copies: Counter[str] = Counter()
    for activity, name in events:
        short = _ARGUMENTS.sub("", name.removeprefix("void ").replace(_ANONYMOUS, "")).strip()
        if activity == "kernel":
            kernels[short] += 1
        elif activity in _COPIES:
            copies[short] += 1
    return {
        "kernel_launches": {name: float(times) for name, times in kernels.items()},
        "device_copies": {name: float(times) for name, times in copies.items()},
    }
