"""Computes the differences of the ranks' clocks from common collectives, and makes one trace of all ranks.

No rank can end a collective whose result needs the data of all ranks before the last rank has begun it. If the clock of
rank r is ahead of the first rank's clock by x seconds, then for each such collective

    begin on r - end on first  <=  x  <=  end on r - begin on first

So x lies within the bounds of all collectives. Ranks end a collective at about the same time, so the estimate of x is
the median of (end on r - end on first), limited to the bounds; the uncertainty is its distance to the farther bound.
This assumes only that no message is read before it is sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any, TypeAlias

from pytest_ddpperf.analysis.traces.reading import RankTrace, in_steps
from pytest_ddpperf.errors import TraceError
from pytest_ddpperf.instruments.profile.events import Span, class_of, kind_of

# Collectives that need the data of all ranks.
_MEETING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
_PROCESSES = 1000  # of one rank in a merged trace, at most
_MICROSECOND = 1e-6
_Key: TypeAlias = "tuple[int, str, float]"  # step, kind and bytes of a collective
_Meetings: TypeAlias = "Mapping[_Key, Sequence[Span]]"  # on one rank, in the order in which they began


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockAlignment:
    """The seconds to subtract from times in each rank's trace, to convert them to times of the first rank's clock."""

    shifts: tuple[float, ...]  # seconds by rank, in the order of the traces
    uncertainties: tuple[float, ...]  # the most that each can be wrong, in seconds
    collectives: int  # number of collectives that the corrections are computed from


def align(traces: Sequence[RankTrace]) -> ClockAlignment:
    """Computes the ranks' clock differences by the collectives in all traces; raises TraceError if that fails."""
    first, *others = traces
    numbers = [trace.rank for trace in traces]
    if len(set(numbers)) < len(numbers):
        raise TraceError(f"traces cannot be merged: two are of the same rank ({', '.join(map(str, numbers))})")
    meetings = [_meetings(trace, len(traces)) for trace in traces]
    _require_alike(traces, meetings)
    # Collectives that never overlap on any rank are in the same order on all ranks.
    pairs = {key: [pair for own in meetings for pair in pairwise(own[key])] for key in meetings[0]}
    common = [key for key, found in pairs.items() if all(before[1] <= after[0] for before, after in found)]
    if others and not common:
        raise TraceError(
            "traces cannot be merged, because the ranks' clocks cannot be aligned: the traces need an all_reduce, "
            "all_gather, reduce_scatter, all_to_all or barrier of all these ranks that overlaps no other collective"
        )
    found = [_ahead(first, meetings[0], trace, own, common) for trace, own in zip(others, meetings[1:], strict=True)]
    shifts, uncertainties = zip((0.0, 0.0), *found, strict=True)
    number = sum(len(meetings[0][key]) for key in common)
    return ClockAlignment(shifts=shifts, uncertainties=uncertainties, collectives=number)


def _ahead(
    first: RankTrace, theirs: _Meetings, trace: RankTrace, own: _Meetings, common: Sequence[_Key]
) -> tuple[float, float]:
    """Returns the seconds by which a rank's clock is ahead of the first rank's, and their uncertainty."""
    pairs = [pair for key in common for pair in zip(theirs[key], own[key], strict=True)]
    low = max(here[0] - there[1] for there, here in pairs)
    high = min(here[1] - there[0] for there, here in pairs)
    if low > high:
        raise TraceError(
            f"traces cannot be merged: no clock offset between ranks {trace.rank} and {first.rank} fits all "
            f"collectives (two need offsets at least {low - high:.2g} s apart). The ranks traced different steps, or a "
            "clock changed during the trace; trace all ranks again"
        )
    ahead = min(max(median(here[1] - there[1] for there, here in pairs), low), high)
    return ahead, max(high - ahead, ahead - low)


def _meetings(trace: RankTrace, ranks: int) -> _Meetings:
    """Returns the spans of the collectives in which all ``ranks`` ranks take part, by step, kind and bytes."""
    found: dict[_Key, list[Span]] = defaultdict(list)
    sent = (event for event in trace.events if class_of(event) == "communication")
    for event in sorted(sent, key=lambda event: event.start):
        kind, step = event.kind or kind_of(event.name), in_steps(trace, event)
        everyone = event.ranks == ranks if trace.subgroups else event.ranks in {None, ranks}
        if kind in _MEETING and step is not None and everyone:
            found[step, kind, -1.0 if event.nbytes is None else event.nbytes].append(event.span)
    return found


def _require_alike(traces: Sequence[RankTrace], meetings: Sequence[_Meetings]) -> None:
    numbers = [{key: len(spans) for key, spans in own.items()} for own in meetings]
    for trace, own in zip(traces, numbers, strict=True):
        if own != numbers[0]:
            raise TraceError(
                f"traces cannot be merged: the collectives of ranks {trace.rank} and {traces[0].rank} differ in "
                f"number ({sum(own.values())} and {sum(numbers[0].values())}), kind or size; trace the same steps"
            )


def merged_trace(traces: Sequence[RankTrace], alignment: ClockAlignment) -> dict[str, Any]:
    """Returns one Chrome trace of all ranks by the first rank's clock.

    Processes and flows (arrows from calls to kernels) get new numbers, so that no two ranks have the same number.
    Events come first in the document, because some readers ignore events after other keys.
    """
    events: list[dict[str, Any]] = []
    flows: dict[tuple[int, str], int] = {}  # their numbers, by the rank and the number that it gives them
    ranks = sorted(zip(traces, alignment.shifts, alignment.uncertainties, strict=True), key=lambda each: each[0].rank)
    for place, (trace, ahead, _) in enumerate(ranks):
        processes = dict[str, int]()
        for raw in trace.document["traceEvents"]:
            if not isinstance(raw, dict):
                continue
            number = processes.setdefault(str(raw.get("pid")), len(processes))
            event = {**raw, "pid": place * _PROCESSES + number}
            if isinstance(raw.get("ts"), (int, float)) and raw.get("ph") != "M":
                event["ts"] = raw["ts"] - ahead / _MICROSECOND
            if raw.get("ph") in {"s", "t", "f"}:
                event["id"] = flows.setdefault((trace.rank, str(raw.get("id"))), len(flows) + 1)
            if raw.get("name") == "process_sort_index":
                event["args"] = {"sort_index": event["pid"]}
            events.append(event)
    told = [{"rank": trace.rank, "clock_ahead_s": ahead, "uncertainty_s": most} for trace, ahead, most in ranks]
    first = traces[0].document
    base = {name: first[name] for name in ("displayTimeUnit", "baseTimeNanoseconds") if name in first}
    return {"traceEvents": events, **base, "ddpperf": {"collectives": alignment.collectives, "clocks": told}}
