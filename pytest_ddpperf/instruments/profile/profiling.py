"""Steps under torch's profiler, and what torch notes of the collectives in them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

from pytest_ddpperf.instruments.clock import collector_paused
from pytest_ddpperf.instruments.profile.events import STEP, ProfilerEvent, is_nccl_kernel, steps_of
from pytest_ddpperf.instruments.torch_internals import activity_of, discard_first_profile
from pytest_ddpperf.records.communication import RankProfile, Window

EVENT = "record_param_comms"

_COPY = "gpu_memcpy"
_TEXTS = frozenset({"Collective name", "dtype"})

_KINDS = {  # by ProcessGroupNCCL's names; other names stay
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "_allgather_base": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
    "all_to_allv": "all_to_all",
}
_ITEM_SIZES = {  # by c10's names of types
    **dict.fromkeys(("Double", "Long", "UInt64", "ComplexFloat"), 8),
    **dict.fromkeys(("Float", "Int", "UInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Half", "BFloat16", "Short", "UInt16"), 2),
    **dict.fromkeys(("Byte", "Char", "Bool"), 1),
    **dict.fromkeys(("Float8_e5m2", "Float8_e4m3fn", "Float8_e5m2fnuz", "Float8_e4m3fnuz"), 1),
    "ComplexDouble": 16,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What is known of one collective before it begins."""

    kind: str  # ``all_reduce``, ``all_gather`` ...
    nbytes: float | None  # that this rank puts into it; None if the type is unknown
    ranks: int | None  # of its group; None if that is not noted
    copied: bool = False  # whether copy engines send it, and no kernel


def note_of(fields: Mapping[str, Any]) -> Note | None:
    """The note with these fields, texts in JSON or values; None if it is of no collective."""
    name = _value(fields, "Collective name")
    if not name or name == "wait":
        return None
    count, size = _value(fields, "In msg nelems"), _ITEM_SIZES.get(str(_value(fields, "dtype")))
    ranks = _value(fields, "Group size")
    return Note(
        kind=_KINDS.get(name, name),
        nbytes=None if count is None or size is None else float(count * size),
        ranks=ranks or None,
    )


def notes_in_trace(trace: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """The fields of each note in an exported trace, by the number that kernels are linked to."""
    events = (event for event in trace.get("traceEvents", ()) if event.get("name") == EVENT)
    return {event["args"]["External id"]: event["args"] for event in events if "External id" in event.get("args", {})}


def notes_of_kernels(links: Iterable[int], fields: Mapping[int, Mapping[str, Any]]) -> dict[int, Note]:
    """The notes of those numbers that exactly one kernel of NCCL is linked to.

    ``links`` holds the number of each kernel, 0 for none. If collectives are sent as a group, one note stands for
    several kernels, or one kernel for several notes: then nobody knows what a kernel sent. A kernel that stands for
    several notes is linked to none of them.
    """
    noted = {
        number: note_of(fields[number]) for number, times in Counter(links).items() if times == 1 and number in fields
    }
    return {number: note for number, note in noted.items() if note is not None}


def notes_of_copies(links: Iterable[int], fields: Mapping[int, Mapping[str, Any]]) -> dict[int, Note]:
    """The notes of those numbers that copies alone are linked to: collectives that copy engines send.

    One has a copy for each peer, so none tells the bytes of the whole.
    """
    noted = {number: note_of(fields[number]) for number in links if number in fields}
    return {number: replace(note, nbytes=None, copied=True) for number, note in noted.items() if note is not None}


def _value(fields: Mapping[str, Any], name: str) -> Any:
    value = fields.get(name)
    if name in _TEXTS:
        return value.strip('"') if isinstance(value, str) else None
    return json.loads(value) if isinstance(value, str) else value


_SHAPE_ITEM_SIZES = {  # the profiler's names of types
    **dict.fromkeys(("double", "long", "long int", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short", "short int"), 2),
    **dict.fromkeys(("unsigned char", "signed char", "bool"), 1),
}
_NANOSECOND = 1e-9


def profile_steps(
    run: Callable[[], Any], steps: int, device: torch.device, modules: Sequence[nn.Module] = ()
) -> RankProfile:
    """Profiles what ``steps`` calls of ``run`` send and compute; a collective, called after the warm-up.

    One more step goes before, in which the profiler itself warms up, and one after, in which gloo's threads note the
    ends of collectives. On CUDA each step is waited for, so that its kernels are within it. ``modules`` are the
    models, if known, because DDP reports figures of its own.
    """
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    if cuda:
        discard_first_profile()
    # Within a single cycle acc_events only keeps torch 2.11 from warning of several cycles.
    with collector_paused(), profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
        for _ in range(steps + 2):
            with record_function(STEP):
                run()
                if cuda:
                    torch.cuda.synchronize(device)
    results: Any = profiler.profiler
    recorded = results.kineto_results.events()
    began = min(event.start_ns() for event in recorded)
    notes = notes_of(recorded, results.kineto_results.save)
    events = [_event(event, began, notes) for event in recorded]
    events += unended(results.kineto_results.experimental_event_tree(), began, events)
    found = steps_of(events, device=device.type)
    windows = [window_of(module) for module in modules if isinstance(module, DistributedDataParallel)]
    return RankProfile(steps=found[1:-1], window=next(iter(windows), None), subgroups=subgroups_made())


def subgroups_made() -> bool:
    """Whether this rank knows of process groups with fewer ranks than the world."""
    groups = dist.distributed_c10d._world.pg_group_ranks.values()  # noqa: SLF001  there is no other list of them
    return any(len(group) < dist.get_world_size() for group in groups)


def window_of(module: DistributedDataParallel) -> Window | None:
    """DDP's own figures for the steps that it samples (the first ten, then every hundredth); None before there are any.

    They are from ``_get_ddp_logging_data``, there in nanoseconds (torch/csrc/distributed/c10d/logger.cpp).
    """
    data = module._get_ddp_logging_data()  # type: ignore[no-untyped-call]  # noqa: SLF001  there is no other way to it
    communicated, overlapped = (data.get(f"avg_backward_{name}_time") for name in ("comm", "compute_comm_overlap"))
    if not communicated or overlapped is None:
        return None
    return Window(communication=communicated * _NANOSECOND, overlapped=overlapped * _NANOSECOND)


def notes_of(recorded: Sequence[Any], save: Callable[[str], object]) -> dict[int, Note]:
    """What is known of the collectives that NCCL's kernels send, by the number that the kernels are linked to.

    ``save`` writes the trace to a file: before torch 2.12 it holds what the events do not say.
    """
    noted = [event for event in recorded if event.name() == EVENT]
    if not noted:
        return {}
    if hasattr(noted[0], "extra_meta"):
        fields = {event.correlation_id(): event.extra_meta() for event in noted}
    else:
        with TemporaryDirectory() as folder:
            file = Path(folder, "trace.json")
            save(str(file))
            fields = notes_in_trace(json.loads(file.read_text(encoding="utf-8")))
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
        nbytes=_nbytes(event) if name.startswith("gloo:") else None,
    )
    note = notes.get(event.linked_correlation_id())
    sends = note is not None and (activity == _COPY if note.copied else is_nccl_kernel(name, activity))
    return plain if note is None or not sends else replace(plain, nbytes=note.nbytes, kind=note.kind, ranks=note.ranks)


def unended(roots: Iterable[Any], began: int, events: Sequence[ProfilerEvent]) -> list[ProfilerEvent]:
    """Collectives of gloo whose ends were not noted before the profile ended; each is taken to end with its step.

    DDP goes on when the result is there, and gloo's thread notes the end a moment later. A profile of torch 2.11 that
    ends before that has such a collective in its tree alone.
    """
    found, left = [], list(roots)
    step_ends = sorted(event.end for event in events if event.name == STEP)
    while left:
        event = left.pop()
        left += event.children
        if event.name.startswith("gloo:") and event.end_time_ns < event.start_time_ns:
            start = (event.start_time_ns - began) * _NANOSECOND
            end = next((end for end in step_ends if end > start), start)
            inputs = event.extra_fields.inputs
            known = inputs and all(hasattr(each, "sizes") for each in inputs)
            nbytes = sum(math.prod(each.sizes) * each.dtype.itemsize for each in inputs) if known else None
            found.append(ProfilerEvent(name=event.name, activity="cpu_op", start=start, end=end, nbytes=nbytes))
    return found


def _nbytes(event: Any) -> float | None:
    """The bytes of a collective's inputs, from their shapes and types; None if a type is unknown."""
    sizes = [_SHAPE_ITEM_SIZES.get(dtype) for dtype in event.dtypes()]
    if not sizes or None in sizes or len(sizes) != len(event.shapes()):
        return None
    return float(sum(math.prod(shape) * size for shape, size in zip(event.shapes(), sizes, strict=True) if size))
