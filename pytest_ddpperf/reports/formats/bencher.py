"""Bencher's metric format: by benchmark and measure a value with its interval."""

from __future__ import annotations

import json
import math

from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.reports.documents.reading import full_name, results_of
from pytest_ddpperf.reports.documents.results import ResultsData
from pytest_ddpperf.reports.lines import printable

_NAME = 1024  # characters that Bencher takes


def bencher(document: ResultsData) -> str:
    """What the adapter ``json`` of Bencher reads: gated metrics, each a measure of its name, in SI base units."""
    measured = {
        printable(full_name(result))[-_NAME:]: {
            comparison.series.metric: _metric(comparison)
            for comparison in result.comparisons
            if comparison.gated and math.isfinite(comparison.series.value)
        }
        for result in results_of(document)
    }
    return json.dumps({name: metrics for name, metrics in measured.items() if metrics}, indent=2) + "\n"


def _metric(comparison: Comparison) -> dict[str, float]:
    interval = comparison.series.interval
    ends = {} if interval is None else {"lower_value": interval.low, "upper_value": interval.high}
    return {"value": comparison.series.value, **{name: end for name, end in ends.items() if math.isfinite(end)}}
