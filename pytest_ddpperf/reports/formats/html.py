"""One page for a browser, with everything in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_ddpperf.baselines.document import read_as, replaced
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.calls import call_tables
from pytest_ddpperf.reports.charts.chart import Chart
from pytest_ddpperf.reports.charts.table import charts_of
from pytest_ddpperf.reports.documents.reading import facts_line, full_name, results_of
from pytest_ddpperf.reports.documents.results import MetricData, ResultData, ResultsData
from pytest_ddpperf.reports.formats.page.benchmark import sections_of_benchmark
from pytest_ddpperf.reports.formats.page.page import Block, Page, PageEntry, PageRow, PageSection, filled, html_of
from pytest_ddpperf.reports.overall import common_text, headline, overall_lines
from pytest_ddpperf.reports.phrases import find, findings, judges
from pytest_ddpperf.reports.remarks import all_findings
from pytest_ddpperf.reports.summary import summary_table, worst_first
from pytest_ddpperf.reports.table import Table
from pytest_ddpperf.reports.two_runs import judged, key_of, two_runs
from pytest_ddpperf.units import format_count

_CURVES: Mapping[str, Sequence[str]] = {
    "Scaling": ("speedup", "efficiency", "rank_throughput"),
    "Ways to train": ("throughput",),
    "Sizes of buckets": ("bucket_sizes",),
    "Convergence": ("convergence",),
    "Epochs": ("epoch_time",),
    "Phases": ("phases",),
}
"""The kinds of charts of several benchmarks, by the part that has them."""


def html(document: ResultsData, *, title: str = "", compared: Table | None = None) -> str:
    """Verdicts first, then all benchmarks in a table, each with all that is known of it, then what they share.

    ``compared`` with another run, a table says so with its notes; ``title``: in place of the verdicts.
    """
    results = results_of(document)
    ordered = worst_first(results)
    table = summary_table(results)
    charts = charts_of(document)
    places = {id(result): i for i, result in enumerate(results)}
    notes = compared.notes if compared else ()
    ended = [f"the run ended before all its tests had run: {document.interrupted}"] if document.interrupted else []
    return html_of(
        Page(
            title=title or f"ddpperf: {headline(results)}",
            facts=tuple(facts_line(document, results).split("; ")) if results else (),
            lines=(*ended, *common_text(results, slower=False), *overall_lines(results), *notes),
            noun="benchmark",
            headers=table.headers[:-1],
            rows=tuple(
                _row(result, cells, i) for i, (result, cells) in enumerate(zip(ordered, table.rows, strict=True))
            ),
            notes=tuple(f"{word}: {meaning}" for word, meaning in table.legend.items()),
            entries=tuple(_entries(document, [(one, places[id(one)]) for one in ordered], charts)),
            sections=(
                *([PageSection("Both runs", (replace(compared, notes=()),))] if compared and compared.rows else []),
                *_shared(document, results, charts, table.notes),
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


def _entries(
    document: ResultsData, placed: Sequence[tuple[Result, int]], charts: Sequence[Chart]
) -> Iterator[PageEntry]:
    of_place: dict[int, list[Chart]] = {}
    for chart in charts:
        for place in chart.benchmarks:
            of_place.setdefault(place, []).append(chart)
    for result, place in placed:
        data = document.results[place]
        own = [chart for chart in charts if chart.kind == "convergence" and chart.subject.startswith(f"{result.test} ")]
        predicted = [each for each in document.predictions if each.test == result.test]
        advised = [each for each in document.advice if each.test == result.test]
        yield PageEntry(
            title=f"{result.test} {result.name}, {format_count(data.world_size, 'rank')}",
            verdict=result.verdict.value.replace("_", " "),
            sections=sections_of_benchmark(
                result,
                data,
                document.environments.get(data.environment_key, document.environment),
                [*of_place.get(place, []), *own],
                [table for tables in call_tables((), (), predicted, advised).values() for table in tables],
            ),
        )


def _shared(
    document: ResultsData, results: Sequence[Result], charts: Sequence[Chart], conclusions: tuple[str, ...]
) -> Iterator[PageSection]:
    """What concerns several benchmarks, or none."""
    parts: dict[str, list[Block]] = {
        title: [chart for kind in kinds for chart in charts if chart.kind == kind] for title, kinds in _CURVES.items()
    }
    parts["Conclusions"] = [conclusions]
    parts["Notes"] = [tuple(all_findings(results))]
    made = call_tables(document.batch_sizes, document.convergences, document.predictions, document.advice)
    for title, tables in made.items():
        parts.setdefault(title.capitalize(), []).extend(tables)
    for title, blocks in parts.items():
        if told := tuple(block for block in blocks if filled(block)):
            yield PageSection(title, told)


def two_runs_page(before: ResultsData, after: ResultsData) -> str:
    """The page of the second run, judged as if the first run had stored its baselines, with a table of both."""
    table, results = two_runs(before, after), {key_of(result): result for result in judged(before, after)}
    both = [_judged(data, results[key_of(data)]) for data in after.results if key_of(data) in results]
    title = "ddpperf: " + table.title.replace("->", "\u2192")  # an arrow that no line is broken in
    return html(replaced(after, results=both), title=title, compared=table)


def _judged(data: ResultData, result: Result) -> ResultData:
    """The benchmark of the second run with what is said of it compared with the first."""
    metrics = {each.series.metric: read_as(MetricData, MetricData.filled_from(each)) for each in result.comparisons}
    told = {"verdict": result.verdict.value, "failure": result.failure, "findings": list(findings(result))}
    return replaced(
        data, **told, metrics=metrics, origin=result.reference.origin, against=None, paired_with=None, baseline=None
    )
