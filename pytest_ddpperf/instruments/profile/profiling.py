"""Runs steps under torch's profiler, reads their collectives, and writes traces and snapshots of a GPU's memory."""

from __future__ import annotations

import contextlib
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

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.clock import collector_paused
from pytest_ddpperf.instruments.profile import events
from pytest_ddpperf.instruments.torch_internals import activity_of, discard_first_profile
from pytest_ddpperf.records.phases import LearningRates, RankProfile, Window

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

    All ranks call this function after their warm-up steps. ``warmup`` more steps warm up the profiler. An additional
    last step lets gloo's threads record the ends of collectives. On CUDA the host waits for each step, so that the step
    contains its kernels. If ``modules`` has DDP wrappers, the result has the times that DDP measures. ``exported`` is
    called with a function that returns the Chrome trace.
    """
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    if cuda:
        discard_first_profile()
    # Within a single cycle acc_events only keeps torch 2.11 from warning of several cycles.
    with collector_paused(), profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        for name in (*[events.WARMUP_STEP] * warmup, *[events.STEP] * steps, events.LAST_STEP):
            with record_function(name):
                run()
                if cuda:
                    torch.cuda.synchronize(device)
    results: Any = profiler.profiler
    recorded = results.kineto_results.events()
    began = min(event.start_ns() for event in recorded)
    trace = cache(partial(saved, results.kineto_results.save))  # torch saves a trace once
    notes = notes_of(recorded, trace)
    found = [_event(event, began, notes) for event in recorded]
    exported(trace)
    windows = (window_of(module) for module in modules if isinstance(module, DistributedDataParallel))
    groups = dist.distributed_c10d._world.pg_group_ranks.values()  # noqa: SLF001  there is no other list of them
    subgroups = any(len(group) < dist.get_world_size() for group in groups)
    return RankProfile(
        steps=events.steps_of(found, device=device.type), window=next(windows, None), subgroups=subgroups
    )


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


def notes_of(recorded: Sequence[Any], trace: Callable[[], Mapping[str, Any]]) -> dict[int, events.Note]:
    """Returns a ``Note`` (kind, bytes, ranks) on each collective that NCCL ran, by the profiler's correlation id."""
    noted = [event for event in recorded if event.name() == events.EVENT]
    if not noted:
        return {}
    if hasattr(noted[0], "extra_meta"):
        fields = {event.correlation_id(): event.extra_meta() for event in noted}
    else:
        fields = events.notes_in_trace(trace())  # before torch 2.12
    kernels = [
        event.linked_correlation_id() for event in recorded if events.is_nccl_kernel(event.name(), activity_of(event))
    ]
    copies = {event.linked_correlation_id() for event in recorded if activity_of(event) == _COPY} - {*kernels}
    return events.notes_by_link(kernels, copies, fields)


def _event(event: Any, began: int, notes: Mapping[int, events.Note]) -> events.ProfilerEvent:
    name, activity = event.name(), activity_of(event)
    plain = events.ProfilerEvent(
        name=name,
        activity=activity,
        start=(event.start_ns() - began) * _NANOSECOND,
        end=(event.end_ns() - began) * _NANOSECOND,
        nbytes=events.bytes_of(event.dtypes(), event.shapes()) if name.startswith("gloo:") else None,
    )
    note = notes.get(event.linked_correlation_id())
    sends = note is not None and (activity == _COPY if note.copied else events.is_nccl_kernel(name, activity))
    return plain if note is None or not sends else replace(plain, nbytes=note.nbytes, kind=note.kind, ranks=note.ranks)


_MICROSECOND, _BASE = 1000, "baseTimeNanoseconds"  # in nanoseconds; the field of a trace that its times start from
_MOST_ALLOCATIONS = 100_000  # in a snapshot; torch's viewer gets slow beyond


def write_trace(document: Mapping[str, Any], file: Path, rank: int, rates: Sequence[LearningRates]) -> None:
    """Writes a rank's Chrome trace with its optimizers' learning rates; raises SettingError if it cannot be written."""
    text = json.dumps(completed(document, rank, rates), separators=(",", ":"))
    _replaced(file, lambda draft: draft.write_text(text, encoding="utf-8"))


def completed(document: Mapping[str, Any], rank: int, rates: Sequence[LearningRates]) -> dict[str, Any]:
    """Returns torch's trace with processes named after the rank, and with counters of the learning rates.

    Each step is also an event ``ProfilerStep#N``, because other tools expect such events. The JSON begins with the
    events, because some readers ignore events after other keys.
    """
    found = [_named(event, rank) for event in document["traceEvents"]]
    spans = [event for event in found if event.get("ph") == "X" and event.get("cat") == events.ANNOTATION]
    steps = sorted((event for event in spans if event["name"] == events.STEP), key=lambda event: event["ts"])
    found += [{**event, "name": f"ProfilerStep#{number}", "args": {}} for number, event in enumerate(steps)]
    begin = min((event["ts"] for event in spans), default=0)
    process = spans[0]["pid"] if spans else 0
    for number, notes in enumerate(rates):
        name = f"learning rate {number}" if len(rates) > 1 else "learning rate"
        for at, groups in notes:
            ts = (at - int(document.get(_BASE, 0))) / _MICROSECOND
            args = {f"group {group}": rate for group, rate in enumerate(groups)}
            if ts >= begin:  # not of the steps before the trace
                found.append({"ph": "C", "name": name, "pid": process, "tid": 0, "ts": ts, "args": args})
    return {"traceEvents": found, **{name: value for name, value in document.items() if name != "traceEvents"}}


def _named(event: Mapping[str, Any], rank: int) -> Mapping[str, Any]:
    if event.get("name") != "process_name":
        return event
    return {**event, "args": {**event.get("args", {}), "name": f"rank {rank}"}}


def write_snapshot(run: Callable[[], object], steps: int, device: torch.device, file: Path) -> str:
    """Writes a snapshot of a GPU's memory over ``steps`` calls of ``run``; returns the error's text, "" if none.

    The steps run even after an error, because other ranks wait for them. Recording each allocation makes steps slow.
    """
    memory: Any = torch.cuda.memory
    reason = _error_of(lambda: memory._record_memory_history(max_entries=_MOST_ALLOCATIONS))  # noqa: SLF001  no public way
    for _ in range(steps):
        run()
    torch.cuda.synchronize(device)
    if reason:
        return reason
    try:
        return _error_of(lambda: _replaced(file, lambda draft: memory._dump_snapshot(str(draft))))  # noqa: SLF001  the same
    finally:
        memory._record_memory_history(enabled=None)  # noqa: SLF001  the same


def _error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (RuntimeError, AttributeError) as error:
        return str(error).partition("\n")[0]
    return ""


def _replaced(file: Path, write: Callable[[Path], object]) -> None:
    """Writes a file under another name and then renames it, so that no reader sees a part of it."""
    draft = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write(draft)
        draft.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        reason = f"--ddpperf-profile={file.parent}: {file.name} cannot be written: {error.strerror or error}"
        raise SettingError(f"{reason}; name a folder that all ranks can write to") from None
