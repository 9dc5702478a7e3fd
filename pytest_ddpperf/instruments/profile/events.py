"""Divides the events of a torch profile into communication and computation, step by step, without side effects.

On the CPU, gloo's threads run the collectives. A span ``gloo:all_reduce`` begins when a thread starts the collective,
even if other ranks have not reached it. A collective that waits for a free thread has no span yet. Computation is every
operator that does more than wait for a collective or call other operators.

On CUDA, NCCL's kernels are communication, and other kernels are computation. Copies and memsets are neither. But copies
are communication if torch's records assign them to a collective: NCCL 2.28 and newer may use only copies. A kernel of
NCCL lasts from its start until all ranks have taken part. With gloo on a GPU, the span includes the copy back to the
GPU, but not the earlier copy to the host.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_ddpperf.records.phases import Collective, ProfiledStep, collective_kind

Span = tuple[float, float]  # from, to


def union(spans: Iterable[Span]) -> list[Span]:
    """Returns the union of the spans, as ordered spans that do not touch; empty spans are dropped."""
    merged: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def length(spans: Sequence[Span]) -> float:
    """Returns the length of the union of the spans."""
    return sum(end - start for start, end in union(spans))


def within(spans: Sequence[Span], window: Span) -> list[Span]:
    """Returns the parts of ``spans`` in the window; ``spans`` must be ordered and separate, as ``union`` makes them."""
    first = bisect_right(spans, window[0], key=lambda span: span[1])
    last = bisect_left(spans, window[1], lo=first, key=lambda span: span[0])
    return [(max(start, window[0]), min(end, window[1])) for start, end in spans[first:last]]


ANNOTATION = "user_annotation"  # kineto's word for a named range
GPU_ANNOTATION = "gpu_user_annotation"  # kineto's word for what a GPU does of a named range

Class = Literal["communication", "computation", "memory"]

STEP, WARMUP_STEP, LAST_STEP = "step", "warmup_step", "last_step"  # ranges of a profile; only steps named STEP count
STEPS = frozenset({STEP, WARMUP_STEP, LAST_STEP})

_NOT_COMPUTED = ("c10d::", "_c10d_functional::", "c10d_functional::", "autograd::", "torch::autograd::")
# Kernels of a group with symmetric memory have separate names; the sum of a single rank has NCCL's name nowhere.
_NCCL = re.compile(
    r"(?:void )?(?:nccl(?:Symk?)?(?:Dev)?Kernel_?(?P<kind>[A-Za-z]+)|nccl"
    r"|(?:\(anonymous namespace\)::)?(?P<one>oneRankReduce)<)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfilerEvent:
    """One event of a profile; a field is None if the profile does not have it."""

    name: str
    activity: str  # kineto's word for what it is: ``cpu_op``, ``kernel``, ``user_annotation`` ...
    start: float  # seconds
    end: float
    nbytes: float | None = None  # that one rank puts into a collective
    kind: str = ""  # the kind of collective, if a note has it; empty to read it from the name
    ranks: int | None = None  # of a collective's group

    @property
    def span(self) -> Span:
        """Returns the span from start to end."""
        return self.start, self.end


def is_nccl_kernel(name: str, activity: str) -> bool:
    """Returns whether an event is a kernel of NCCL, which runs a collective on a GPU."""
    return activity == "kernel" and _NCCL.match(name) is not None


def class_of(event: ProfilerEvent) -> Class | None:
    """Returns the class of an event: communication, computation or memory; None for events that are ignored."""
    if event.activity == GPU_ANNOTATION:
        return None
    if event.kind or event.name.startswith("gloo:"):
        return "communication"
    if event.activity == "cpu_op":
        return "computation" if "::" in event.name and not event.name.startswith(_NOT_COMPUTED) else None
    if event.activity == "kernel":
        return "communication" if is_nccl_kernel(event.name, event.activity) else "computation"
    return "memory" if event.activity in {"gpu_memcpy", "gpu_memset"} else None


def kind_of(name: str) -> str:
    """Returns an event's collective: ``all_reduce`` for ``gloo:all_reduce`` and ``ncclDevKernel_AllReduce_...``."""
    if name.startswith("gloo:"):
        return name.removeprefix("gloo:")
    found = _NCCL.match(name)
    kind = "" if found is None else (found["kind"] or found["one"] or "").lower().removeprefix("onerank")
    return collective_kind(kind) if kind else name


def marks_of(events: Iterable[ProfilerEvent], name: re.Pattern[str] = re.compile(STEP)) -> list[Span]:
    """Returns the spans of a profile's steps, in order: the outermost ranges that are called ``name``."""
    found: list[Span] = []
    for start, end in sorted(each.span for each in events if each.activity == ANNOTATION and name.fullmatch(each.name)):
        if start < end and (not found or start >= found[-1][1]):  # a range inside is the user's own
            found.append((start, end))
    return found


def steps_of(
    events: Sequence[ProfilerEvent], *, device: str, marks: Sequence[Span] | None = None
) -> tuple[ProfiledStep, ...]:
    """Returns the steps in a rank's profile, each with communication and computation; ``marks``: the steps' spans."""
    communication = [event for event in events if class_of(event) == "communication"]
    # Operators on the CPU only launch the computation of ``cuda``.
    of_device = (event for event in events if (event.activity == "kernel") == (device == "cuda"))
    computation = [event.span for event in of_device if class_of(event) == "computation"]
    spans = union(event.span for event in communication), union(computation)
    communication.sort(key=lambda event: event.start)
    return tuple(_step(mark, communication, spans) for mark in (marks_of(events) if marks is None else marks))


def _step(mark: Span, communication: Sequence[ProfilerEvent], spans: Sequence[Sequence[Span]]) -> ProfiledStep:
    first, last = (bisect_left(communication, end, key=lambda event: event.start) for end in mark)
    both = [within(each, mark) for each in spans]
    busy, computed = map(length, both)
    overlapped = busy + computed - length([*both[0], *both[1]])
    return ProfiledStep(
        seconds=mark[1] - mark[0],
        busy=busy,
        computed=computed,
        overlapped=min(max(0.0, overlapped), busy, computed),  # rounding may exceed these by a little
        collectives=tuple(
            Collective(
                kind=event.kind or kind_of(event.name),
                seconds=event.end - event.start,
                nbytes=event.nbytes,
                ranks=event.ranks,
            )
            for event in communication[first:last]
        ),
    )


EVENT = "record_param_comms"

_TEXTS = frozenset({"Collective name", "dtype"})

_ITEM_SIZES = {  # by the names of types in small letters, of c10 and of the profiler
    **dict.fromkeys(("double", "long", "long int", "uint64", "complexfloat", "complex<float>"), 8),
    **dict.fromkeys(("float", "int", "uint32", "complexhalf"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "short int", "uint16"), 2),
    **dict.fromkeys(("byte", "char", "unsigned char", "signed char", "bool"), 1),
    **dict.fromkeys(("float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"), 1),
    "complexdouble": 16,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """The facts about a collective that torch records for the profiler when the collective is called."""

    kind: str  # ``all_reduce``, ``all_gather`` ...
    nbytes: float | None  # that this rank puts into it; None if the type is unknown
    ranks: int | None  # of its group; None if that is not noted
    copied: bool = False  # whether copy engines send it, and no kernel


def note_of(fields: Mapping[str, Any]) -> Note | None:
    """Parses the fields (values or JSON texts) of a torch record; returns None if it is not about a collective."""
    name = _value(fields, "Collective name")
    if not name or name == "wait":
        return None
    count, size = _value(fields, "In msg nelems"), _item_size(str(_value(fields, "dtype")))
    ranks = _value(fields, "Group size")
    return Note(
        kind=collective_kind(name),
        nbytes=None if count is None or size is None else float(count * size),
        ranks=ranks or None,
    )


def notes_in_trace(trace: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    """Returns the fields of torch's records on collectives in a saved Chrome trace, by correlation id."""
    events = (event for event in trace.get("traceEvents", ()) if event.get("name") == EVENT)
    return {event["args"]["External id"]: event["args"] for event in events if "External id" in event.get("args", {})}


def notes_by_link(
    kernels: Iterable[int], copies: Collection[int], fields: Mapping[int, Mapping[str, Any]]
) -> dict[int, Note]:
    """Returns, by correlation id, the ``Note`` of each collective that ran as one NCCL kernel or as memory copies.

    ``kernels`` and ``copies`` have correlation ids of NCCL kernels and of memory copies (0: unknown). ``fields`` has
    torch's records by correlation id. Collectives that are sent as a group get no note, because the bytes of a single
    collective are unknown. A note for copies has no bytes, because each copy is for one peer only.
    """
    once = [number for number, times in Counter(kernels).items() if times == 1]
    noted = {number: note_of(fields[number]) for number in {*once, *copies} if number in fields}
    return {
        number: replace(note, nbytes=None, copied=True) if number in copies else note
        for number, note in noted.items()
        if note is not None
    }


def _value(fields: Mapping[str, Any], name: str) -> Any:
    value = fields.get(name)
    if name in _TEXTS:
        return value.strip('"') if isinstance(value, str) else None
    return json.loads(value) if isinstance(value, str) else value


def bytes_of(types: Sequence[str], shapes: Sequence[Sequence[int]]) -> float | None:
    """Returns the bytes of tensors of these types (in the profiler's names) and shapes; None if a type is unknown."""
    sizes = list(map(_item_size, types))
    if not sizes or None in sizes or len(sizes) != len(shapes):
        return None
    return float(sum(math.prod(shape) * size for shape, size in zip(shapes, sizes, strict=True) if size))


def _item_size(dtype: str) -> int | None:
    return _ITEM_SIZES.get(dtype.lower().removeprefix("c10::"))
