from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.reports.formats.pytest_benchmark import entries, pytest_benchmark, stats_of
from tests.factories import make_launch
from tests.reports.formats.samples import REGRESSED
from tests.reports.made import make_document

TIMES = (0.02, 0.01, 0.04, 0.03)
LAUNCHES = (make_launch(TIMES[:2], (0.0, 0.0)), make_launch(TIMES[2:], (0.0, 0.0)))
TIMED = replace(REGRESSED, measurement=replace(REGRESSED.measurement, launches=LAUNCHES))


def test_the_data_may_be_omitted() -> None:
    (entry,) = entries(make_document(TIMED), data=False)
    assert "data" not in entry["stats"]


@pytest.mark.parametrize("number", [1, 2, 3, 5, 8, 40])
def test_the_statistics_agree_with_pytest_benchmark(number: int) -> None:
    theirs = pytest.importorskip("pytest_benchmark.stats", reason="pytest-benchmark is not installed").Stats()
    times = [0.01 + 0.001 * (i * 7 % 11) + (i == 3) for i in range(number)]
    for time in times:
        theirs.update(time)
    assert stats_of(times) == pytest.approx({name: getattr(theirs, name, 1) for name in stats_of(times)})


def test_pytest_benchmark_lists_our_results(tmp_path: Path) -> None:
    pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")
    file = tmp_path / "run.json"
    file.write_text(pytest_benchmark(make_document(TIMED)))
    command = [sys.executable, "-m", "pytest_benchmark", "compare", str(file), "--csv", str(tmp_path / "out.csv")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("test_step[bucketed] bucketed w2")]
    assert line.split()[4:7] == ["10.0000", "40.0000", "25.0000"]  # ms: least, most, mean
    assert "test_step[bucketed] bucketed w2" in (tmp_path / "out.csv").read_text()
