from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import msgspec
import pytest

from pytest_ddpperf.baselines.history.database import HistoryRun, record
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.trend import TrendsFile
from tests.cli.running import Run
from tests.factories import make_environment, make_history_run, make_new_result, make_series

CPU = make_environment(cpu_model="AMD EPYC", cores=2)


def result(test: str, step_time: float, more: Sequence[str] = ()) -> Result:
    return make_new_result(test, *(make_series(metric, step_time) for metric in ("step_time", *more)), environment=CPU)


def run(number: int) -> HistoryRun:
    return make_history_run(number, branch="main" if number < 7 else "topic")


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight commits: one test gets slower at the fifth, one not."""
    file = tmp_path_factory.mktemp("history") / "history.sqlite"
    for i in range(8):
        slower = result("t.py::test_slower", 0.05 if i >= 4 else 0.04, ["other"])
        record(file, run(i), [slower, result("t.py::test_still", 0.04)])
    return file


UNCHANGED = "step_time changed in 0 of 2 benchmarks; a change in the newest 2 commits would not show yet\n"
SENTENCE = "between 0000003 (2026-01-04) and 0000004 (2026-01-05): step_time +25.0 % [95 % CI +25.0 .. +25.0], worse"


def test_trend_shows_a_test_over_commits(history: Path, printed: Run) -> None:
    lines = printed("trend", "slower", "--history", history).splitlines()
    assert lines[0] == "t.py::test_slower: ddp"
    assert lines[6].split()[:3] == ["0000000", "2026-01-01", "40.0"]
    assert SENTENCE in lines


def test_trend_without_a_test_lists_all_that_changed(history: Path, printed: Run) -> None:
    assert printed("trend", "--history", history).splitlines() == [
        "t.py::test_slower: ddp",
        "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13",
        f"  {SENTENCE}",
        "",
        "step_time changed in 1 of 2 benchmarks; a change in the newest 2 commits would not show yet",
    ]


def test_no_line_is_wider_than_the_terminal(history: Path, monkeypatch: pytest.MonkeyPatch, printed: Run) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = printed("trend", "--history", history).splitlines()
    lines += printed("trend", "slower", "--history", history).splitlines()
    assert max(map(len, lines)) <= 60
    assert "  between 0000003 (2026-01-04) and 0000004 (2026-01-05):" in lines


def test_trend_has_options_for_metric_commits_and_smallest_change(history: Path, printed: Run) -> None:
    assert "between 0000003" in printed("trend", "--metric", "other", "--last", "7", "--history", history)
    assert printed("trend", "--least", "30%", "--history", history) == UNCHANGED
    assert "0000006" in (out := printed("trend", "test_still", "--branch", "main", "--history", history))
    assert "0000007" not in out


def test_trend_writes_json_to_the_terminal_or_to_a_file(
    history: Path, tmp_path: Path, printed: Run, complaint: Run
) -> None:
    text = printed("trend", "--history", history, "--json")
    document = json.loads(text)
    jsonschema.validate(document, msgspec.json.schema(TrendsFile))
    assert [trend["benchmark"]["test"] for trend in document["trends"]] == ["t.py::test_slower"]
    assert printed("trend", "--history", history, "--json", tmp_path / "trend.json") == ""
    assert (tmp_path / "trend.json").read_text() == text
    assert complaint("trend", "--history", history, "--json", tmp_path).startswith(
        f"ddpperf: error: --json: {tmp_path} cannot be written: "
    )


def test_one_call_of_trend_writes_a_page_and_json(history: Path, tmp_path: Path, printed: Run) -> None:
    page, data = tmp_path / "trend.html", tmp_path / "trend.json"
    assert printed("trend", "--history", history, "--html", page, "--json", data) == ""
    assert "<h1>ddpperf: step_time changed in " in page.read_text()
    assert json.loads(data.read_text())["metric"] == "step_time"


@pytest.mark.parametrize("test", ["test_still", "t.py::test_still"])
def test_a_test_given_as_the_json_file_is_refused(
    test: str, history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaint: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert complaint("trend", "--history", history, "--json", test).endswith(
        f"expected a file FILE.json; to name a test: ddpperf trend {test} --json\n"
    )
    assert set(tmp_path.iterdir()) == before


def test_trend_reads_the_history_named_in_the_ini_file(
    history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Run
) -> None:
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nddpperf_history = {history}\n")
    monkeypatch.chdir(tmp_path)
    assert "no change" in printed("trend", "test_still")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no history file is given: name it by --history FILE, or set ddpperf_history in the ini file of pytest; "),
        (["--history", "none.sqlite"], "history file none.sqlite does not exist; "),
        (["test_c", "--history", "H"], "history file H has no test test_c; its tests are t.py::test_slower, t"),
        (["--metric", "speed", "--history", "H"], "history file H has no values of speed for any test; its metrics"),
        (
            ["still", "--metric", "other", "--world-size", "2", "--branch", "main", "--history", "H"],
            "history file H has no values of other for still, world size 2, branch main; its metrics",
        ),
        (["--branch", "x", "--history", "H"], "history file H has no branch x; it has main, topic\n"),
        (["still", "--world-size", "8", "--history", "H"], "history file H has no world size 8; it has 2\n"),
        (["--history", "E"], "history file E: no run was recorded in it yet\n"),
    ],
)
def test_a_missing_history_test_or_metric_is_an_error_of_one_line(  # noqa: PLR0917 - fixtures
    history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaint: Run, arguments: list[str], says: str
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.sqlite").touch()
    files = {"H": str(history), "E": str(tmp_path / "empty.sqlite")}
    given = [files.get(word, word) for word in arguments]
    err = complaint("trend", *given)
    for word, file in files.items():
        says = says.replace(f"file {word}", f"file {file}")
    assert err.startswith(f"ddpperf: error: {says}")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_the_trend_of_a_hundred_thousand_records_is_quick(tmp_path: Path) -> None:
    """200 runs of 50 tests with ten metrics. A generous bound: a busy machine takes its time to start Python alone."""
    file = tmp_path / "history.sqlite"
    more = [f"metric_{i}" for i in range(9)]
    for i in range(200):
        times = [0.05 if i >= 120 and test == 0 else 0.04 for test in range(50)]
        record(file, run(i), [result(f"t.py::test_{test}", time, more) for test, time in enumerate(times)])
    for words in (["t.py::test_0"], []):
        code = "import sys; from pytest_ddpperf.cli.command import main; sys.exit(main())"
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code, "trend", *words, "--history", str(file)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert time.perf_counter() - start < 5
        assert "step_time +25.0 %" in done.stdout


def test_a_unit_from_a_file_writes_nothing_but_text_to_a_terminal(tmp_path: Path, printed: Run) -> None:
    file = tmp_path / "history.sqlite"
    for i in range(8):
        named = HistoryRun(date=f"2026-01-0{i + 1}", commit=f"{i}\x1b]0;\x07", commit_date=None, branch="\x1b[2J")
        record(file, named, [result("t.py::test_a", 0.05 if i >= 4 else 0.04)])
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE metric SET unit = ?", ("\x1b]0;owned\x07",))
    connection.close()
    for command in (["trend"], ["trend", "test_a"], ["trend", "--html", "-"], ["history", "csv", "test_a"]):
        text = printed(*command, "--history", file)
        assert not {"\x1b", "\x07"} & {*text}
        assert "\\x1b" in text
