from __future__ import annotations

import json
import math
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.baselines.history import (
    Run,
    ensure_recordable,
    entries,
    record,
    recorded_metrics,
    recorded_tests,
    run_of,
)
from pytest_ddpperf.errors import HistoryError
from pytest_ddpperf.records import Environment, Interval, Measurement, Plan, Series
from pytest_ddpperf.results import Comparison, Result
from pytest_ddpperf.verdict import Verdict

RUN = Run("2026-01-12T10:00:00+00:00", "3f2a1c0" + "0" * 33, "2026-01-11T09:00:00+00:00", "main", dirty=False)
STEP_TIME = Series(
    metric="step_time",
    unit="s",
    better="lower",
    family="absolute",
    scale="ratio",
    gated=True,
    slack=0.0,
    samples=(0.041, 0.0418),
    value=0.0414,
    interval=Interval(0.0398, 0.043, 0.95),
)
CALLS = Series("collective_calls", "1", "lower", "counted", "exact", True, 0.0, (5.0,), 5.0, None)  # noqa: FBT003
BYTES = replace(CALLS, metric="collective_bytes", unit="B", samples=(12345678901.0,), value=12345678901.0)

MakeResult = Callable[..., Result]


@pytest.fixture
def make_result(make_environment: Callable[..., Environment]) -> MakeResult:
    """A judged benchmark with some metrics."""

    def make(test: str = "t.py::test_a", *series: Series, **fields: object) -> Result:
        facts: dict[str, object] = {"name": "ddp", "strategy": "ddp", "mode": None, "environment": make_environment()}
        measured = Measurement(plan=Plan(5, 60), launches=(), **{**facts, **fields})  # type: ignore[arg-type]
        comparisons = tuple(
            Comparison(one, None, None, None, 0.03, None, Verdict.NEW, one.gated)
            for one in series or (STEP_TIME, CALLS, BYTES)
        )
        return Result(test, measured, comparisons, Verdict.NEW, None, "", ())

    return make


def test_what_is_recorded_is_read_back(tmp_path: Path, make_result: MakeResult) -> None:
    file = tmp_path / "history.sqlite"
    result = make_result(recipe={"precision": "bf16"})
    assert record(file, RUN, [result]) == 1
    (entry,) = entries(file, "step_time")
    assert entry.run == RUN
    assert (entry.value, entry.interval, entry.slack, entry.gated) == (0.0414, STEP_TIME.interval, 0.0, True)
    benchmark = entry.benchmark
    assert (benchmark.test, benchmark.name, benchmark.strategy, benchmark.mode) == ("t.py::test_a", "ddp", "ddp", None)
    assert json.loads(benchmark.recipe) == {"precision": "bf16"}
    assert (benchmark.world_size, benchmark.environment_key) == (2, "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13")
    assert (benchmark.metric, benchmark.unit, benchmark.better, benchmark.scale) == ("step_time", "s", "lower", "ratio")
    assert entries(file, "collective_bytes")[0].value == 12345678901  # all digits of a count
    assert recorded_tests(file) == ("t.py::test_a",)
    assert recorded_metrics(file) == ("collective_bytes", "collective_calls", "step_time")


def test_all_that_a_later_reader_may_want_is_there(tmp_path: Path, make_result: MakeResult) -> None:
    file = tmp_path / "history.sqlite"
    record(file, RUN, [make_result()])
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        (samples, verdict) = connection.execute(
            "SELECT samples, verdict FROM metric WHERE metric = 'step_time'"
        ).fetchone()
        assert (json.loads(samples), verdict) == ([0.041, 0.0418], "new")
        ((facts,),) = connection.execute("SELECT facts FROM environment").fetchall()
        assert json.loads(facts)["recorded"]["host"] == "runner-1"
        ((version,),) = connection.execute("SELECT version FROM run").fetchall()
        assert version
    connection.close()


def test_entries_are_in_the_order_of_commits_and_can_be_chosen(
    tmp_path: Path, make_result: MakeResult, make_environment: Callable[..., Environment]
) -> None:
    file = tmp_path / "history.sqlite"
    later = replace(RUN, commit="b" * 40, commit_date="2026-01-12T09:00:00+00:00", branch="topic")
    no_git = Run("2026-01-10T00:00:00+00:00", None, None, None, dirty=False)
    four = make_result("t.py::test_b", environment=make_environment(world_size=4))
    record(file, later, [make_result(), four])
    record(file, replace(RUN, date="2026-03-01T00:00:00+00:00"), [make_result(), make_result(name="mine")])
    record(file, no_git, [make_result()])
    found = entries(file, "step_time", test="t.py::test_a", name="ddp")
    assert [entry.run.commit for entry in found] == [None, RUN.commit, "b" * 40]
    assert [entry.benchmark.name for entry in entries(file, "step_time", branch="main")] == ["ddp", "mine"]
    assert [entry.benchmark.test for entry in entries(file, "step_time", world_size=4)] == ["t.py::test_b"]
    assert entries(file, "speedup") == ()


def test_what_is_no_number_is_left_out(tmp_path: Path, make_result: MakeResult) -> None:
    file = tmp_path / "history.sqlite"
    open_ended = replace(STEP_TIME, interval=Interval(-math.inf, math.inf, 0.95))
    lost = replace(STEP_TIME, metric="lost", value=math.nan, samples=(math.nan,))
    record(file, RUN, [make_result("t.py::test_a", open_ended, lost)])
    assert entries(file, "step_time")[0].interval is None
    assert entries(file, "lost") == ()


WRITER = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from pytest_ddpperf.baselines import history
from pytest_ddpperf.records import Environment, Measurement, Plan, Series
from pytest_ddpperf.results import Comparison, Result
from pytest_ddpperf.verdict import Verdict

env = Environment("cpu", "A", 0, "A", 2, 1, 1, "gloo", 2, "2.13", None, {{}})
series = Series("step_time", "s", "lower", "absolute", "ratio", True, 0.0, (0.04,), 0.04, None)
comparison = Comparison(series, None, None, None, 0.03, None, Verdict.NEW, True)
file, who = Path(sys.argv[1]), sys.argv[2]
run = history.Run("2026-01-12T10:00:00+00:00", who * 40, None, "main", False)
results = [
    Result(f"t.py::test_{{i}}", Measurement("ddp", "ddp", None, Plan(5, 60), env, ()), (comparison,), Verdict.NEW, None,
           "", ())
    for i in range(20)
]
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    code = WRITER.format(path=sys.path) + script
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], text=True, stdout=subprocess.PIPE)


def test_many_processes_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    """They also race to make the file. Every run is there, whole."""
    file = tmp_path / "history.sqlite"
    script = "for _ in range(10): history.record(file, run, results)"
    with_names = [start(script, file, who) for who in "abcd"]
    assert [process.communicate()[0] or process.returncode for process in with_names] == [0] * 4
    found = entries(file, "step_time")
    assert len(found) == 4 * 10 * 20
    assert {who: sum(entry.run.commit == who * 40 for entry in found) for who in "abcd"} == dict.fromkeys("abcd", 200)
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT count(*) FROM environment").fetchone() == (1,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.parametrize("before", [0, 1])
def test_a_process_that_dies_while_it_writes_leaves_nothing(tmp_path: Path, before: int) -> None:
    file = tmp_path / "history.sqlite"
    script = """
for _ in range(int(sys.argv[3])):
    history.record(file, run, results)
insert = history._insert_result

def die(connection, number, result):
    connection.execute("PRAGMA cache_size = 1")  # so that pages reach the file before the end
    insert(connection, number, result)
    if result is results[-1]:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)

history._insert_result = die
history.record(file, run, results)
"""
    process = start(script, file, "a", before)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert (tmp_path / "history.sqlite-journal").stat().st_size > 0
    ensure_recordable(file)
    if before:
        assert len(entries(file, "step_time")) == 20
    else:
        with pytest.raises(HistoryError, match="no run was recorded in it yet"):
            entries(file, "step_time")


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, make_result: MakeResult) -> None:
    file = tmp_path / "history.sqlite"
    record(file, RUN, [make_result()])
    with pytest.raises(HistoryError, match="UNIQUE"):
        record(file, RUN, [make_result("t.py::test_b"), make_result("t.py::test_c", STEP_TIME, STEP_TIME)])
    assert recorded_tests(file) == ("t.py::test_a",)


def spoilt(folder: Path, name: str) -> Path:
    """A file that is no history of ours that can be read."""
    file = folder / f"{name}.sqlite"
    if name == "text":
        file.write_text("no database " * 100)
        return file
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE theirs (a)")
    if name == "newer":
        connection.execute("PRAGMA application_id = 0x64647066")
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    return file


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("text", "file is not a database: it is broken, or no history; restore it from a backup, or name another file"),
        ("foreign", "is a database of another program; name another file"),
        ("newer", r"was written by a newer pytest-ddpperf \(history 2\); this one knows 1: upgrade pytest-ddpperf"),
    ],
)
def test_a_file_that_is_not_ours_is_named_and_left_alone(
    tmp_path: Path, make_result: MakeResult, name: str, words: str
) -> None:
    file = spoilt(tmp_path, name)
    content = file.read_bytes()
    for use in (
        lambda: ensure_recordable(file),
        lambda: record(file, RUN, [make_result()]),
        lambda: entries(file, "step_time"),
    ):
        with pytest.raises(HistoryError, match=words) as caught:
            use()
        assert str(file) in str(caught.value)
    assert file.read_bytes() == content


def test_a_damaged_file_is_named(tmp_path: Path, make_result: MakeResult) -> None:
    file = tmp_path / "history.sqlite"
    record(file, RUN, [make_result(f"t.py::test_{i}") for i in range(200)])
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HistoryError, match=r"history\.sqlite: database disk image is malformed: it is broken"):
        entries(file, "step_time")


def test_before_a_run_it_is_known_whether_it_can_be_recorded(tmp_path: Path, make_result: MakeResult) -> None:
    file = tmp_path / "history.sqlite"
    ensure_recordable(file)
    assert list(tmp_path.iterdir()) == []
    record(file, RUN, [make_result()])
    before = file.read_bytes()
    ensure_recordable(file)
    assert file.read_bytes() == before
    with pytest.raises(HistoryError, match=r"there is no folder .*/missing; make it, or name another file"):
        ensure_recordable(tmp_path / "missing" / "history.sqlite")
    with pytest.raises(HistoryError, match="there is no folder"):
        ensure_recordable(file / "history.sqlite")
    with pytest.raises(HistoryError, match="unable to open database file; see to its permissions"):
        ensure_recordable(tmp_path)


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """Not by its permissions, which do not hold for root: nothing can be made in /proc."""
    with pytest.raises(HistoryError, match=r"history file /proc/history\.sqlite cannot be written: .*; name another"):
        ensure_recordable(Path("/proc/history.sqlite"))


def test_reading_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="there is no such file; pytest --ddpperf-history=FILE makes one"):
        recorded_tests(tmp_path / "history.sqlite")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_program_keeps_locked(
    tmp_path: Path, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_ddpperf.baselines.history_file.PATIENCE", 0.01)
    file = tmp_path / "history.sqlite"
    record(file, RUN, [make_result()])
    with sqlite3.connect(file) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(HistoryError, match="database is locked; try again"):
            record(file, RUN, [make_result()])
    connection.close()


def test_the_run_of_a_folder_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    run = run_of(tmp_path)
    assert (run.commit, run.commit_date, run.branch, run.dirty) == (None, None, None, False)
    assert run.date.endswith("+00:00")
