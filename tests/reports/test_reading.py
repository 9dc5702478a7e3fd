from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.results import Comparison, PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.run_file import read_run
from pytest_ddpperf.reports.files import document_text
from tests.factories import make_results_document
from tests.reports.conftest import comparison

COUNTS = Counts(totals={"flops": 2.0}, details={}, unstable={})
Make = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path, make_result: Make) -> Path:
    """A document of one benchmark, as it is written."""
    path = tmp_path / "run.json"
    path.write_text(document_text(make_results_document([make_result()], None, date="2026-01-12T10:00:00+00:00")))
    return path


def test_a_document_is_read_with_its_types(file: Path) -> None:
    document = read_run(file)
    (result,) = document.results
    assert (document.date, document.commit, document.dirty) == ("2026-01-12T10:00:00+00:00", None, False)
    assert [launch.step_times for launch in result.measurement.launches] == [(0.05,) * 3] * 8
    assert result["step_time"].change == 0.132
    assert result["step_time"].series.interval is not None
    assert result["step_time"].series.interval.high == 0.0478
    assert result.measurement.environment.recorded == {"host": "runner-1"}


def test_what_was_read_stays_as_it_is(file: Path) -> None:
    with pytest.raises(AttributeError, match="immutable type"):
        read_run(file).commit = "other"  # type: ignore[misc]


def test_times_beside_the_commit_of_the_baseline_are_paired_and_counts_are_not(
    tmp_path: Path, make_result: Make
) -> None:
    commit = PairedRevision(revision="3f2a1c0", commit=None, launches=6)
    step = comparison("step_time", 0.04, Verdict.OK, change=0.01, paired=True)
    flops = Comparison(series=counted_series(COUNTS)[0], tolerance=0.0, verdict=Verdict.UNCHANGED, gated=True)
    reference = StoredBaseline(record=None, origin="cpu", pair=commit)
    result = make_result(comparisons=(step, flops), measured={"counts": COUNTS}, reference=reference)
    path = tmp_path / "run.json"
    path.write_text(document_text(make_results_document([result], None)))
    (read,) = read_run(path).results
    assert read.pair is not None
    assert (read["step_time"].paired, read["flops"].paired) == (True, False)


def test_a_calibration_of_before_is_refused_with_its_field(file: Path) -> None:
    data = json.loads(file.read_text())
    data["calibration"] = [{"test": "t.py::test_a", "noise_floor": 0.04}]
    file.write_text(json.dumps(data))
    with pytest.raises(BaselineError) as caught:
        read_run(file)
    assert str(caught.value) == (
        f"results file {file}: field calibration[0].noise_floor: is not known here; write it again with "
        "--ddpperf-report=json:FILE"
    )


def test_standard_input_is_read_as_a_file_is(file: Path) -> None:
    code = "from pytest_ddpperf.cli.command import main; raise SystemExit(main(['report', '-']))"

    def reported(given: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, check=False)

    assert b"1 regressed" in reported(file.read_bytes()).stdout
    broken = reported(b"\xff\xfe{}")
    assert (broken.returncode, broken.stderr.count(b"Traceback")) == (2, 0)
    assert b"results file /dev/stdin: is not text in UTF-8" in broken.stderr


def changed(data: Any, path: str, value: object) -> None:
    """Puts a value in place of another one, or takes it away: ``...``."""
    *steps, last = (int(step) if step.isdecimal() else step for step in path.split("/"))
    for step in steps:
        data = data[step]
    if value is ...:
        del data[last]
    else:
        data[last] = value


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("results", ..., "field results: is missing"),
        ("date", ..., "field date: is missing"),
        ("extra", 1, "field extra: is not known here"),
        ("results/0/extra", 1, "field results[0].extra: is not known here"),
        ("dirty", "no", "field dirty: expected `bool`, got `str`"),
        ("results/0/world_size", 0, "field results[0].world_size: expected `int` >= 1"),
        ("results/0/world_size", 2.5, "field results[0].world_size: expected `int`, got `float`"),
        ("date", "2026-02-30T10:00:00+00:00", "field date: expected `str` matching regex "),
        ("commit_date", "2026-02-28", "field commit_date: expected `str` matching regex "),
        ("results/0/verdict", "fine", "field results[0].verdict: invalid enum value 'fine'"),
        ("results/0/step_times/7/1", None, "field results[0].step_times[7][1]: expected `float`, got `null`"),
        ("results/0/step_times/7", 3, "field results[0].step_times[7]: expected `array`, got `int`"),
        ("results/0/metrics", [], "field results[0].metrics: expected `object`, got `array`"),
        ("results/0/metrics/Bad", {}, "field results[0].metrics: expected `str` matching regex "),
        (
            "results/0/metrics/step_time/interval/confidence",
            1,
            "field results[0].metrics[...].interval.confidence: expected `float` < 1.0",
        ),
        ("results/0/baseline/date", "January", "field results[0].baseline.date: expected `str` matching regex "),
        ("environment", None, "field environment"),
        ("schema", "pytest-ddpperf/results/4", "field schema: a newer pytest-ddpperf wrote this file (results/4)"),
        ("schema", "pytest-ddpperf/trend/1", "field schema: expected pytest-ddpperf/results/3, found pytest-ddpperf/"),
    ],
)
def test_a_field_that_does_not_fit_is_named(file: Path, path: str, value: object, problem: str) -> None:
    data = json.loads(file.read_text())
    changed(data, path, value)
    if path == "environment":
        data["environments"] = {}
    file.write_text(json.dumps(data))
    with pytest.raises(BaselineError) as caught:
        read_run(file)
    assert str(caught.value).startswith(f"results file {file}: {problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [("", "is empty"), ('{"schema"', "is cut off at line 1"), ("hello", "holds something else than JSON")],
)
def test_a_broken_file_is_named(file: Path, text: str, problem: str) -> None:
    file.write_text(text)
    with pytest.raises(BaselineError) as caught:
        read_run(file)
    assert str(caught.value) == f"results file {file}: {problem}; write it again with --ddpperf-report=json:FILE"


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BaselineError, match=r"run.json: there is no such file; pytest --ddpperf-report=json:.* writes one"
    ):
        read_run(tmp_path / "run.json")
