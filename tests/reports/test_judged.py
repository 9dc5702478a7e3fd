from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.phases import PHASES, PhaseTimes
from pytest_ddpperf.records.results import Comparison, PairedRevision, Reference, Result, StoredBaseline
from pytest_ddpperf.records.verbs import LOSS, Convergence, Curve, FinalValue, Standing, Trainings
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.breakdown import collective_table, communication_table, phase_table
from pytest_ddpperf.reports.diagnosis import diagnosis_lines
from pytest_ddpperf.reports.phrases import findings
from pytest_ddpperf.reports.summary import benchmark_table
from pytest_ddpperf.stats.intervals import change_of_suite
from tests.factories import known, make_counts, make_launch, make_rank_launch, make_results_document, read_again
from tests.reports.golden_runs import RUNS, result
from tests.reports.made import make_comparison, make_result


def again(*results: Result) -> tuple[Result, ...]:
    """The results as a reader of their file has them."""
    return read_again(make_results_document(results, None)).results


def test_words_and_table_are_the_same_as_in_the_run() -> None:
    step = replace(make_result()["step_time"], paired=True)
    result = make_result(comparisons=(step,), findings=(Finding("stale_baseline"),))
    (read,) = again(result)
    assert read["step_time"] == step
    assert read.measurement.environment == result.measurement.environment
    assert findings(read) == findings(result)
    assert benchmark_table([read]) == benchmark_table([result])
    assert read.measurement.launches[0].step_times == result.measurement.launches[0].step_times


def test_metrics_read_again_keep_their_order_digits_and_nan() -> None:
    metrics = ("zeta_of_a_hook", "peak_resident", "step_time", "scaling_efficiency")
    counts = make_counts({"flops": {}}, flops=12345678901234.0)
    flops = Comparison(series=counted_series(counts)[0], tolerance=0.0, verdict=Verdict.NEW, gated=True)
    comparisons = (*(make_comparison(name, math.inf, Verdict.NEW) for name in metrics), flops)
    (read,) = again(make_result(measured={"counts": counts}, comparisons=comparisons))
    assert tuple(one.series.metric for one in read.comparisons) == (*metrics, "flops")
    assert read["flops"].series == flops.series
    assert math.isnan(read["step_time"].series.value)


BESIDE = PairedRevision(revision="3f2a1c0 (main)", commit="3f2a1c0")


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        pytest.param(StoredBaseline(record=None, origin="cpu", pair=BESIDE), {}, id="beside the baseline's commit"),
        pytest.param(
            BESIDE, {"standard_error": 0.01, "df": math.inf}, id="beside another revision, with an error that is known"
        ),
    ],
)
def test_the_common_change_is_the_same_when_it_is_read_again(reference: Reference, told: dict[str, Any]) -> None:
    steps = [
        make_comparison("step_time", 1.0, Verdict.OK, change=0.01 * number, paired=True, **told) for number in range(4)
    ]
    results = [
        make_result(test=f"t.py::test_{number}", reference=reference, comparisons=(step,))
        for number, step in enumerate(steps)
    ]
    common = known(change_of_suite(results))
    read = read_again(make_results_document(results, None))
    assert read.common_change is not None
    assert (read.common_change.tests, read.common_change.slower) == (common.tests, common.slower)
    assert read.common_change.change == pytest.approx(common.change, rel=1e-8)


def test_the_reference_of_times_is_kept_when_a_result_is_read_again() -> None:
    stored = StoredBaseline(record=None, origin="cpu", pair=replace(BESIDE, launches=6))
    alone = StoredBaseline(record=None, origin="cpu", unpaired="git is not installed")
    paired, unpaired = again(make_result(reference=stored), make_result(reference=alone))
    assert (paired.paired, paired.pair and paired.pair.launches) == (None, 6)
    assert (unpaired.pair, unpaired.reference) == (None, alone)


def test_a_benchmark_that_is_ok_by_stored_times_is_so_when_it_is_read_again() -> None:
    step = make_comparison("step_time", 0.04, Verdict.OK, baseline=0.041, change=-0.02, note="stored_times")
    result = make_result(verdict=Verdict.OK, comparisons=(step,))
    table = benchmark_table([result])
    assert table.rows[0][-1] == "ok (stored times)"
    assert benchmark_table(again(result)) == table


def test_a_training_that_was_lost_is_so_when_it_is_read_again() -> None:
    lost = FinalValue(value=math.nan, interval=None, samples=(1.0, math.nan))
    curve = Curve(steps=(5, 10), values={LOSS: (2.0, math.nan)})
    trained = tuple(Trainings(name=name, curves=(curve,), finals={LOSS: lost}, lost=("loss is nan",)) for name in "ab")
    kept = Standing(name="b", quantity=LOSS, worse=lost, apart=0.5, allowed=None, tolerance=0.02)
    found = Convergence(test="t.py::test", world_size=2, metric=LOSS, strategies=trained, kept=(kept,))
    document = make_results_document([], None, convergences=[found])
    assert document["convergences"][0]["kept"][0]["agreement"] == "worse"
    (read,) = read_again(document).convergences
    assert repr(read) == repr(found)  # a NaN is equal to none
    assert read.kept[0].agreement == "worse"


def test_tables_of_steps_and_the_diagnosis_are_the_same_when_they_are_read_again() -> None:
    phases = PhaseTimes(seconds={phase: (0.01 * place,) * 4 for place, phase in enumerate(PHASES)})
    rank = make_rank_launch(0, (0.15,) * 4, phases=phases)
    apart = result("t.py::test_a", Verdict.NEW, 0.15, measured={"launches": (make_launch(ranks=(rank,)),)})
    results = [*RUNS[30].results, apart]
    read = again(*results)
    assert diagnosis_lines(results)
    assert diagnosis_lines(read) == diagnosis_lines(results)
    for table in (phase_table, communication_table, collective_table):
        assert table(read) == table(results)
    assert [one.spent for one in read] == [one.spent for one in results]
