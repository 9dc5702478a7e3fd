"""Results documents to render."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.entries import Run
from tests.factories import make_results_document, read_again
from tests.reports.formats.samples import CODE, HOSTILE, MakeDocument

Make = Callable[..., Result]
Compare = Callable[..., Comparison]
COUNTS = Counts(totals={"collective_calls": 8.0}, details={"collective_calls": {"all_reduce": 8.0}}, unstable={})


@pytest.fixture
def make_document() -> MakeDocument:
    """A document of these results as its file has it."""

    def make(*results: Result, **more: Any) -> Run:
        document = make_results_document(results, CODE, **{"date": "2026-01-12T10:00:00+00:00", **more})
        return read_again(document)

    return make


@pytest.fixture
def regressed(make_result: Make, make_comparison: Compare) -> Result:
    """Slower, with more collectives."""
    result = make_result()
    calls = Comparison(
        series=counted_series(COUNTS)[0],
        baseline=2.0,
        change=3.0,
        tolerance=0.0,
        verdict=Verdict.REGRESSED,
        gated=True,
        note=Finding("all_reduce 2 -> 8 calls per step (+6)"),
    )
    rate = make_comparison("throughput", 2000.0, Verdict.REGRESSED, baseline=2262.0, change=-0.116)
    return replace(
        result,
        measurement=replace(result.measurement, counts=COUNTS),
        comparisons=(calls, *result.comparisons, rate),
        findings=(Finding("only 1 of 8 launches ran alone"),),
    )


@pytest.fixture
def unchanged(make_result: Make, make_comparison: Compare) -> Result:
    """As fast as before."""
    step = make_comparison(
        "step_time",
        0.03,
        Verdict.UNCHANGED,
        baseline=0.03,
        change=0.001,
        change_interval=Interval(low=-0.002, high=0.004, confidence=0.95),
        interval=Interval(low=0.0299, high=0.0301, confidence=0.95),
        samples=(0.0299, 0.0301),
        bound=0.004,
    )
    return make_result(test="t.py::test_b", comparisons=(step,), verdict=Verdict.UNCHANGED)


@pytest.fixture
def broken(make_result: Make) -> Result:
    """A benchmark that could not be measured, of a name that is markup everywhere."""
    return make_result(
        test=f"t.py::test_c[{HOSTILE}]",
        measured={"name": HOSTILE, "launches": ()},
        comparisons=(),
        verdict=Verdict.BROKEN,
        findings=(Finding("broken", {"reason": f"rank 1 raised {HOSTILE}"}),),
    )
