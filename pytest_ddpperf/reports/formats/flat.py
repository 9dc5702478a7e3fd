"""Flat rows for other tools: Bencher, github-action-benchmark, and comma-separated values for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from pytest_ddpperf.records.measurement import Better
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.findings import finding_text
from pytest_ddpperf.reports.lines import full_name, printable
from pytest_ddpperf.reports.phrases import change_text
from pytest_ddpperf.units import significant

_NAME = 1024  # characters of a name that Bencher takes
_BENCHMARK: Mapping[str, Callable[[Result, Run], Any]] = {
    "test": lambda result, _: result.test,
    "name": lambda result, _: result.name,
    "strategy": lambda result, _: result.measurement.strategy,
    "mode": lambda result, _: result.measurement.mode,
    "world_size": lambda result, _: result.measurement.world_size,
    "launches": lambda result, _: len(result.measurement.launches),
    "commit": lambda _, run: run.commit,
    "date": lambda _, run: run.date,
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
    "note": lambda compared: finding_text(compared.note),
}


def bencher(run: Run) -> str:
    """Returns the gated metrics, which can fail a test, in Bencher's JSON format, with one measure for each metric."""
    measured = {
        printable(full_name(result))[-_NAME:]: {
            comparison.series.metric: _metric(comparison)
            for comparison in result.comparisons
            if comparison.gated and math.isfinite(comparison.series.value)
        }
        for result in run.results
    }
    return json.dumps({name: metrics for name, metrics in measured.items() if metrics}, indent=2) + "\n"


def _metric(comparison: Comparison) -> dict[str, float]:
    interval = comparison.series.interval
    ends = {} if interval is None else {"lower_value": interval.low, "upper_value": interval.high}
    return {"value": comparison.series.value, **{name: end for name, end in ends.items() if math.isfinite(end)}}


def benchmark_action(run: Run, better: Better) -> str:
    """Returns the gated metrics, which can fail a test, with this ``better``, in github-action-benchmark's format."""
    values = [
        _value(result, comparison)
        for result in run.results
        for comparison in result.comparisons
        if comparison.series.better == better and comparison.gated and math.isfinite(comparison.series.value)
    ]
    return json.dumps(values, indent=2) + "\n"


def _value(result: Result, comparison: Comparison) -> dict[str, Any]:
    series = comparison.series
    facts = {
        "name": f"{printable(full_name(result))} {series.metric}",
        "unit": series.unit,
        "value": series.value,
        "extra": "\n".join(filter(None, (f"verdict: {comparison.verdict.value}", change_text(comparison)))),
    }
    if series.interval is None:
        return facts
    ends = (series.interval.low, series.interval.high)
    return {**facts, "range": " .. ".join(map(significant, ends))}


def comma_separated(run: Run) -> str:
    """Returns a row for each metric of each benchmark, with all digits; a benchmark without metrics has one row.

    All files have the same columns. Unknown and infinite values are empty cells. No text can act as a formula.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_BENCHMARK, *_METRIC])
    for result in run.results:
        facts = [_cell(column(result, run)) for column in _BENCHMARK.values()]
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
    """Returns the printable text for a cell, with an apostrophe if a spreadsheet would run the text as a formula."""
    text = printable(text, keep="\n")
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
