from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import Comparison, PairedRevision, Reference, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.lines import full_name
from pytest_ddpperf.reports.phrases import change_line, findings
from pytest_ddpperf.reports.summary import benchmark_table
from pytest_ddpperf.stats.suites import change_of_suite
from tests.factories import make_results_document, read_again

Make = Callable[..., Result]
Compare = Callable[..., Comparison]


def again(*results: Result) -> tuple[Result, ...]:
    """The results as a reader of their file has them."""
    return read_again(make_results_document(results, None)).results


def test_the_words_and_the_table_are_those_of_the_run(make_result: Make) -> None:
    result = replace(make_result(), findings=(Finding("stale_baseline"),))
    (read,) = again(result)
    assert change_line(read["step_time"]) == change_line(result["step_time"])
    assert findings(read) == findings(result)
    assert benchmark_table([read]) == benchmark_table([result])
    assert read.measurement.launches[0].step_times == result.measurement.launches[0].step_times


def test_a_series_is_as_it_was(make_result: Make) -> None:
    result = make_result()
    (read,) = again(result)
    assert read["step_time"].series == result["step_time"].series


def test_metrics_are_in_the_order_of_their_tables(make_result: Make, make_comparison: Compare) -> None:
    metrics = ("zeta_of_a_hook", "peak_resident", "step_time", "scaling_efficiency")
    (read,) = again(make_result(comparisons=tuple(make_comparison(name, 1.0, Verdict.NEW) for name in metrics)))
    assert [one.series.metric for one in read.comparisons] == [
        "step_time",
        "peak_resident",
        "scaling_efficiency",
        "zeta_of_a_hook",
    ]


def test_a_count_keeps_all_its_digits(make_result: Make) -> None:
    counts = Counts(totals={"flops": 12345678901234.0}, details={"flops": {}}, unstable={})
    flops = Comparison(series=counted_series(counts)[0], tolerance=0.0, verdict=Verdict.NEW, gated=True)
    (read,) = again(make_result(measured={"counts": counts}, comparisons=(flops,)))
    assert read["flops"].series == flops.series


def test_what_is_not_finite_is_not_a_number(make_result: Make, make_comparison: Compare) -> None:
    (read,) = again(make_result(comparisons=(make_comparison("step_time", math.inf, Verdict.INCONCLUSIVE),)))
    assert math.isnan(read["step_time"].series.value)


BESIDE = PairedRevision(revision="3f2a1c0 (main)", commit="3f2a1c0")


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        pytest.param(BESIDE, {}, id="beside another revision"),
        pytest.param(StoredBaseline(record=None, origin="cpu", pair=BESIDE), {}, id="beside the baseline's commit"),
        pytest.param(
            BESIDE, {"standard_error": 0.01, "df": math.inf}, id="beside another revision, with an error that is known"
        ),
    ],
)
def test_the_common_change_is_the_same_when_it_is_read_again(
    make_result: Make, make_comparison: Compare, reference: Reference, told: dict[str, Any]
) -> None:
    steps = [
        make_comparison("step_time", 1.0, Verdict.OK, change=0.01 * number, paired=True, **told) for number in range(4)
    ]
    results = [
        make_result(test=f"t.py::test_{number}", reference=reference, comparisons=(step,))
        for number, step in enumerate(steps)
    ]
    common = change_of_suite(results)
    assert common is not None
    read = read_again(make_results_document(results, None))
    assert read.common_change is not None
    assert (read.common_change.tests, read.common_change.slower) == (common.tests, common.slower)
    assert read.common_change.change == pytest.approx(common.change, rel=1e-8)


def test_a_full_name_tells_benchmarks_apart(make_result: Make) -> None:
    assert full_name(make_result()) == "perf_tests/test_strategies.py::test_step[bucketed] bucketed w2"


def test_what_times_are_judged_by_is_told_when_it_is_read_again(make_result: Make) -> None:
    stored = StoredBaseline(record=None, origin="cpu", pair=replace(BESIDE, launches=6))
    alone = StoredBaseline(record=None, origin="cpu", unpaired="git is not installed")
    paired, unpaired = again(make_result(reference=stored), make_result(reference=alone))
    assert (paired.paired, paired.pair and paired.pair.launches) == (None, 6)
    assert (unpaired.pair, unpaired.reference) == (None, alone)


def test_a_benchmark_that_is_ok_by_stored_times_is_so_when_it_is_read_again(
    make_result: Make, make_comparison: Compare
) -> None:
    step = make_comparison("step_time", 0.04, Verdict.OK, baseline=0.041, change=-0.02, note="stored_times")
    result = make_result(verdict=Verdict.OK, comparisons=(step,))
    table = benchmark_table([result])
    assert table.rows[0][-1] == "ok (stored times)"
    assert benchmark_table(again(result)) == table
