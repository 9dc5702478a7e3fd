"""All that a run ends with on the terminal, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_ddpperf.baselines.calibration import Calibrated
from pytest_ddpperf.records.batch_size import Search
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.batch_sizes import batch_size_lines
from pytest_ddpperf.reports.calibration import calibration_table
from pytest_ddpperf.reports.communication import communication_table
from pytest_ddpperf.reports.phases import phase_table
from pytest_ddpperf.reports.table import summary_table
from pytest_ddpperf.reports.terminal import render, wrapped


@dataclass(frozen=True)
class SummaryData:
    """What a run has to tell.

    Attributes:
        results: of every benchmark, in the order measured.
        searches: for the largest batch, likewise.
        calibrated: likewise, of every benchmark that was held against itself.
        complaints: on the session itself.
        stored: what became of baselines, a line each.
        recorded: what became of the history; empty where there is none.
        accepting: whether what was measured becomes the baseline.
        here: the commit that was measured, as it is shown; empty where none is known.
    """

    results: Sequence[Result] = ()
    searches: Sequence[Search] = ()
    calibrated: Sequence[Calibrated] = ()
    complaints: Sequence[str] = ()
    stored: Sequence[str] = ()
    recorded: str = ""
    accepting: bool = False
    here: str = ""


def summary_parts(
    told: SummaryData, width: int | None = None, paint: Callable[[str], str] = str, *, brief: bool = False
) -> list[tuple[str, str]]:
    """Title and text of each part that has anything to say."""
    parts = []
    if told.results:
        table = summary_table(told.results, accepting=told.accepting, here=told.here)
        parts.append(("ddpperf", render(table, width, paint)))
    if not brief:
        more = {"phases": phase_table(told.results), "communication": communication_table(told.results)}
        parts += [(f"ddpperf {name}", render(table, width)) for name, table in more.items() if table is not None]
    if told.searches:
        parts.append(("ddpperf batch sizes", "\n".join(wrapped(batch_size_lines(told.searches), width))))
    if told.calibrated:
        parts.append(("ddpperf calibration", render(calibration_table(told.calibrated), width)))
    if told.complaints:
        parts.append(("ddpperf errors", "\n".join(told.complaints)))
    if told.stored:
        parts.append(("ddpperf baselines", "\n".join(wrapped(told.stored, width))))
    if told.recorded:
        parts.append(("ddpperf history", told.recorded))
    return parts
