"""What a stored network adds to the results of a session."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.baselines.history.database import record
from pytest_ddpperf.baselines.network import NetworkFile, network_file, save_network
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Environment, Measurement
from pytest_ddpperf.records.network import CollectiveFit, Segment
from pytest_ddpperf.records.results import Provenance, StoredBaseline, record_of
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import Settings
from tests.factories import (
    PROFILE,
    make_environment,
    make_history_run,
    make_launch,
    make_measurement,
    make_new_result,
    make_series,
)

MB = 10**6
LINE = Segment(max_bytes=16 * MB, latency=1e-3, seconds_per_byte=1e-9)
FIT = CollectiveFit(collective="all_reduce", world_size=2, min_bytes=1000, segments=(LINE,), error=0.06)


def store(root: Path, environment: Environment) -> Path:
    """Stores a network of an environment in the folder of the baselines."""
    file = network_file(root / Settings().baseline_dir, environment)
    key = file.parent.name
    save_network(file, NetworkFile(environment=key, date="2026-11-26", taken=0.5, usual=1.2, fits=(FIT,), timings=()))
    return file


def measured(megabytes: int, *, profiled: bool = False) -> Measurement:
    """A step of one all-reduce."""
    details = {"collective_calls": {"all_reduce": 1.0}, "collective_bytes": {"all_reduce": float(megabytes * MB)}}
    return make_measurement(
        launches=(make_launch((0.1,), (0.1,)),),
        counts=Counts(totals={}, details=details, unstable={}),
        profile=replace(PROFILE, transfer=0.012) if profiled else None,
    )


def codes(root: Path, measurement: Measurement) -> list[str]:
    """The findings of a result of this measurement, as a session lists it."""
    session = Session(Settings(), root, LiveLine(None, None))
    session.add([replace(make_new_result(), measurement=measurement)])
    return [finding.code for finding in session.outputs.results[0].findings]


def test_each_benchmark_with_a_stored_network_has_one_finding_of_it(tmp_path: Path) -> None:
    store(tmp_path, make_environment())
    given = (measured(10, profiled=True), measured(10), measured(25))
    assert [codes(tmp_path, each) for each in given] == [["on_network"], ["only_on_network"], ["not_on_network"]]


def test_a_benchmark_without_a_stored_network_of_several_ranks_has_none(tmp_path: Path) -> None:
    assert codes(tmp_path, measured(10)) == []
    alone = make_environment(world_size=1)
    for environment in (alone, make_environment(world_size=4)):
        store(tmp_path, environment)
    assert codes(tmp_path, measured(10)) == codes(tmp_path, replace(measured(10), environment=alone)) == []


def test_a_broken_network_is_complained_of_once(tmp_path: Path) -> None:
    store(tmp_path, make_environment()).write_text("{", encoding="utf-8")
    session = Session(Settings(), tmp_path, LiveLine(None, None))
    session.add([replace(make_new_result(), measurement=measured(10))] * 2)
    assert [result.findings for result in session.outputs.results] == [(), ()]
    (complaint,) = session.archive.complaints
    assert "network.json" in complaint


@pytest.mark.parametrize(
    ("value", "wanted", "told"),
    [
        (0.002, None, True),
        (0.050, None, True),  # it is worse than any run
        (0.012, None, False),
        (0.012, 0.005, True),
        (0.012, 0.050, False),  # any run meets it
    ],
)
def test_a_target_that_no_run_in_the_history_has_met_is_reported(
    tmp_path: Path, value: float, wanted: float | None, *, told: bool
) -> None:
    for number in range(5):
        ran = make_new_result("t.py::test_a", make_series("step_time", 0.010 + 0.001 * number))
        record(tmp_path / "runs.sqlite", make_history_run(number), [ran])
    archive = Session(replace(Settings(), history=Path("runs.sqlite")), tmp_path, LiveLine(None, None)).archive
    found = archive.never_met("t.py::test_a", make_measurement(), make_series("step_time", value), wanted)
    assert [each.facts["stored"] for each in found] == [wanted is None] * told
    without = Session(Settings(), tmp_path, LiveLine(None, None)).archive
    assert without.never_met("t.py::test_a", make_measurement(), make_series("step_time", value), wanted) == []


def test_a_stored_value_that_no_run_has_met_is_a_finding_of_the_result(tmp_path: Path) -> None:
    slow = make_series("step_time", 0.010)
    for number in range(5):
        record(tmp_path / "runs.sqlite", make_history_run(number), [make_new_result("t.py::test_a", slow)])
    session = Session(replace(Settings(), history=Path("runs.sqlite")), tmp_path, LiveLine(None, None))
    result = make_new_result("t.py::test_a", slow)
    saved = make_measurement(series=(make_series("step_time", 0.002),))
    stored = record_of(saved, Provenance(date="2026-01-12", commit=None))
    session.add([replace(result, reference=StoredBaseline(record=stored, origin=""))])
    assert [finding.code for finding in session.outputs.results[0].findings] == ["never_met"]
