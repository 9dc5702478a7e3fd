"""The report as one HTML page for a browser, without other files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.breakdown import phase_table
from pytest_ddpperf.reports.calls import call_tables
from pytest_ddpperf.reports.charts.chart import Chart
from pytest_ddpperf.reports.charts.of_run import charts_of
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.formats.page.benchmark import sections_of_benchmark
from pytest_ddpperf.reports.formats.page.page import Block, Page, PageRow, html_of, sections_of
from pytest_ddpperf.reports.phrases import find, judges
from pytest_ddpperf.reports.remarks import all_findings, facts_line, headline, red_lines, run_lines
from pytest_ddpperf.reports.summary import summary_table, worst_first
from pytest_ddpperf.reports.table import Table
from pytest_ddpperf.units import format_count

_CURVES: Mapping[str, Sequence[str]] = {
    "Scaling": ("speedup", "efficiency", "rank_throughput"),
    "Ways to train": ("throughput",),
    "Sizes of buckets": ("bucket_sizes",),
    "Convergence": ("convergence",),
    "Epochs": ("epoch_time",),
}
"""The names of charts that show several benchmarks, by the title of their section of the page."""


def html(run: Run, *, title: str = "", compared: Table | None = None) -> str:
    """Returns the page of a run: the verdict, reasons of failures, a table, and sections on one or more benchmarks.

    ``compared``: a table of this run and another one; ``title``: replaces the verdict.
    """
    table, charts = summary_table(run.results), charts_of(run)
    notes = compared.notes if compared else ()
    return html_of(
        Page(
            title=title or f"ddpperf: {headline(run.results)}",
            facts=tuple(facts_line(run).split("; ")) if run.results else (),
            lines=(*run_lines(run), *notes),
            headers=table.headers[:-1],
            rows=tuple(_rows(run, table, charts)),
            notes=tuple(f"{word}: {meaning}" for word, meaning in table.legend.items()),
            sections=sections_of(_shared(run, charts, compared)),
        )
    )


def _rows(run: Run, table: Table, charts: Sequence[Chart]) -> Iterator[PageRow]:
    places = {id(result): i for i, result in enumerate(run.results)}
    for result, cells in zip(worst_first(run.results), table.rows, strict=True):
        step = find(result, "step_time")
        drawn = None
        if step is not None and step.change is not None and step.series.scale == "ratio" and judges(step):
            ends = step.change_interval
            drawn = (step.change, *((step.change, step.change) if ends is None else (ends.low, ends.high)))
        yield PageRow(
            title=f"{result.test} {result.name}, {format_count(result.measurement.world_size, 'rank')}",
            cells=cells[:-1],
            verdict=result.verdict.value.replace("_", " "),
            verdict_text=cells[-1],
            severity=result.severity,
            reasons=tuple(red_lines(result)) if result.red else (),
            change=drawn,
            tolerance=None if step is None or drawn is None else step.tolerance,
            sections=sections_of_benchmark(result, [one for one in charts if one.benchmark == places[id(result)]]),
        )


def _shared(run: Run, charts: Sequence[Chart], compared: Table | None) -> Mapping[str, list[Block]]:
    parts: dict[str, list[Block]] = {"Both runs": [replace(compared, notes=())] if compared else []}
    parts |= {
        title: [chart for kind in kinds for chart in charts if chart.kind == kind] for title, kinds in _CURVES.items()
    }
    parts |= {"Phases": [phase_table(run.results)], "Notes": [tuple(all_findings(run.results))]}
    for title, tables in call_tables(run.batch_sizes, run.convergences, run.predictions, run.advice).items():
        parts.setdefault(title.capitalize(), []).extend(tables)
    return parts


def two_runs_page(after: Run, both: Sequence[Result], table: Table) -> str:
    """Returns the page of the second run, judged by the first run, with a table of both."""
    title = "ddpperf: " + table.title.replace("->", "\u2192")  # an arrow that no line is broken in
    return html(msgspec.structs.replace(after, results=tuple(both), common_change=None), title=title, compared=table)
