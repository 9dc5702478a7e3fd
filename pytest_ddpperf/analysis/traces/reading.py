"""Reads the events of a Chrome trace of torch's profiler, and divides the time of a step among activities."""

from __future__ import annotations

import math
import re
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from pytest_ddpperf.errors import TraceError
from pytest_ddpperf.instruments.profile import events as profiler
from pytest_ddpperf.metrics.communication import merged
from pytest_ddpperf.records.phases import CommunicationProfile, ProfiledStep, RankProfile

_MICROSECOND = 1e-6
_LATEST = 1e18  # in microseconds, as the times of events are: later than any clock
_MOST_RANKS = 1 << 31
_STEP_OF_TORCH = re.compile(r"ProfilerStep#\d+")
_RANK_OF_FILE = re.compile(r"_rank_(\d+)_trace\.json(?:\.gz)?$")


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceEvent(profiler.ProfilerEvent):
    """One event of a trace; its times are seconds since the trace's zero."""

    place: tuple[str, str]  # process and thread, or device and stream


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """The trace of one rank."""

    rank: int
    world_size: int | None  # how many ranks there were; None if the trace does not say
    document: Mapping[str, Any]  # that it was read from
    events: tuple[TraceEvent, ...]  # all events with a duration, in no order
    device: str  # ``cuda`` if kernels ran, else ``cpu``
    subgroups: bool = False  # whether there were process groups of fewer ranks than all

    @cached_property
    def marks(self) -> tuple[profiler.Span, ...]:
        """Returns the spans of steps: named ``step``, or made by ``torch.profiler.schedule``; else the whole trace."""
        begin, end = min(event.start for event in self.events), max(event.end for event in self.events)
        return tuple(profiler.marks_of(self.events) or profiler.marks_of(self.events, _STEP_OF_TORCH)) or (
            (begin, end),
        )

    @cached_property
    def steps(self) -> tuple[ProfiledStep, ...]:
        """Returns the communication and computation of each step."""
        return profiler.steps_of(self.events, device=self.device, marks=self.marks)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankTimes:
    """The mean step of a rank's trace: the seconds of the step and of each activity."""

    rank: int
    steps: int  # number of steps in the trace
    step: float  # the whole step
    computed: float  # the time in which something was computed
    communicated: float  # the time in which a collective was under way
    overlapped: float  # the time in which both happened

    @property
    def idle(self) -> float:
        """Returns the seconds in which the rank neither computed nor communicated."""
        return self.step - self.computed - self.communicated + self.overlapped

    @property
    def overlap(self) -> float | None:
        """Returns the fraction of communication during which the rank computed; None if it did not communicate."""
        return self.overlapped / self.communicated if self.communicated else None


def rank_in_name(name: str) -> int | None:
    """Returns the rank in the name of a trace file that this plugin wrote; None for any other name."""
    found = _RANK_OF_FILE.search(name)
    return None if found is None else int(found[1])


def read_trace(document: object, name: str) -> RankTrace:
    """Returns the trace in a JSON document; raises TraceError, with ``name``, if the document has no timed events."""
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(events, list):
        raise TraceError(f"{name} is not a Chrome trace: it has no list traceEvents; name a trace of torch.profiler")
    try:
        found = tuple(event for each in events if isinstance(each, dict) and (event := _event(each)) is not None)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise TraceError(f"{name} is not a Chrome trace of torch.profiler: an event cannot be read ({error})") from None
    if not any(event.start < event.end for event in found):
        raise TraceError(f"{name} has no events with a duration: nothing ran in the recorded time; trace a step")
    told = document.get("distributedInfo")
    told = told if isinstance(told, dict) else {}
    rank, size, groups = told.get("rank", rank_in_name(name)), told.get("world_size"), told.get("pg_config")
    for number in (rank, size):
        if isinstance(number, int) and not 0 <= number <= _MOST_RANKS:
            raise TraceError(f"{name} is not a trace of a rank: it has {number} as its rank or world size")
    listed = groups if isinstance(groups, list) else []
    sizes = [group.get("pg_size") for group in listed if isinstance(group, dict)]
    return RankTrace(
        rank=rank if isinstance(rank, int) else 0,
        world_size=size if isinstance(size, int) else None,
        document=document,
        events=found,
        device="cuda" if any(event.activity == "kernel" for event in found) else "cpu",
        subgroups=isinstance(size, int) and any(isinstance(each, int) and each < size for each in sizes),
    )


def _event(raw: Mapping[str, Any]) -> TraceEvent | None:
    start, duration, name = raw.get("ts"), raw.get("dur"), raw.get("name")
    for time in (start, duration):
        if isinstance(time, (int, float)) and not abs(time) <= _LATEST:
            raise ValueError("the time of an event is out of range")
    if raw.get("ph") != "X" or not isinstance(start, (int, float)) or not isinstance(duration, (int, float)):
        return None
    if duration < 0:  # it has not ended
        return None
    name, activity, args = str(name), str(raw.get("cat", "")), raw.get("args") or {}
    nbytes, kind, ranks = None, "", None
    if name.startswith("gloo:"):
        types, shapes = args.get("Input type"), args.get("Input Dims")
        if isinstance(types, list) and isinstance(shapes, list) and all(map(_is_shape, shapes)):
            nbytes = profiler.bytes_of(types, shapes)
    elif profiler.is_nccl_kernel(name, activity) and (note := profiler.note_of(args)) is not None:
        nbytes, kind, ranks = note.nbytes, note.kind, note.ranks
    return TraceEvent(
        name=name,
        activity=activity,
        start=start * _MICROSECOND,
        end=(start + duration) * _MICROSECOND,
        nbytes=nbytes,
        kind=kind,
        ranks=ranks,
        place=(str(raw.get("pid")), str(raw.get("tid"))),
    )


def _is_shape(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(size, int) for size in value)


def times_of(trace: RankTrace) -> RankTimes:
    """Returns the mean step of a trace, with its time by activity."""
    steps = trace.steps
    return RankTimes(
        rank=trace.rank,
        steps=len(steps),
        step=fmean(step.seconds for step in steps),
        computed=fmean(step.computed for step in steps),
        communicated=fmean(step.busy for step in steps),
        overlapped=fmean(step.overlapped for step in steps),
    )


def group_profile(traces: Sequence[RankTrace]) -> CommunicationProfile | None:
    """Returns the profile of a process group from the traces of all ranks, as ``--ddpperf-profile`` reports it.

    Returns None if a rank is missing, or if ranks differ in their number of steps.
    """
    sizes = {trace.world_size or len(traces) for trace in traces}
    if sizes != {len(traces)} or len({len(trace.steps) for trace in traces}) > 1:
        return None
    return merged(
        [
            RankProfile(steps=trace.steps, subgroups=trace.subgroups)
            for trace in sorted(traces, key=lambda trace: trace.rank)
        ]
    )


def in_steps(trace: RankTrace, event: profiler.ProfilerEvent) -> int | None:
    """Returns the number of the step in which an event begins; None if the event begins outside all steps."""
    number = bisect(trace.marks, (event.start, math.inf)) - 1
    return number if number >= 0 and event.start < trace.marks[number][1] else None
