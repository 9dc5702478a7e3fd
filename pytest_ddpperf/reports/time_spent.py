"""Where the time of calls went, in words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate, pairwise

from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.lines import wrapped
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.table import Column, render, table_of
from pytest_ddpperf.units import format_count

_SHORT = 10.0  # seconds; of calls that took less, tenths are shown


def time_text(spent: TimeSpent) -> str:
    """All of it and its parts: ``58 s: starting 12, verifying 5, counting 4, measuring 31, diagnosing 6``."""
    decimals = int(spent.total < _SHORT)
    parts = _rounded(spent, decimals)
    told = ", ".join(f"{name} {seconds:.{decimals}f}" for name, seconds in parts.items() if seconds)
    return ": ".join(filter(None, (f"{sum(parts.values()):.{decimals}f} s", told)))


def time_part(results: Sequence[Result], width: int | None) -> str:
    """The line of a single call, or the table of all calls, the slowest first; empty if none is known."""
    calls = _calls(results)
    if len(calls) <= 1:
        return "\n".join(wrapped([time_text(spent) for _, spent in calls], width))
    calls.sort(key=lambda call: -call[1].total)
    rows = [(name, _rounded(spent, 0)) for name, spent in calls]
    whole = sum(spent.total for _, spent in calls)
    number = sum(result.spent is not None for result in results)
    within = "" if number == len(calls) else f" in {len(calls)} calls"  # compare and scaling measure several
    columns: dict[str, Column[tuple[str, dict[str, float]]]] = {
        "benchmark": lambda row: row[0],
        "all": lambda row: f"{sum(row[1].values()):.0f}",
        **{part: partial(_seconds, part) for part in rows[0][1]},
    }
    title = f"seconds of {format_count(number, 'benchmark')}{within}, {whole:.0f} in all"
    return render(table_of(rows, columns, every=False, title=title, right=0), width)


def _seconds(part: str, row: tuple[str, dict[str, float]]) -> str:
    return f"{row[1][part]:.0f}" if row[1][part] else ""


def _calls(results: Sequence[Result]) -> list[tuple[str, TimeSpent]]:
    """Each call by the name of its benchmark, or of its test where it measured several."""
    calls: dict[tuple[str, TimeSpent], list[str]] = {}
    for name, result in zip(names_of(results), results, strict=True):
        if result.spent is not None:
            calls.setdefault((result.test, result.spent), []).append(name)
    return [(names[0] if len(names) == 1 else test.partition("::")[2], spent) for (test, spent), names in calls.items()]


def _rounded(spent: TimeSpent, decimals: int) -> dict[str, float]:
    """The parts, rounded so that they still add up to the rounded whole."""
    sums = [round(seconds, decimals) for seconds in accumulate(spent.parts.values(), initial=0.0)]
    return {name: after - before for name, (before, after) in zip(spent.parts, pairwise(sums), strict=True)}
