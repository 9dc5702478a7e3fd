"""The differences between the traces of two runs: operators, kernels and collectives. They give no verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

from pytest_ddpperf.analysis.traces.reading import RankTrace, TraceEvent, in_steps
from pytest_ddpperf.instruments.profile.events import EVENT, class_of, kind_of

What: TypeAlias = Literal["operator", "kernel", "copy", "collective"]
Name: TypeAlias = "tuple[What, str]"

_ACTIVITIES: Mapping[str, What] = {"cpu_op": "operator", "kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy"}
_KINDS: tuple[What, ...] = ("operator", "kernel", "copy", "collective")
_MARKS = ("profiler::", EVENT)


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceUse:
    """The calls and the seconds of an operator, kernel or collective in a step; means over steps and ranks.

    An operator's time excludes the operators that it calls. A collective's time includes the wait for other ranks.
    """

    calls: float
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceChange:
    """The use of an operator, kernel or kind of collective; ``before`` or ``after`` is None if that run has no use."""

    what: What
    name: str
    before: TraceUse | None
    after: TraceUse | None

    @property
    def seconds(self) -> float:
        """Returns the increase in seconds per step from the first run to the second run; negative for a decrease."""
        return (self.after.seconds if self.after else 0.0) - (self.before.seconds if self.before else 0.0)

    @property
    def calls(self) -> float:
        """Returns the increase in calls per step from the first run to the second run; negative for a decrease."""
        return (self.after.calls if self.after else 0.0) - (self.before.calls if self.before else 0.0)

    @property
    def word(self) -> str:
        """Returns the kind of change: ``added``, ``gone``, ``more calls``, ``fewer calls``, ``slower``, ``faster``."""
        if self.before is None or self.after is None:
            return "added" if self.before is None else "gone"
        if self.calls:
            return "more calls" if self.calls > 0 else "fewer calls"
        return "slower" if self.seconds > 0 else "faster"


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceDifference:
    """The operators, kernels and collectives that differ between the traces of two runs."""

    steps: tuple[float, float]  # seconds of a step in each, mean over steps and ranks
    # First changes in the number of calls, which other load cannot cause, then changes in time; each the largest first.
    changes: tuple[TraceChange, ...]
    totals: tuple[TraceChange, ...]  # the sums over all operators, kernels, copies and collectives


def difference(before: Sequence[RankTrace], after: Sequence[RankTrace], least: float = 0.01) -> TraceDifference:
    """Returns the differences between the traces of two runs.

    If both runs call an operator, kernel or collective equally often, its difference in time is omitted if it is
    smaller than the fraction ``least`` of the first run's step time.
    """
    first, second = usage(before), usage(after)
    steps = _step(before), _step(after)
    every = [
        TraceChange(what=name[0], name=name[1], before=first.get(name), after=second.get(name))
        for name in dict.fromkeys([*first, *second])
    ]
    told = [change for change in every if change.calls or abs(change.seconds) >= least * steps[0]]
    return TraceDifference(
        steps=steps,
        changes=tuple(sorted(told, key=lambda change: (not change.calls, -abs(change.seconds)))),
        totals=tuple(
            TraceChange(what=what, name="all", before=_sum(first, what), after=_sum(second, what))
            for what in _KINDS
            if any(change.what == what for change in every)
        ),
    )


def usage(traces: Sequence[RankTrace]) -> dict[Name, TraceUse]:
    """Returns the operators, kernels and collectives that a step of a rank runs, by kind and name."""
    calls: dict[Name, int] = defaultdict(int)
    seconds: dict[Name, float] = defaultdict(float)
    for trace in traces:
        for name, time in _uses(trace):
            calls[name] += 1
            seconds[name] += time
    steps = sum(len(trace.marks) for trace in traces)
    return {name: TraceUse(calls=calls[name] / steps, seconds=seconds[name] / steps) for name in calls}


def _uses(trace: RankTrace) -> Iterator[tuple[Name, float]]:
    """Yields each operator, kernel, copy and collective that begins in a step, and its seconds."""
    operators: dict[tuple[str, str], list[TraceEvent]] = defaultdict(list)
    for event in trace.events:
        communicates = class_of(event) == "communication"
        what = "collective" if communicates else _ACTIVITIES.get(event.activity)
        if what is None or event.name.startswith(_MARKS) or in_steps(trace, event) is None:
            continue
        if communicates:
            size = "" if event.nbytes is None else f" of {int(event.nbytes)} B"
            yield (what, f"{event.kind or kind_of(event.name)}{size}"), event.end - event.start
        elif what == "operator":
            operators[event.place].append(event)
        else:
            yield (what, event.name), event.end - event.start
    for of_thread in operators.values():
        for event, own in _own_seconds(of_thread):
            yield ("operator", event.name), own


def _own_seconds(events: Sequence[TraceEvent]) -> Iterator[tuple[TraceEvent, float]]:
    """Yields a thread's events, each with its seconds minus the seconds of the events inside it."""
    around: list[tuple[TraceEvent, float]] = []  # from the outermost to the innermost, with the time inside them
    for event in sorted(events, key=lambda event: (event.start, -event.end)):
        while around and around[-1][0].end <= event.start:
            ended, inside = around.pop()
            yield ended, ended.end - ended.start - inside
        if around:
            outer, inside = around.pop()
            around.append((outer, inside + event.end - event.start))
        around.append((event, 0.0))
    for ended, inside in around:
        yield ended, ended.end - ended.start - inside


def _sum(uses: Mapping[Name, TraceUse], what: What) -> TraceUse | None:
    of_kind = [use for (kind, _), use in uses.items() if kind == what]
    if not of_kind:
        return None
    return TraceUse(calls=sum(use.calls for use in of_kind), seconds=sum(use.seconds for use in of_kind))


def _step(traces: Sequence[RankTrace]) -> float:
    return fmean(end - start for trace in traces for start, end in trace.marks)
