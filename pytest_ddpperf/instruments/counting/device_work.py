"""The work of a step on a GPU, as torch's profiler sees it: kernels, copies, and calls that wait for the device."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_ddpperf.instruments.torch_internals import activity_of

STEP = "ddpperf_counted_step"

_ANONYMOUS = "(anonymous namespace)::"
_ARGUMENTS = re.compile(r"[<(].*", re.DOTALL)
_COPIES = frozenset({"gpu_memcpy", "gpu_memset"})
_RUNTIME = re.compile(r"(?:cuda|hip)[A-Z]")
# Calls that return when the device has done its work: copies in one go, and memory that changes hands. Their names may
# end in the version of the call.
_WAITS = re.compile(
    r"((?:cuda|hip)(?:(?:Device|Stream|Event)Synchronize|Memcpy(?:2D|3D|HtoD|DtoH|WithStream|ToSymbol|FromSymbol)?"
    r"|Free(?:Host)?|HostFree|HostAlloc|HostMalloc|MallocHost))(?:_ptsz|_v\d+)*"
)


class Recorded(NamedTuple):
    """An event of a profile: its kind in kineto's words, its name, start and end in nanoseconds."""

    activity: str
    name: str
    start: int = 0
    end: int = 0


def device_work(run: Callable[[], object]) -> dict[str, dict[str, float]]:
    """Runs ``run`` on the GPU; counts kernels, copies and waits that the profiler sees, by metric and then by name."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profiler:
        with record_function(STEP):
            run()
        torch.cuda.synchronize()
    results: Any = profiler.profiler
    events = results.kineto_results.events()
    return work_in([Recorded(activity_of(event), event.name(), event.start_ns(), event.end_ns()) for event in events])


def work_in(events: Sequence[Recorded]) -> dict[str, dict[str, float]]:
    """Returns the numbers of kernels by name, of copies by kind (``Memcpy HtoD``), and of waits by the CUDA call.

    Only waits inside a step (the event ``STEP``) count: other waits belong to the plugin or the profiler. Without
    kernels the result is empty. If the profile has no CUDA calls, the numbers of waits are missing.
    """
    kernels, copies, waits = Counter[str](), Counter[str](), Counter[str]()
    steps = [event for event in events if event.name == STEP and event.activity == "user_annotation"]
    for event in events:
        short = _ARGUMENTS.sub("", event.name.removeprefix("void ").replace(_ANONYMOUS, "")).strip()
        wait = _WAITS.fullmatch(event.name)
        if event.activity == "kernel":
            kernels[short] += 1
        elif event.activity in _COPIES:
            copies[short] += 1
        elif wait is not None and any(step.start <= event.start < step.end for step in steps):
            waits[wait[1]] += 1
    if not kernels:
        return {}
    counted = {"kernel_launches": kernels, "device_copies": copies}
    if any(_RUNTIME.match(event.name) for event in events):
        counted["device_synchronisations"] = waits
    return {metric: {name: float(times) for name, times in found.items()} for metric, found in counted.items()}
