"""What of a result is stored; that the rest stays as it was is tested through the store, in test_session.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.baselines.store import acceptable, baseline_record, warned
from pytest_ddpperf.metrics.table import METRICS, counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.health import CpuHealth, Health
from pytest_ddpperf.records.results import BaselineRecord, Provenance, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from tests.factories import make_environment, make_launch, make_measurement

CPU = make_environment(cores=2)
(STEP_TIME,) = (metric for metric in METRICS if metric.name == "step_time")
COUNTS = Counts(totals={"collective_calls": 2.0}, details={"collective_calls": {"all_reduce": 2.0}}, unstable={})
THEN, NOW = Provenance(date="2026-01-12", commit="3f2a1c0"), Provenance(date="2026-01-13", commit="9d8c7b6")


def result(launches: int = 6, *, verdict: Verdict = Verdict.UNCHANGED, counts: Counts | None = None) -> Result:
    seconds = tuple(0.2 + 0.01 * i for i in range(launches))
    series = (STEP_TIME.series(seconds), *(() if counts is None else counted_series(counts)))
    made = tuple(make_launch((s, s), round=i) for i, s in enumerate(seconds))
    measured = make_measurement(environment=CPU, launches=made, series=series, counts=counts)
    return Result(
        test="t.py::test",
        measurement=measured,
        comparisons=(),
        verdict=verdict,
        reference=StoredBaseline(record=None, origin=""),
    )


@pytest.mark.parametrize("verdict", Verdict)
def test_only_what_is_undecided_has_to_be_forced(verdict: Verdict) -> None:
    assert acceptable(result(verdict=verdict)) is (verdict is not Verdict.INCONCLUSIVE)


def test_a_baseline_of_few_launches_is_warned_of() -> None:
    few, many = result(launches=2), result(launches=20)
    assert warned(few).findings == (Finding("thin_baseline", {"launches": 2}),)
    assert warned(many) == many


def test_a_baseline_that_was_made_beside_much_load_is_warned_of() -> None:
    one = result(launches=20)
    launches = tuple(replace(launch, health=Health(cpu=CpuHealth(others=0.5))) for launch in one.measurement.launches)
    busy = replace(one, measurement=replace(one.measurement, launches=launches))
    assert warned(busy).findings == (Finding("disturbed_baseline", {"lost": 0.5}),)
    assert baseline_record(busy, NOW).lost == 0.5


def test_a_record_tells_the_steps_of_each_launch_and_when_it_was_made() -> None:
    record = baseline_record(result(launches=3), NOW)
    assert (record.date, record.commit) == ("2026-01-13", "9d8c7b6")
    assert [launch["p50"] for launch in record.steps] == pytest.approx([0.2, 0.21, 0.22])


def test_counts_stay_only_beside_times_that_may_replace_the_old_ones() -> None:
    """Not beside those of another machine, nor where the training is another now."""
    old = baseline_record(result(counts=COUNTS), THEN)

    def beside(record: BaselineRecord, differs: tuple[str, ...] = ()) -> Result:
        return replace(result(launches=3), reference=StoredBaseline(record=record, origin="", differs=differs))

    timed = beside(old)
    assert baseline_record(timed, NOW).counts == COUNTS
    assert baseline_record(timed, NOW).counts_from == THEN
    elsewhere = replace(old, environment=replace(CPU, cores=64))
    assert baseline_record(beside(elsewhere), NOW).counts is None
    assert baseline_record(beside(old, differs=("precision",)), NOW).counts is None
