"""Turns a trace into seconds and bytes by phase and section. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pytest_ddpperf.instruments.live_memory import Reading
from pytest_ddpperf.instruments.phases.recorder import Trace
from pytest_ddpperf.records.phases import PHASES, MemoryKind, MemoryUse, PhaseTimes, SectionTimes


def break_down(trace: Trace, seconds: Sequence[float], memory: tuple[MemoryKind, Trace] | None = None) -> PhaseTimes:
    """Takes the steps of a trace apart, with the ``seconds`` between consecutive marks.

    The time between two marks belongs to one phase, and to every section around. So phases add up to the step, and
    nested sections overlap. ``memory`` is the trace of a step whose marks are readings of memory, and their kind.
    """
    steps = len(trace.starts)
    phases: dict[str, list[float]] = {phase: [0.0] * steps for phase in PHASES}
    whole: dict[str, list[float]] = defaultdict(lambda: [0.0] * steps)
    own: dict[str, list[float]] = defaultdict(lambda: [0.0] * steps)
    for step, interval in _intervals(trace):
        place, duration = trace.places[interval], seconds[interval]
        phases[place.phase][step] += duration
        for path in place.sections:
            whole[path][step] += duration
        if place.sections:
            own[place.sections[-1]][step] += duration
    counts = _entries(trace)
    of_phases, of_sections = ({}, {}) if memory is None else _memory_uses(*memory)
    return PhaseTimes(
        seconds={phase: tuple(times) for phase, times in phases.items()},
        sections=tuple(
            SectionTimes(
                path=path,
                count=counts[path] / steps,
                seconds=tuple(times),
                own_seconds=tuple(own[path]),
                memory=of_sections.get(path),
            )
            for path, times in whole.items()
        ),
        memory=of_phases,
    )


def _intervals(trace: Trace) -> Iterator[tuple[int, int]]:
    """Yields the number of the step and of each interval between marks."""
    for step, (first, end) in enumerate(pairwise((*trace.starts, len(trace.places)))):
        for interval in range(first, end):
            yield step, interval


def _entries(trace: Trace) -> dict[str, int]:
    """Counts how often each section was entered from the node just outside of it."""
    counts: dict[str, int] = defaultdict(int)
    for outside, place in pairwise(trace.places):
        if place.parent is outside and len(place.sections) > len(outside.sections):
            counts[place.sections[-1]] += 1
    return counts


def _memory_uses(kind: MemoryKind, trace: Trace) -> tuple[dict[str, MemoryUse], dict[str, MemoryUse]]:
    """The bytes of phases, without what is inside them, and of sections, with what is inside them."""
    phases: dict[str, MemoryUse] = {}
    sections: dict[str, MemoryUse] = {}
    readings: Sequence[Reading] = trace.marks
    for place, ((before, _), (after, peak)) in zip(trace.places, pairwise(readings), strict=True):
        _add(phases, place.phase, MemoryUse(kind=kind, change=after - before, peak=peak))
        for path in place.sections:
            _add(sections, path, MemoryUse(kind=kind, change=after - before, peak=peak))
    return phases, sections


def _add(uses: dict[str, MemoryUse], name: str, more: MemoryUse) -> None:
    before = uses.get(name)
    if before is not None:
        peaks = [peak for peak in (before.peak, more.peak) if peak is not None]
        more = MemoryUse(kind=more.kind, change=before.change + more.change, peak=max(peaks, default=None))
    uses[name] = more
