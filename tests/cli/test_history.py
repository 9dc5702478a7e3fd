from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.baselines.history.database import HistoryRun, entries, record
from pytest_ddpperf.baselines.jsonfile import render
from pytest_ddpperf.cli.command import main
from pytest_ddpperf.records.results import Result
from tests.cli.running import Run
from tests.factories import make_environment, make_history_run, make_new_result, make_results_document, make_series

CPU = make_environment(cpu_model="AMD EPYC", cores=2)


def result(step_time: float, test: str = "t.py::test_a") -> Result:
    step = make_series("step_time", step_time, samples=(step_time,) * 4, min_tolerance=0.01)
    return make_new_result(test, step, make_series("peak_resident", 1e9, unit="B"), environment=CPU)


def written(file: Path, run: HistoryRun, *results: Result) -> Path:
    """The results of a run in the file of its own."""
    assert run.commit is not None
    code = Checkout(run.commit, run.branch, dirty=run.dirty, commit_date=run.commit_date)
    file.write_text(render(make_results_document(results, code, date=run.date)))
    return file


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Eight runs, of which the last four are slower."""
    return [written(tmp_path / f"{i}.json", make_history_run(i), result(0.05 if i > 3 else 0.04)) for i in range(8)]


@pytest.fixture
def history(tmp_path: Path, runs: list[Path]) -> Path:
    file = tmp_path / "history.sqlite"
    assert main(["history", "add", *map(str, runs), "--history", str(file)]) == 0
    return file


def test_files_become_runs_as_if_they_had_been_recorded(history: Path, tmp_path: Path) -> None:
    direct = tmp_path / "direct.sqlite"
    for i in range(8):
        record(direct, make_history_run(i), [result(0.05 if i > 3 else 0.04)])
    for metric in ("step_time", "peak_resident"):
        assert entries(history, metric) == entries(direct, metric)
        assert len(entries(history, metric)) == 8


def test_a_run_that_is_there_is_not_added_again(history: Path, runs: list[Path], tmp_path: Path, printed: Run) -> None:
    assert printed("history", "add", runs[3], "--history", history).endswith(
        f"{runs[3]}: this run is in {history} already\n"
    )
    assert len(entries(history, "step_time")) == 8
    other = written(tmp_path / "other\x1b.json", make_history_run(3), result(0.04, "t.py::test_b"))  # of that moment
    said = f"{tmp_path}/other\\x1b.json: 1 benchmark, run number 9 of {history}\n"
    assert printed("history", "add", other, "--history", history) == said


def test_nothing_is_added_if_a_file_is_broken(runs: list[Path], tmp_path: Path, complaint: Run) -> None:
    runs[1].write_text("{")
    file = tmp_path / "new.sqlite"
    assert f"results file {runs[1]}: is cut off" in complaint("history", "add", *runs, "--history", file)
    assert not file.exists()


def test_nothing_is_added_if_a_fact_of_the_machine_cannot_be(runs: list[Path], tmp_path: Path, complaint: Run) -> None:
    runs[0].write_text(runs[0].read_text().replace('"threads": ', '"threads": -'))
    file = tmp_path / "new.sqlite"
    assert "field threads: expected `int` >= 0; write it again" in complaint(
        "history", "add", runs[0], "--history", file
    )
    assert not file.exists()


def test_a_file_without_a_date_is_refused(runs: list[Path], tmp_path: Path, complaint: Run) -> None:
    runs[0].write_text(json.dumps({**json.loads(runs[0].read_text()), "date": None}))
    said = f"results file {runs[0]}: field date: is null, and a history needs a date; write it again"
    assert said in complaint("history", "add", runs[0], "--history", tmp_path / "new.sqlite")


def test_a_run_without_benchmarks_adds_nothing(tmp_path: Path, printed: Run) -> None:
    empty = written(tmp_path / "empty.json", make_history_run(0))
    file = tmp_path / "new.sqlite"
    assert printed("history", "add", empty, "--history", file) == f"{empty}: no benchmark was judged\n"
    assert not file.exists()


def test_a_benchmark_goes_out_as_a_table(history: Path, printed: Run) -> None:
    rows = list(csv.reader(io.StringIO(printed("history", "csv", "test_a", "--history", history))))
    assert rows[0] == ["time", "commit", "branch", "peak_resident", "step_time"]
    assert rows[1] == ["2026-01-01T00:00:00+00:00", "0" * 40, "main", "1000000000.0", "0.04"]
    assert [row[4] for row in rows[1:]] == ["0.04"] * 4 + ["0.05"] * 4


def test_a_branch_is_no_formula_of_a_spreadsheet(tmp_path: Path, printed: Run) -> None:
    file = written(tmp_path / "run.json", make_history_run(0, branch="=cmd|' /C calc'!A0"), result(0.04))
    new = ("--history", tmp_path / "new.sqlite")
    printed("history", "add", file, *new)
    _, (_, _, branch, *_) = csv.reader(io.StringIO(printed("history", "csv", "test_a", *new)))
    assert branch == "'=cmd|' /C calc'!A0"


def test_only_runs_with_the_metric_are_rows(history: Path, tmp_path: Path, printed: Run) -> None:
    counted = make_new_result("t.py::test_a", make_series("collective_calls", 2.0, unit="1"), environment=CPU)
    other = written(tmp_path / "counted.json", make_history_run(9), counted)
    printed("history", "add", other, "--history", history)
    head, *rows = csv.reader(
        io.StringIO(printed("history", "csv", "test_a", "--metric", "step_time", "--history", history))
    )
    assert head == ["time", "commit", "branch", "step_time"]
    assert len(rows) == 8
    assert printed("history", "csv", "test_a", "--history", history).splitlines()[-1].endswith(",main,2.0,,")


def test_several_benchmarks_are_no_table(history: Path, tmp_path: Path, printed: Run, complaint: Run) -> None:
    other = written(tmp_path / "other.json", make_history_run(9), result(0.04, "t.py::test_ab"))
    printed("history", "add", other, "--history", history)
    key = "w2 on cpu-amd-epyc-2c-t1-gloo-w2-torch2.13"
    said = f"several benchmarks match (t.py::test_a ddp {key}, t.py::test_ab ddp {key})"
    assert said in complaint("history", "csv", "test", "--history", history)


def test_a_table_of_a_metric_without_values_is_refused(history: Path, complaint: Run) -> None:
    said = complaint("history", "csv", "test_a", "--metric", "step_time", "--metric", "x", "--history", history)
    says = "has no values of x for test_a; its metrics are peak_resident, step_time"
    assert said == f"ddpperf: error: history file {history} {says}\n"


OTAVA = """
tests:
  test_a:
    type: csv
    file: {file}
    time_column: time
    attributes: [commit, branch]
    metrics:
      step_time: {{column: step_time, direction: -1}}
      peak_resident: {{column: peak_resident, direction: -1}}
    csv_options: {{delimiter: ","}}
"""


@pytest.mark.skipif(shutil.which("otava") is None, reason="apache-otava is not installed")
def test_otava_finds_the_change_in_the_table(history: Path, tmp_path: Path) -> None:
    table, config = tmp_path / "test_a.csv", tmp_path / "otava.yaml"
    assert main(["history", "csv", "test_a", "--history", str(history), "--output", str(table)]) == 0
    config.write_text(OTAVA.format(file=table))
    command = ["otava", "analyze", "--config-file", str(config), "test_a", "--since", "2020-01-01"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "+25.0%" in done.stdout
