from __future__ import annotations

from dataclasses import replace

from pytest_ddpperf.records.launch import CpuHealth, GpuHealth, Health
from pytest_ddpperf.records.results import Comparison, PairedRevision, Provenance, StoredBaseline, record_of
from pytest_ddpperf.records.verdict import Verdict
from tests.factories import make_environment, make_launch, make_measurement, make_result, make_series

STEP_TIME = make_series("step_time", 0.0473, samples=(0.0473,))
MEASURED = make_measurement(series=(STEP_TIME,))
RESULT = make_result(test="t.py::test_x", measurement=MEASURED, verdict=Verdict.UNCHANGED)


def test_the_repr_of_a_result_has_its_verdict_and_its_change() -> None:
    slower = Comparison(
        series=STEP_TIME, baseline=0.0418, change=0.132, tolerance=0.03, verdict=Verdict.REGRESSED, gated=True
    )
    red = replace(RESULT, comparisons=(slower,), verdict=Verdict.REGRESSED)
    assert repr(red) == "<Result regressed: t.py::test_x ddp, 2 ranks, step_time 47.3 ms in 0 launches (+13.2 %)>"
    assert repr(RESULT).endswith(" in 0 launches>")


def test_a_record_keeps_the_facts_that_make_its_times_comparable() -> None:
    """That others took 30 % of the cores, or the clock of the GPUs; and the digest of the code."""
    health = Health(cpu=CpuHealth(others=0.3))
    on_cpu = make_measurement(launches=(make_launch((1.0,), health=health),), series=(STEP_TIME,))
    record = record_of(on_cpu, Provenance(date="2026-01-12", commit="3f2a1c0", dirty=True, code="d1ce"))
    assert (record.busy, record.lost, record.clock) == (True, 0.3, None)
    assert (record.commit, record.dirty, record.code, record.typical) == ("3f2a1c0", True, "d1ce", False)
    assert (record.series, record.timed) == ((STEP_TIME,), True)
    health = replace(health, gpus=(GpuHealth(device="0000:1b:00.0", readings=1, sm_clock=1.5e9),))
    gpus, launches = make_environment(device="cuda", device_count=2), (make_launch((1.0,), health=health),)
    record = record_of(replace(on_cpu, environment=gpus, launches=launches), Provenance(date="2026-01-12", commit=None))
    assert (record.busy, record.lost, record.clock) == (False, 0.0, 1.5e9)


def test_the_pair_of_a_result_is_the_revision_that_its_times_are_judged_by() -> None:
    pair = PairedRevision(revision="3f2a1c0", commit="3f2a1c0")
    stored = StoredBaseline(record=None, origin="")
    assert (RESULT.pair, RESULT.paired) == (None, None)
    beside_commit = replace(RESULT, reference=replace(stored, pair=pair))
    assert (beside_commit.pair, beside_commit.paired) == (pair, None)
    beside_revision = replace(RESULT, reference=pair)
    assert (beside_revision.pair, beside_revision.paired) == (pair, pair)
