from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.cli.command import main
from pytest_ddpperf.errors import BaselineError
from pytest_ddpperf.reports.documents.run_file import read_run
from pytest_ddpperf.reports.files import document_text
from tests.factories import make_results_document
from tests.reports.golden_runs import GOLDEN
from tests.reports.made import make_result


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A document of one benchmark, as it is written."""
    path = tmp_path / "run.json"
    path.write_text(document_text(make_results_document([make_result()], None, date="2026-01-12T10:00:00+00:00")))
    return path


def test_standard_input_is_read_as_a_file_is(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of this process, for as long as it is read: a pipe."""
    reading, writing = os.pipe()
    os.write(writing, file.read_bytes())
    os.close(writing)
    ours = os.dup(0)
    os.dup2(reading, 0)
    try:
        assert not main(["report", "-"])
    finally:
        os.dup2(ours, 0)
        os.close(ours)
        os.close(reading)
    assert "1 regressed" in capsys.readouterr().out


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
        ("extra", 1, "field extra: is unknown to this version; write it again with --ddpperf-report=json:FILE"),
        (
            "calibration",
            [{"test": "t.py", "noise_floor": 0.04}],
            "field calibration[0].noise_floor: is unknown to this version",
        ),
        ("dirty", "no", "field dirty: expected `bool`, got `str`"),
        ("results/0/world_size", 0, "field results[0].world_size: expected `int` >= 1"),
        ("date", "2026-02-30T10:00:00+00:00", "field date: expected `str` matching regex "),
        ("results/0/verdict", "fine", "field results[0].verdict: invalid enum value 'fine'"),
        ("results/0/step_times/7/1", None, "field results[0].step_times[7][1]: expected `float`, got `null`"),
        ("results/0/step_times/0", [], "field results[0].step_times[0]: expected `array` of length >= 1"),
        ("results/0/metrics", [], "field results[0].metrics: expected `object`, got `array`"),
        ("results/0/metrics/Bad", {}, "field results[0].metrics: expected `str` matching regex "),
        (
            "results/0/metrics/step_time/interval/confidence",
            1,
            "field results[0].metrics[...].interval.confidence: expected `float` < 1.0",
        ),
        ("results/0/baseline/date", "January", "field results[0].baseline.date: expected `str` matching regex "),
        ("environment", None, "field environment"),
        # As users may write them by hand. NaN is read as null.
        ("results/0/step_times/7/1", math.nan, "field results[0].step_times[7][1]: expected `float`, got `null`"),
        ("results/0/step_times/7/1", 1e308, "field results[0].step_times[7][1]: the number 1e+308 is too large; write"),
        ("results/0/seconds", math.inf, "field results[0].seconds: expected `float`, got `null`"),
        ("schema", "pytest-ddpperf/results/4", "field schema is results/4, which a newer pytest-ddpperf wrote"),
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


def test_a_value_that_is_not_finite_is_unknown(file: Path) -> None:
    data = json.loads(file.read_text())
    data["results"][0]["metrics"]["step_time"]["value"] = math.nan
    file.write_text(json.dumps(data))
    assert math.isnan(read_run(file).results[0]["step_time"].series.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"run.json does not exist; pytest --ddpperf-report=json:.* writes it"):
        read_run(tmp_path / "run.json")


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (
            "diagnosis/advice/0/code",
            "later",
            "diagnosis: has a cause or advice that this version of the plugin does not know ('later')",
        ),
        (
            "diagnosis/advice/0/code",
            "bucket_size",
            "diagnosis: has a cause or advice that this version of the plugin does not know ('megaby",
        ),
    ],
)
def test_a_diagnosis_without_words_is_named(tmp_path: Path, path: str, value: object, problem: str) -> None:
    data = json.loads((GOLDEN / "run.json").read_text())
    number = next(i for i, each in enumerate(data["results"]) if each["diagnosis"] and each["diagnosis"]["advice"])
    changed(data, f"results/{number}/{path}", value)
    assert refused(tmp_path, data).startswith(f"field results[{number}].{problem}")


@pytest.mark.parametrize(
    ("path", "value"), [("metric", "accuracy"), ("strategies/0/curves", []), ("strategies/1/curves/0/steps", [])]
)
def test_trainings_without_a_last_value_are_named(tmp_path: Path, path: str, value: object) -> None:
    data = json.loads((GOLDEN / "run.json").read_text())
    changed(data, f"convergences/0/{path}", value)
    assert refused(tmp_path, data).startswith("field convergences[0].strategies: expected steps, and last values of ")


def refused(folder: Path, data: object) -> str:
    """The problem for which a results document is refused."""
    (file := folder / "run.json").write_text(json.dumps(data))
    with pytest.raises(BaselineError) as caught:
        read_run(file)
    return str(caught.value).removeprefix(f"results file {file}: ")
