from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.baselines.history import database
from pytest_ddpperf.baselines.history.database import HistoryRun, entries, record, recorded
from pytest_ddpperf.errors import HistoryError
from pytest_ddpperf.records.measurement import Interval, Plan, Series
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import Verdict
from tests.factories import make_environment, make_history_run, make_new_result, make_series

RUN = make_history_run(11, date="2026-01-12T10:00:00+00:00")
STEP_TIME = make_series(
    "step_time", 0.0414, samples=(0.041, 0.0418), interval=Interval(low=0.0398, high=0.043, confidence=0.95)
)
CALLS = make_series("collective_calls", 5.0, unit="1", family="counted", scale="exact", samples=(5.0,))
BYTES = replace(CALLS, metric="collective_bytes", unit="B", samples=(12345678901.0,), value=12345678901.0)

CPU = make_environment(cpu_model="AMD EPYC", cores=2, recorded={"host": "runner-1"})


def result(test: str = "t.py::test_a", *series: Series, **fields: Any) -> Result:
    """A judged benchmark with some metrics."""
    return make_new_result(test, *(series or (STEP_TIME, CALLS, BYTES)), **{"environment": CPU, **fields})


def test_a_recorded_result_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    assert record(file, RUN, [result(recipe={"precision": "bf16"})]) == 1
    (entry,) = entries(file, "step_time")
    assert entry.run == RUN
    assert (entry.value, entry.interval, entry.min_tolerance, entry.gated) == (0.0414, STEP_TIME.interval, 0.0, True)
    benchmark = entry.benchmark
    assert (benchmark.test, benchmark.name, benchmark.strategy, benchmark.mode) == ("t.py::test_a", "ddp", "ddp", None)
    assert json.loads(benchmark.recipe) == {"precision": "bf16"}
    assert (benchmark.world_size, benchmark.environment_key) == (2, "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13")
    assert (benchmark.metric, benchmark.unit, benchmark.better, benchmark.scale) == ("step_time", "s", "lower", "ratio")
    assert entries(file, "collective_bytes")[0].value == 12345678901  # all digits of a count
    assert recorded(file, "test") == ("t.py::test_a",)
    assert recorded(file, "metric") == ("collective_bytes", "collective_calls", "step_time")
    assert recorded(file, "branch") == ("main",)
    assert (recorded(file, "name"), recorded(file, "world_size")) == (("ddp",), (2,))


def test_a_value_that_no_run_has_had_is_found(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    other = make_environment(cpu_model="Xeon", cores=2)
    record(file, make_history_run(9), [result("t.py::test_a", make_series("step_time", 1.0), environment=other)])
    for number in range(5):
        found = database.outside(file, "t.py::test_a", result().measurement, "step_time", 9.0)
        assert found is None, "4 runs of this environment are too few"
        record(file, make_history_run(number), [result("t.py::test_a", make_series("step_time", 10.0 + number))])
    for value, range_of_runs in ((9.0, (5, 10.0, 14.0)), (15.0, (5, 10.0, 14.0)), (10.0, None), (14.0, None)):
        assert database.outside(file, "t.py::test_a", result().measurement, "step_time", value) == range_of_runs


def test_the_last_verdict_is_the_verdict_of_the_newest_run(tmp_path: Path) -> None:
    file, one = tmp_path / "history.sqlite", result().measurement
    for number, verdict in ((2, Verdict.IMPROVED), (1, Verdict.OK)):
        record(file, make_history_run(number), [replace(result(), verdict=verdict)])
    assert database.last_verdict(file, "t.py::test_a", one) == ("improved", "2026-01-03T00:00:00+00:00")
    assert database.last_verdict(file, "t.py::test_a", replace(one, name="naive")) == ("", "")
    assert database.last_verdict(file, "t.py::test_a", replace(one, environment=make_environment())) == ("", "")


def test_the_history_database_stores_samples_verdicts_and_environments(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    record(file, RUN, [result()])
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        (samples, verdict) = connection.execute(
            "SELECT samples, verdict FROM metric WHERE metric = 'step_time'"
        ).fetchone()
        assert (json.loads(samples), verdict) == ([0.041, 0.0418], "new")
        ((facts,),) = connection.execute("SELECT facts FROM environment").fetchall()
        assert json.loads(facts)["recorded"]["host"] == "runner-1"
        ((version,),) = connection.execute("SELECT version FROM run").fetchall()
        assert version
        assert connection.execute("SELECT warmup, steps FROM result").fetchall() == [(5, 60)]
    connection.close()


def test_entries_are_in_the_order_of_commits_and_can_be_chosen(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    later = replace(RUN, commit="b" * 40, commit_date="2026-01-12T09:00:00+00:00", branch="topic")
    no_git = HistoryRun(date="2026-01-10T00:00:00+00:00")
    four = result("t.py::test_b", environment=replace(CPU, world_size=4))
    record(file, later, [result(), four])
    record(file, replace(RUN, date="2026-03-01T00:00:00+00:00"), [result(), result(name="mine")])
    record(file, no_git, [result()])
    found = entries(file, "step_time", test="t.py::test_a", name="ddp")
    assert [entry.run.commit for entry in found] == [None, RUN.commit, "b" * 40]
    assert [entry.benchmark.name for entry in entries(file, "step_time", branch="main")] == ["ddp", "mine"]
    assert [entry.benchmark.test for entry in entries(file, "step_time", world_size=4)] == ["t.py::test_b"]
    assert entries(file, "speedup") == ()


def test_values_that_are_not_finite_are_omitted(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    open_ended = replace(STEP_TIME, interval=Interval(low=-math.inf, high=math.inf, confidence=0.95))
    lost = replace(STEP_TIME, metric="lost", value=math.nan, samples=(math.nan,))
    record(file, RUN, [result("t.py::test_a", open_ended, lost)])
    assert entries(file, "step_time")[0].interval is None
    assert entries(file, "lost") == ()


def write(file: Path, who: str, times: int, last: Callable[[], None] | None = None) -> None:
    """Records 20 results as often; with ``last`` once more, and calls that after the last one of these."""
    run = HistoryRun(date="2026-01-12T10:00:00+00:00", commit=who * 40, branch="main")
    results = [make_new_result(f"t.py::test_{i}", make_series("step_time", 0.04)) for i in range(20)]
    for _ in range(times):
        record(file, run, results)
    if last is None:
        return
    insert = database._insert_result

    def inserted(connection: Any, number: Any, result: Any) -> None:
        connection.execute("PRAGMA cache_size = 1")  # so that pages reach the file before the end
        insert(connection, number, result)
        if result is results[-1]:
            last()

    vars(database)["_insert_result"] = inserted
    record(file, run, results)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ends(*calls: tuple[Any, ...]) -> list[int | None]:
    """How processes end that write at the same time."""
    processes = [multiprocessing.get_context("fork").Process(target=write, args=call) for call in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    return [process.exitcode for process in processes]


def test_many_processes_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    """They also race to make the file. Every run is there, whole."""
    file = tmp_path / "history.sqlite"
    assert ends(*((file, who, 5) for who in "abc")) == [0] * 3
    found = entries(file, "step_time")
    assert len(found) == 3 * 5 * 20
    assert {who: sum(entry.run.commit == who * 40 for entry in found) for who in "abc"} == dict.fromkeys("abc", 100)
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT count(*) FROM environment").fetchone() == (1,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def test_a_process_that_dies_while_it_writes_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    assert ends((file, "a", 1, killed)) == [-signal.SIGKILL]
    assert (tmp_path / "history.sqlite-journal").stat().st_size > 0
    database.ensure_recordable(file)
    assert len(entries(file, "step_time")) == 20


def test_a_recording_that_fails_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    record(file, RUN, [result()])
    with pytest.raises(HistoryError, match="UNIQUE"):
        record(file, RUN, [result("t.py::test_b"), result("t.py::test_c", STEP_TIME, STEP_TIME)])
    assert recorded(file, "test") == ("t.py::test_a",)


def test_a_loss_belongs_to_its_number_of_steps(tmp_path: Path) -> None:
    """Warm-up trains as well; the step time does not depend on how often it was taken."""
    file = tmp_path / "history.sqlite"
    loss = replace(STEP_TIME, metric="final_loss", unit="1", scale="difference")
    for plan in (Plan(warmup=warmup, steps=steps) for warmup, steps in ((5, 60), (15, 50), (5, 100))):
        record(file, RUN, [result("t.py::test_a", STEP_TIME, loss, plan=plan)])
    assert [entry.benchmark.steps for entry in entries(file, "final_loss")] == [65, 65, 105]
    assert [entry.benchmark.steps for entry in entries(file, "step_time")] == [None] * 3


def test_times_of_interleaved_steps_are_a_separate_series_and_counts_are_not(tmp_path: Path) -> None:
    """A step that takes turns begins with cold caches: it lasts longer than alone."""
    file = tmp_path / "history.sqlite"
    calls = replace(STEP_TIME, metric="collective_calls", unit="1", scale="exact")
    alone = result("t.py::test_a", STEP_TIME, calls)
    for measured in (alone, replace(alone, measurement=replace(alone.measurement, turns=True))):
        record(file, RUN, [measured])
    assert [entry.benchmark.interleaved for entry in entries(file, "step_time")] == [False, True]
    assert [entry.benchmark.interleaved for entry in entries(file, "collective_calls")] == [False, False]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE metric SET value = 'abc'", "column value contains 'abc'"),
        ("UPDATE metric SET low = 9e999", "column low contains inf"),
        ("UPDATE metric SET value = -1e308", r"column value contains -1e\+308"),  # sums of it are not finite
        ("UPDATE metric SET high = 1e308", r"column high contains 1e\+308"),
        ("UPDATE metric SET slack = 'much'", "column slack contains 'much'"),
        ("UPDATE result SET test = x'ff'", r"column test contains b'\\xff'"),
        ("UPDATE result SET world_size = 'two'", "column world_size contains 'two'"),
        ("UPDATE result SET recipe = '{'", r"column recipe contains '\{'"),
        ("UPDATE run SET date = x'ff'", r"column date contains b'\\xff'"),
    ],
)
def test_a_value_that_was_not_written_so_is_named(tmp_path: Path, change: str, words: str) -> None:
    file = tmp_path / "history.sqlite"
    record(file, RUN, [result()])
    with sqlite3.connect(file) as connection:
        connection.execute(change)
    connection.close()
    with pytest.raises(
        HistoryError, match=f"{words}, which pytest-ddpperf does not write; restore the file from a backup"
    ):
        entries(file, "step_time")


def test_texts_that_are_none_are_refused_in_lists_too(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    record(file, RUN, [result(), result("t.py::test_b")])
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE result SET test = x'ff' WHERE id = 1")
    connection.close()
    with pytest.raises(HistoryError, match="column test contains"):
        recorded(file, "test")
    assert not database.has_run(file, RUN, [result(), result("t.py::test_b")])


def test_a_history_run_has_the_state_of_the_checkout_at_the_time_of_its_inspection() -> None:
    run = database.run_of(Checkout("3f2a1c0", "main", dirty=True, commit_date="2026-01-11T09:00:00+00:00"))
    commit = {"commit": "3f2a1c0", "commit_date": "2026-01-11T09:00:00+00:00", "branch": "main"}
    assert run == HistoryRun(date=run.date, dirty=True, **commit)
    assert run.date.endswith("+00:00")
    unknown = database.run_of(None)
    assert unknown == HistoryRun(date=unknown.date)
