"""One page for a browser, with everything in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.charts.chart import Chart
from pytest_ddpperf.reports.charts.table import charts_of
from pytest_ddpperf.reports.documents.calls import (
    BatchSizeData,
    ConvergenceData,
    FinalValueData,
    PredictionData,
    StrategyAdviceData,
)
from pytest_ddpperf.reports.documents.reading import facts_line, full_name, results_of
from pytest_ddpperf.reports.documents.results import ResultsData
from pytest_ddpperf.reports.formats.page.benchmark import sections_of_benchmark
from pytest_ddpperf.reports.formats.page.page import Block, Page, PageEntry, PageRow, PageSection, filled, html_of
from pytest_ddpperf.reports.overall import common_text, headline, overall_lines
from pytest_ddpperf.reports.phrases import find, judges
from pytest_ddpperf.reports.predictions import advice_table, predictions_table
from pytest_ddpperf.reports.remarks import all_findings
from pytest_ddpperf.reports.summary import summary_table, worst_first
from pytest_ddpperf.reports.table import Table, table_of
from pytest_ddpperf.units import format_count, format_percent, format_value, signed_percent

_TELLING = ("benchmark", "change", "at most", "step time")
_CURVES: Mapping[str, Sequence[str]] = {
    "Scaling": ("speedup", "efficiency", "rank_throughput"),
    "Ways to train": ("throughput",),
    "Sizes of buckets": ("bucket_sizes",),
    "Convergence": ("convergence",),
    "Epochs": ("epoch_time",),
    "Phases": ("phases",),
}
"""The kinds of charts of several benchmarks, by the part that has them."""


def html(document: ResultsData) -> str:
    """Verdicts first, then all benchmarks in a table, each with all that is known of it, then what they share."""
    results = results_of(document)
    ordered = worst_first(results)
    table = summary_table(results)
    charts = charts_of(document)
    places = {id(result): i for i, result in enumerate(results)}
    headers, cells = _telling_first(table.headers[:-1], table.rows)
    ended = [f"the run ended before all its tests had run: {document.interrupted}"] if document.interrupted else []
    return html_of(
        Page(
            title=f"ddpperf: {headline(results)}",
            facts=tuple(facts_line(document, results).split("; ")) if results else (),
            lines=(*ended, *common_text(results, slower=False), *overall_lines(results)),
            noun="benchmark",
            headers=headers,
            rows=tuple(
                _row(result, row, table.rows[i][-1], i)
                for i, (result, row) in enumerate(zip(ordered, cells, strict=True))
            ),
            notes=tuple(f"{word}: {meaning}" for word, meaning in table.legend.items()),
            entries=tuple(_entries(document, [(one, places[id(one)]) for one in ordered], charts)),
            sections=tuple(_shared(document, results, charts, table.notes)),
        )
    )


def _telling_first(
    headers: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headers and cells with what tells most behind the name: a narrow window shows the first columns."""
    words = [header.partition("\n")[0] for header in headers]
    order = sorted(range(len(words)), key=lambda i: _TELLING.index(words[i]) if words[i] in _TELLING else len(_TELLING))
    return tuple(headers[i] for i in order), [tuple(row[i] for i in order) for row in rows]


def _row(result: Result, cells: tuple[str, ...], verdict: str, entry: int) -> PageRow:
    step = find(result, "step_time")
    drawn = None
    if step is not None and step.change is not None and step.series.scale == "ratio" and judges(step):
        ends = step.change_interval
        drawn = (step.change, *((step.change, step.change) if ends is None else (ends.low, ends.high)))
    return PageRow(
        cells=cells,
        verdict_text=verdict,
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
        more = [
            *_predictions([each for each in document.predictions if each.test == result.test]),
            *_advice([each for each in document.advice if each.test == result.test]),
        ]
        yield PageEntry(
            title=f"{result.test} {result.name}, {format_count(data.world_size, 'rank')}",
            verdict=result.verdict.value.replace("_", " "),
            sections=sections_of_benchmark(
                result,
                data,
                document.environments.get(data.environment_key, document.environment),
                [*of_place.get(place, []), *own],
                more,
            ),
        )


def _shared(
    document: ResultsData, results: Sequence[Result], charts: Sequence[Chart], conclusions: tuple[str, ...]
) -> Iterator[PageSection]:
    """What concerns several benchmarks, or none."""
    parts: dict[str, list[Block]] = {
        title: [chart for kind in kinds for chart in charts if chart.kind == kind] for title, kinds in _CURVES.items()
    }
    parts["Convergence"].append(_kept(document.convergences))
    parts["Conclusions"] = [conclusions]
    parts["Notes"] = [tuple(all_findings(results))]
    parts["Predictions"] = _predictions(document.predictions)
    parts["Advice"] = _advice(document.advice)
    parts["Batch sizes"] = [_batch_sizes(document.batch_sizes)]
    for title, blocks in parts.items():
        if told := tuple(block for block in blocks if filled(block)):
            yield PageSection(title, told)


def _kept(found: Sequence[ConvergenceData]) -> Table:
    """Returns how the end of each strategy's trainings stands to that of the first one's."""
    return table_of(
        [(each.test, row) for each in found for row in each.kept],
        {
            "training": lambda each: f"{each[0].partition('::')[2]} {each[1].name}",
            "quantity": lambda each: each[1].quantity,
            "verdict": lambda each: each[1].agreement,
            "worse": lambda each: _worse(each[1].worse),
            "tolerance": lambda each: format_percent(each[1].tolerance),
        },
        title="beside the first strategy; worse: as a share of its value",
        left=3,
        right=0,
    )


def _worse(found: FinalValueData) -> str:
    ends, change = found.interval, "" if found.value is None else f"{signed_percent(found.value)} %"
    if not change or ends is None or ends.low is None or ends.high is None:
        return change
    return f"{change} [{signed_percent(ends.low)} .. {signed_percent(ends.high)}]"


def _predictions(predictions: Sequence[PredictionData]) -> list[Block]:
    return [predictions_table(predictions)] if predictions else []


def _advice(advice: Sequence[StrategyAdviceData]) -> list[Block]:
    """A table for each call, behind the name of its test."""
    tables = [(each.test.partition("::")[2], advice_table(each)) for each in advice]
    return [replace(table, title=f"{test}: {table.title}") for test, table in tables]


def _batch_sizes(found: Sequence[BatchSizeData]) -> Table:
    return table_of(
        found,
        {
            "search": lambda each: f"{each.test.partition('::')[2]} {each.training}",
            "ranks": lambda each: str(each.world_size),
            "fits": lambda each: str(each.size),
            "peak": lambda each: "" if each.peak is None else format_value(each.peak, "B"),
            "tried": lambda each: ", ".join(str(trial.size) for trial in each.tried),
        },
        title="the largest batch of a rank that fits",
    )
