"""A table for spreadsheets: comma-separated values."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.reports.documents.reading import results_of
from pytest_ddpperf.reports.documents.results import ResultsData
from pytest_ddpperf.reports.findings import words_of_note

_OfBenchmark: TypeAlias = "Callable[[Result, ResultsData], Any]"
_BENCHMARK: Mapping[str, _OfBenchmark] = {
    "test": lambda result, _: result.test,
    "name": lambda result, _: result.name,
    "strategy": lambda result, _: result.measurement.strategy,
    "mode": lambda result, _: result.measurement.mode,
    "world_size": lambda result, _: result.measurement.world_size,
    "launches": lambda result, _: len(result.measurement.launches),
    "commit": lambda _, document: document.commit,
    "date": lambda _, document: document.date,
    "benchmark_verdict": lambda result, _: result.verdict.value,
}
_METRIC: Mapping[str, Callable[[Comparison], Any]] = {
    "metric": lambda compared: compared.series.metric,
    "unit": lambda compared: compared.series.unit,
    "better": lambda compared: compared.series.better,
    "scale": lambda compared: compared.series.scale,
    "gated": lambda compared: str(compared.gated).lower(),
    "value": lambda compared: compared.series.value,
    "low": lambda compared: compared.series.interval and compared.series.interval.low,
    "high": lambda compared: compared.series.interval and compared.series.interval.high,
    "baseline": lambda compared: compared.baseline,
    "change": lambda compared: compared.change,
    "change_low": lambda compared: compared.change_interval and compared.change_interval.low,
    "change_high": lambda compared: compared.change_interval and compared.change_interval.high,
    "tolerance": lambda compared: compared.tolerance,
    "mde": lambda compared: compared.mde,
    "verdict": lambda compared: compared.verdict.value,
    "note": lambda compared: words_of_note(compared.note),
}


def comma_separated(document: ResultsData) -> str:
    """A row for each metric of each benchmark, with all digits; one without metrics has a row of its own.

    Benchmarks differ in their metrics, and each metric has ten figures: a row for each keeps the columns the same from
    run to run, whatever was measured. What is not known, or not finite, is empty; no text is a formula.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_BENCHMARK, *_METRIC])
    for result in results_of(document):
        facts = [_cell(column(result, document)) for column in _BENCHMARK.values()]
        for comparison in result.comparisons:
            writer.writerow([*facts, *(_cell(column(comparison)) for column in _METRIC.values())])
        if not result.comparisons:
            writer.writerow([*facts, *("" for _ in _METRIC)])
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return no_formula(value)
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value


def no_formula(text: str) -> str:
    """The text for a cell: behind an apostrophe where a spreadsheet would take it for a formula, and might run it."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text
