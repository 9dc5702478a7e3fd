from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.formats.pytest_benchmark import entries, pytest_benchmark, quartiles, stats_of
from tests.factories import make_launch
from tests.reports.formats.samples import CODE, MakeDocument

TIMES = (0.02, 0.01, 0.04, 0.03)


@pytest.fixture
def timed(regressed: Result) -> Result:
    """A result of two launches with two steps each."""
    launches = (make_launch(TIMES[:2], (0.0, 0.0)), make_launch(TIMES[2:], (0.0, 0.0)))
    return replace(regressed, measurement=replace(regressed.measurement, launches=launches))


def test_the_steps_of_all_launches_are_rounds(make_document: MakeDocument, timed: Result) -> None:
    (entry,) = entries(make_document(timed))
    stats = entry.pop("stats")
    assert entry == {
        "group": None,
        "name": "test_step[bucketed] bucketed w2",
        "fullname": "perf_tests/test_strategies.py::test_step[bucketed] bucketed w2",
        "params": None,
        "param": None,
        "extra_info": {"verdict": "regressed", "strategy": "bucketed", "world_size": 2, "launches": 2},
        "options": {"warmup": True},
    }
    assert stats == {
        "min": 0.01,
        "max": 0.04,
        "mean": 0.025,
        "stddev": pytest.approx((5e-4 / 3) ** 0.5),
        "rounds": 4,
        "median": 0.025,
        "iqr": pytest.approx(0.02),
        "q1": 0.015,
        "q3": 0.035,
        "iqr_outliers": 0,
        "stddev_outliers": 2,
        "outliers": "2;0",
        "ld15iqr": 0.01,
        "hd15iqr": 0.04,
        "ops": pytest.approx(40.0),
        "total": 0.1,
        "iterations": 1,
        "data": list(TIMES),
    }


def test_the_data_may_be_left_out(make_document: MakeDocument, timed: Result) -> None:
    (entry,) = entries(make_document(timed), data=False)
    assert "data" not in entry["stats"]


def test_the_head_tells_machine_and_commit(make_document: MakeDocument, timed: Result) -> None:
    content = json.loads(pytest_benchmark(make_document(timed)))
    assert content["commit_info"] == {"id": CODE.commit, "time": CODE.commit_date, "dirty": True, "branch": "main"}
    assert content["machine_info"]["cpu"] == {"brand_raw": "AMD EPYC", "count": 2}
    assert content["machine_info"]["node"] == "runner-1"
    assert content["datetime"] == "2026-01-12T10:00:00+00:00"


def test_what_was_not_timed_is_left_out(make_document: MakeDocument, broken: Result) -> None:
    assert json.loads(pytest_benchmark(make_document(broken)))["benchmarks"] == []


@pytest.mark.parametrize(
    ("ordered", "expected"),
    [
        ((1.0,), (1.0, 1.0)),
        ((1.0, 3.0), (1.0, 3.0)),
        ((1.0, 2.0, 4.0), (1.25, 3.5)),
        ((1.0, 2.0, 3.0, 4.0, 5.0), (1.75, 4.25)),
    ],
)
def test_quartiles(ordered: tuple[float, ...], expected: tuple[float, float]) -> None:
    assert quartiles(ordered) == expected


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 6, 7, 8, 40])
def test_the_statistics_are_those_of_pytest_benchmark(number: int) -> None:
    theirs = pytest.importorskip("pytest_benchmark.stats", reason="pytest-benchmark is not installed").Stats()
    times = [0.01 + 0.001 * (i * 7 % 11) + (i == 3) for i in range(number)]
    for time in times:
        theirs.update(time)
    assert stats_of(times) == pytest.approx({name: getattr(theirs, name, 1) for name in stats_of(times)})


def test_pytest_benchmark_lists_our_results(make_document: MakeDocument, timed: Result, tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")
    file = tmp_path / "run.json"
    file.write_text(pytest_benchmark(make_document(timed)))
    command = [sys.executable, "-m", "pytest_benchmark", "compare", str(file), "--csv", str(tmp_path / "out.csv")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("test_step[bucketed] bucketed w2")]
    assert line.split()[4:7] == ["10.0000", "40.0000", "25.0000"]  # ms: least, most, mean
    assert "test_step[bucketed] bucketed w2" in (tmp_path / "out.csv").read_text()
