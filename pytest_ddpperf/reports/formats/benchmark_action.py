"""The custom formats of github-action-benchmark: a list of values, of which all have one direction."""

from __future__ import annotations

import json
import math
from typing import Any

from pytest_ddpperf.records.measurement import Better
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.reports.documents.reading import full_name, results_of
from pytest_ddpperf.reports.documents.results import ResultsData
from pytest_ddpperf.reports.lines import printable
from pytest_ddpperf.reports.phrases import change_text
from pytest_ddpperf.units import significant


def smaller_is_better(document: ResultsData) -> str:
    """``customSmallerIsBetter``: gated times, bytes and counts."""
    return _list(document, "lower")


def bigger_is_better(document: ResultsData) -> str:
    """``customBiggerIsBetter``: gated rates, and speedups and efficiencies."""
    return _list(document, "higher")


def _list(document: ResultsData, better: Better) -> str:
    values = [
        _value(result, comparison)
        for result in results_of(document)
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
