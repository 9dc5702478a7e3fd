"""Traces in words: the time of a step by rank, the clocks of a merged trace, and the differences of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from pytest_ddpperf.analysis.traces.clocks import ClockAlignment
from pytest_ddpperf.analysis.traces.difference import TraceChange, TraceDifference, TraceUse
from pytest_ddpperf.analysis.traces.reading import RankTimes, RankTrace, group_profile, times_of
from pytest_ddpperf.reports.table import NOTHING, Quantity, Table, table_of
from pytest_ddpperf.units import format_change, format_count, format_number, format_percent, format_value, span

_s = partial(format_value, unit="s")
_NAMED = 8  # ranks, at most, whose clocks are told one by one
_SUMMARY = {
    "compute": "time in which something was computed: operators on the CPU, kernels on a GPU",
    "communication": "time in which a collective was under way, including the wait for other ranks",
    "overlap": "the share of the communication time in which something was computed",
    "idle": "time in which nothing was computed or sent; on the CPU this includes Python between two operators",
}
_DIFFERENCE = {"time": "mean time in a step, over steps and ranks; an operator's time excludes operators that it calls"}


def summary_table(name: str, traces: Sequence[RankTrace]) -> Table:
    """Returns a table with a row for each rank: the seconds of the step, and of each activity in it."""
    times = sorted(map(times_of, traces), key=lambda each: each.rank)
    steps = span(str, (each.steps for each in times))

    def share(part: str) -> Quantity[RankTimes]:
        seconds = attrgetter(part)
        return Quantity(
            value=seconds,
            unit="s",
            text=lambda each, number: f"{number(seconds(each))} ({format_percent(seconds(each) / each.step)})",
        )

    return table_of(
        times,
        {
            "rank": lambda each: str(each.rank),
            "step": Quantity(value=lambda each: each.step, unit="s"),
            "compute": share("computed"),
            "communication": share("communicated"),
            "overlap": Quantity(value=lambda each: each.overlap, unit="%"),
            "idle": share("idle"),
        },
        title=f"{name}: {format_count(len(times), 'rank')}, {steps}{' step' if steps == '1' else ' steps'}",
        notes=tuple(straggler_lines(traces)),
        right=0,
        legend=_SUMMARY,
    )


def straggler_lines(traces: Sequence[RankTrace]) -> list[str]:
    """Returns a line that says which rank is last in collectives and how long others wait, or why this is unknown."""
    if len(traces) == 1:
        return []
    profile = group_profile(traces)
    if profile is None:
        return ["stragglers: unknown, because a rank is missing or ranks have different numbers of steps"]
    if not profile.busy:
        return ["stragglers: none, because nothing is sent"]
    if profile.slowest is None or profile.wait is None or profile.transfer is None:
        return ["stragglers: unknown, because ranks ran different collectives, or not all ranks joined each one"]
    rank, share = profile.slowest
    waits = f"a rank waits {_s(profile.wait)} of a step for the last rank"
    transfer = f"the transfer takes {_s(profile.transfer)}"
    return [f"rank {rank} came last to {format_percent(share)} of the collectives; {waits}, and {transfer}"]


def alignment_line(traces: Sequence[RankTrace], alignment: ClockAlignment) -> str:
    """Returns a sentence on how far each rank's times were moved in a merged trace, with the uncertainty."""
    if len(traces) == 1:
        return "merged: a single rank"
    moved = [
        f"rank {trace.rank} by {_s(0.0 - shift)} +- {_s(uncertainty)}"
        for trace, shift, uncertainty in zip(traces, alignment.shifts, alignment.uncertainties, strict=True)
    ][1:]
    if len(moved) > _NAMED:
        most = _s(max(map(abs, alignment.shifts)))
        moved = [f"{len(moved)} ranks by up to {most}, uncertain by up to {_s(max(alignment.uncertainties))}"]
    by = format_count(alignment.collectives, "common collective")
    return f"merged on the clock of rank {traces[0].rank}, aligned by the ends of {by}; moved: {', '.join(moved)}"


def difference_table(found: TraceDifference, most: int) -> Table:
    """Returns a table of two runs' steps: total seconds, then at most ``most`` changed operators, the largest first."""
    changes = [*found.totals, *found.changes[:most]]

    def calls(use: TraceUse | None) -> str:
        return NOTHING if use is None else format_number(use.calls)

    def time(side: str) -> Quantity[TraceChange]:
        return Quantity(value=lambda each: getattr(getattr(each, side), "seconds", None), unit="s")

    left = len(found.changes) - most
    before, after = found.steps
    return table_of(
        changes,
        {
            "name": lambda each: each.name,
            "what": lambda each: each.what,
            "calls A": lambda each: calls(each.before),
            "calls B": lambda each: calls(each.after),
            "time A": time("before"),
            "time B": time("after"),
            "change": lambda each: "total" if each in found.totals else each.word,
        },
        title=f"a step: {_s(before)} -> {_s(after)}, {format_change(after / before - 1)}",
        notes=tuple([f"{format_count(left, 'more change')} not shown"] if left > 0 else []),
        left=2,
        legend=_DIFFERENCE,
    )
