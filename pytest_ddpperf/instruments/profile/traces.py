"""Writes files: a profile as a Chrome trace with the learning rate as a counter, and a snapshot of a GPU's memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.profile.events import ANNOTATION, STEP
from pytest_ddpperf.records.phases import LearningRates

_MICROSECOND, _BASE = 1000, "baseTimeNanoseconds"  # in nanoseconds; the field of a trace that its times start from
_MOST_ALLOCATIONS = 100_000  # in a snapshot; torch's viewer gets slow beyond


def write_trace(document: Mapping[str, Any], file: Path, rank: int, rates: Sequence[LearningRates]) -> None:
    """Writes a rank's Chrome trace with its optimizers' learning rates; SettingError if the file cannot be written."""
    text = json.dumps(completed(document, rank, rates), separators=(",", ":"))
    _replaced(file, lambda draft: draft.write_text(text, encoding="utf-8"))


def completed(document: Mapping[str, Any], rank: int, rates: Sequence[LearningRates]) -> dict[str, Any]:
    """Returns torch's trace with processes named after the rank, and with counters of the learning rates.

    Each step is also an event ``ProfilerStep#N``, as other tools expect it of ``torch.profiler.schedule``. The JSON
    begins with the events, because some readers ignore events after other keys.
    """
    events = [_named(event, rank) for event in document["traceEvents"]]
    spans = [event for event in events if event.get("ph") == "X" and event.get("cat") == ANNOTATION]
    steps = sorted((event for event in spans if event["name"] == STEP), key=lambda event: event["ts"])
    events += [{**event, "name": f"ProfilerStep#{number}", "args": {}} for number, event in enumerate(steps)]
    begin = min((event["ts"] for event in spans), default=0)
    process = spans[0]["pid"] if spans else 0
    for number, notes in enumerate(rates):
        name = f"learning rate {number}" if len(rates) > 1 else "learning rate"
        for at, groups in notes:
            ts = (at - int(document.get(_BASE, 0))) / _MICROSECOND
            args = {f"group {group}": rate for group, rate in enumerate(groups)}
            if ts >= begin:  # not of the steps before the trace
                events.append({"ph": "C", "name": name, "pid": process, "tid": 0, "ts": ts, "args": args})
    return {"traceEvents": events, **{name: value for name, value in document.items() if name != "traceEvents"}}


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
    """Calls ``call``; returns the first line of its RuntimeError or AttributeError, or "" if it raises none."""
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
        raise SettingError(
            f"--ddpperf-profile={file.parent}: {file.name} cannot be written: {error.strerror or error}; name a folder "
            "that all ranks can write to"
        ) from None
