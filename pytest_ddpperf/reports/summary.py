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
    summary: SummaryData, width: int | None = None, paint: Callable[[str], str] = str, *, brief: bool = False
) -> list[tuple[str, str]]:
    """Title and text of each part that has anything to say."""
    parts = []
    if summary.results:
        table = summary_table(summary.results, accepting=summary.accepting, here=summary.here)
        parts.append(("ddpperf", render(table, width, paint)))
    if not brief:
        more = {"phases": phase_table(summary.results), "communication": communication_table(summary.results)}
        parts += [(f"ddpperf {name}", render(table, width)) for name, table in more.items() if table is not None]
    if summary.searches:
        parts.append(("ddpperf batch sizes", "\n".join(wrapped(batch_size_lines(summary.searches), width))))
    if summary.calibrated:
        parts.append(("ddpperf calibration", render(calibration_table(summary.calibrated), width)))
    if summary.complaints:
        parts.append(("ddpperf errors", "\n".join(summary.complaints)))
    if summary.stored:
        parts.append(("ddpperf baselines", "\n".join(wrapped(summary.stored, width))))
    if summary.recorded:
        parts.append(("ddpperf history", summary.recorded))
    return parts
