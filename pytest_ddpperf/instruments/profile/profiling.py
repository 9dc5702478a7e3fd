"""Runs steps under torch's profiler, and reads torch's records on the collectives in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_ddpperf.instruments.clock import collector_paused
from pytest_ddpperf.instruments.profile.events import (
    EVENT,
    LAST_STEP,
    STEP,
    WARMUP_STEP,
    Note,
    ProfilerEvent,
    bytes_of,
    is_nccl_kernel,
    notes_in_trace,
    notes_of_copies,
    notes_of_kernels,
    steps_of,
)
from pytest_ddpperf.instruments.torch_internals import activity_of, discard_first_profile
from pytest_ddpperf.records.phases import RankProfile, Window

_COPY = "gpu_memcpy"
_NANOSECOND = 1e-9


def profile_steps(
    run: Callable[[], Any],
    steps: int,
    device: torch.device,
    modules: Sequence[nn.Module] = (),
    *,
    warmup: int = 1,
    exported: Callable[[Callable[[], Mapping[str, Any]]], object] = lambda _: None,
) -> RankProfile:
    """Runs ``run`` ``steps`` times under torch's profiler; returns the communication and computation in these steps.

    All ranks call this function after their warm-up steps. First, ``warmup`` more steps warm up the profiler. A last
    step lets gloo's threads record the ends of collectives. On CUDA the host waits for each step, so that the step
    contains its kernels. If ``modules`` has DDP wrappers, the times that DDP measures are returned, too. ``exported``
    is called with a function that returns the Chrome trace.
    """
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    if cuda:
        discard_first_profile()
    # Within a single cycle acc_events only keeps torch 2.11 from warning of several cycles.
    with collector_paused(), profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        for name in (*[WARMUP_STEP] * warmup, *[STEP] * steps, LAST_STEP):
            with record_function(name):
                run()
                if cuda:
                    torch.cuda.synchronize(device)
    results: Any = profiler.profiler
    recorded = results.kineto_results.events()
    began = min(event.start_ns() for event in recorded)
    trace = cache(partial(saved, results.kineto_results.save))  # torch saves a trace once
    notes = notes_of(recorded, trace)
    events = [_event(event, began, notes) for event in recorded]
    exported(trace)
    windows = (window_of(module) for module in modules if isinstance(module, DistributedDataParallel))
    groups = dist.distributed_c10d._world.pg_group_ranks.values()  # noqa: SLF001  there is no other list of them
    subgroups = any(len(group) < dist.get_world_size() for group in groups)
    return RankProfile(steps=steps_of(events, device=device.type), window=next(windows, None), subgroups=subgroups)


def window_of(module: DistributedDataParallel) -> Window | None:
    """Returns the times of communication and overlap that DDP measures in sampled steps; None before the first sample.

    DDP samples the first ten steps, then each hundredth; see torch/csrc/distributed/c10d/logger.cpp.
    """
    data = module._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # noqa: SLF001  there is no other way to it
    communicated, overlapped = (data.get(f"avg_backward_{name}_time") for name in ("comm", "compute_comm_overlap"))
    if not communicated or overlapped is None:
        return None
    return Window(communication=communicated * _NANOSECOND, overlapped=overlapped * _NANOSECOND)


def saved(save: Callable[[str], object]) -> Mapping[str, Any]:
    """Lets ``save`` write a Chrome trace to a temporary file, and returns the trace's JSON data."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        save(str(file))
        found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8", errors="replace"), strict=False)
    return found


def notes_of(recorded: Sequence[Any], trace: Callable[[], Mapping[str, Any]]) -> dict[int, Note]:
    """Returns a ``Note`` for each collective that NCCL ran as a kernel or by copies, by correlation id.

    ``trace`` returns the saved Chrome trace. Before torch 2.12, only this trace has the fields of torch's records.
    """
    noted = [event for event in recorded if event.name() == EVENT]
    if not noted:
        return {}
    if hasattr(noted[0], "extra_meta"):
        fields = {event.correlation_id(): event.extra_meta() for event in noted}
    else:
        fields = notes_in_trace(trace())
    kernels = [event.linked_correlation_id() for event in recorded if is_nccl_kernel(event.name(), activity_of(event))]
    copies = [event.linked_correlation_id() for event in recorded if activity_of(event) == _COPY]
    return {**notes_of_copies(set(copies) - set(kernels), fields), **notes_of_kernels(kernels, fields)}


def _event(event: Any, began: int, notes: Mapping[int, Note]) -> ProfilerEvent:
    name, activity = event.name(), activity_of(event)
    plain = ProfilerEvent(
        name=name,
        activity=activity,
        start=(event.start_ns() - began) * _NANOSECOND,
        end=(event.end_ns() - began) * _NANOSECOND,
        nbytes=bytes_of(event.dtypes(), event.shapes()) if name.startswith("gloo:") else None,
    )
    note = notes.get(event.linked_correlation_id())
    sends = note is not None and (activity == _COPY if note.copied else is_nccl_kernel(name, activity))
    return plain if note is None or not sends else replace(plain, nbytes=note.nbytes, kind=note.kind, ranks=note.ranks)
