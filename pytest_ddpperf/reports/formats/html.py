"""One page for a browser, with everything in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.breakdown import phase_table
from pytest_ddpperf.reports.calls import call_tables
from pytest_ddpperf.reports.charts.chart import Chart
from pytest_ddpperf.reports.charts.table import charts_of
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.formats.page.benchmark import sections_of_benchmark
from pytest_ddpperf.reports.formats.page.page import Block, Page, PageEntry, PageRow, PageSection, filled, html_of
from pytest_ddpperf.reports.lines import full_name
from pytest_ddpperf.reports.phrases import find, judges
from pytest_ddpperf.reports.remarks import all_findings, common_text, facts_line, headline, overall_lines
from pytest_ddpperf.reports.summary import summary_table, worst_first
from pytest_ddpperf.reports.table import Table
from pytest_ddpperf.reports.two_runs import judged, two_runs
from pytest_ddpperf.units import format_count

_CURVES: Mapping[str, Sequence[str]] = {
    "Scaling": ("speedup", "efficiency", "rank_throughput"),
    "Ways to train": ("throughput",),
    "Sizes of buckets": ("bucket_sizes",),
    "Convergence": ("convergence",),
    "Epochs": ("epoch_time",),
}
"""The kinds of charts of several benchmarks, by the part that has them."""


def html(run: Run, *, title: str = "", compared: Table | None = None) -> str:
    """Verdicts first, then all benchmarks in a table, each with all that is known of it, then what they share.

    ``compared`` with another run, a table says so with its notes; ``title``: in place of the verdicts.
    """
    ordered = worst_first(run.results)
    table, charts = summary_table(run.results), charts_of(run)
    notes = compared.notes if compared else ()
    ended = [f"the run ended before all its tests had run: {run.interrupted}"] if run.interrupted else []
    common = common_text(run.common_change)
    return html_of(
        Page(
            title=title or f"ddpperf: {headline(run.results)}",
            facts=tuple(facts_line(run).split("; ")) if run.results else (),
            lines=(*ended, *common, *overall_lines(run.results), *notes),
            noun="benchmark",
            headers=table.headers[:-1],
            rows=tuple(
                _row(result, cells, i) for i, (result, cells) in enumerate(zip(ordered, table.rows, strict=True))
            ),
            notes=tuple(f"{word}: {meaning}" for word, meaning in table.legend.items()),
            entries=tuple(_entries(run, ordered, charts)),
            sections=(
                *([PageSection("Both runs", (replace(compared, notes=()),))] if compared and compared.rows else []),
                *_shared(run, charts, table.notes),
            ),
        )
    )


def _row(result: Result, cells: tuple[str, ...], entry: int) -> PageRow:
    step = find(result, "step_time")
    drawn = None
    if step is not None and step.change is not None and step.series.scale == "ratio" and judges(step):
        ends = step.change_interval
        drawn = (step.change, *((step.change, step.change) if ends is None else (ends.low, ends.high)))
    return PageRow(
        cells=cells[:-1],
        verdict_text=cells[-1],
        verdict=result.verdict.value.replace("_", " "),
        severity=result.severity,
        entry=entry,
        change=drawn,
        tolerance=None if step is None or drawn is None else step.tolerance,
        search=full_name(result),
    )


def _entries(run: Run, ordered: Sequence[Result], charts: Sequence[Chart]) -> Iterator[PageEntry]:
    of_place: dict[int, list[Chart]] = {}
    for chart in charts:
        for place in chart.benchmarks:
            of_place.setdefault(place, []).append(chart)
    places = {id(result): i for i, result in enumerate(run.results)}
    for result in ordered:
        own = [chart for chart in charts if chart.kind == "convergence" and chart.subject.startswith(f"{result.test} ")]
        predicted = [each for each in run.predictions if each.test == result.test]
        advised = [each for each in run.advice if each.test == result.test]
        more = [table for tables in call_tables((), (), predicted, advised).values() for table in tables]
        yield PageEntry(
            title=f"{result.test} {result.name}, {format_count(result.measurement.world_size, 'rank')}",
            verdict=result.verdict.value.replace("_", " "),
            sections=sections_of_benchmark(result, [*of_place.get(places[id(result)], []), *own], more),
        )


def _shared(run: Run, charts: Sequence[Chart], conclusions: tuple[str, ...]) -> Iterator[PageSection]:
    """What concerns several benchmarks, or none."""
    parts: dict[str, list[Block]] = {
        title: [chart for kind in kinds for chart in charts if chart.kind == kind] for title, kinds in _CURVES.items()
    }
    parts |= {"Phases": [phase_table(run.results)], "Conclusions": [conclusions]}
    parts["Notes"] = [tuple(all_findings(run.results))]
    for title, tables in call_tables(run.batch_sizes, run.convergences, run.predictions, run.advice).items():
        parts.setdefault(title.capitalize(), []).extend(tables)
    for title, blocks in parts.items():
        if told := tuple(block for block in blocks if filled(block)):
            yield PageSection(title, told)


def two_runs_page(before: Run, after: Run) -> str:
    """The page of the second run, judged as if the first run had stored its baselines, with a table of both."""
    table, results = two_runs(before, after), tuple(judged(before, after))
    title = "ddpperf: " + table.title.replace("->", "\u2192")  # an arrow that no line is broken in
    return html(msgspec.structs.replace(after, results=results, common_change=None), title=title, compared=table)
