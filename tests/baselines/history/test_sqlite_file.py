"""The file of a history: empty, old, foreign, broken, locked or out of reach."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import get_args

import pytest

from pytest_ddpperf.baselines.history.database import Column, ensure_recordable, entries, record, recorded
from pytest_ddpperf.errors import HistoryError
from pytest_ddpperf.records.results import Result
from tests.factories import make_history_run, make_new_result, make_series

RUN = make_history_run(11)


def result(test: str = "t.py::test_a", metric: str = "step_time") -> Result:
    """A judged benchmark with one metric."""
    return make_new_result(test, make_series(metric, 0.04))


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
        connection.execute("PRAGMA user_version = 3")
    connection.close()
    return file


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "text",
            "file is not a database: the file is broken, or is not a history; restore the file from a backup, or name",
        ),
        ("foreign", "is a database of another program; name another file"),
        ("newer", r"was written by a newer pytest-ddpperf \(format 3; this version reads up to 2\): upgrade"),
    ],
)
def test_a_file_that_is_not_ours_is_named_and_left_alone(tmp_path: Path, name: str, words: str) -> None:
    file = spoilt(tmp_path, name)
    content = file.read_bytes()
    for use in (
        lambda: ensure_recordable(file),
        lambda: record(file, RUN, [result()]),
        lambda: entries(file, "step_time"),
    ):
        with pytest.raises(HistoryError, match=words) as caught:
            use()
        assert str(file) in str(caught.value)
    assert file.read_bytes() == content


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    record(file, RUN, [result(f"t.py::test_{i}") for i in range(200)])
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HistoryError, match=r"history\.sqlite: database disk image is malformed: the file is broken"):
        entries(file, "step_time")


@pytest.mark.parametrize(
    ("whole", "damaged"),
    [
        (b"CREATE TABLE run (", b"CREATE T\x8fBLE run ("),
        (b"REFERENCES run", b"REFERENCES r\xffn"),
        (b"TEXT,", b"TE[T,"),
    ],
    ids=["what SQLite's message quotes", "another name", "a message of several lines"],
)
def test_a_damaged_schema_is_named_in_a_line(tmp_path: Path, whole: bytes, damaged: bytes) -> None:
    file = tmp_path / "history.sqlite"
    record(file, RUN, [result()])
    file.write_bytes(file.read_bytes().replace(whole, damaged))
    for use in (lambda: ensure_recordable(file), lambda: entries(file, "step_time")):
        with pytest.raises(HistoryError, match=r"history\.sqlite: .* or name another one") as caught:
            use()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["test", "name", "recipe", "key", "commit_hash", "date"])
def test_a_damaged_text_is_named_and_not_read_as_another_one(tmp_path: Path, column: str) -> None:
    file = tmp_path / "history.sqlite"
    record(file, RUN, [result()])
    table = {"key": "environment", "commit_hash": "run", "date": "run"}.get(column, "result")
    with sqlite3.connect(file) as connection:
        connection.execute(f"UPDATE {table} SET {column} = CAST({column} || x'ff' AS TEXT)")  # noqa: S608
    connection.close()
    with pytest.raises(HistoryError, match=f"Could not decode to UTF-8 column '{column}' .*: the file is broken,"):
        entries(file, "step_time")


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


@pytest.mark.parametrize(
    ("sql", "cure"),
    [
        (f"DROP TABLE metric; CREATE VIEW metric AS {ENDLESS}", ""),
        (f"CREATE TRIGGER more AFTER INSERT ON run BEGIN {ENDLESS}; END", ": remove the trigger by DROP TRIGGER"),
        ("CREATE VIRTUAL TABLE more USING fts5(a)", ""),
        ("ALTER TABLE metric ADD COLUMN more TEXT AS (hex(zeroblob(30000000))) VIRTUAL", ""),
        ("CREATE INDEX more ON metric (hex(zeroblob(30000000)))", ": remove the index by DROP INDEX"),
        ("ALTER TABLE run ADD COLUMN more TEXT DEFAULT '--'", ""),
    ],
    ids=["view", "trigger", "virtual table", "generated column", "index of an expression", "column"],
)
def test_a_file_whose_schema_computes_is_refused(tmp_path: Path, sql: str, cure: str) -> None:
    file = tmp_path / "history.sqlite"
    record(file, RUN, [result()])
    with sqlite3.connect(file) as connection:
        connection.executescript(sql)
    connection.close()
    for use in (lambda: entries(file, "step_time"), lambda: record(file, RUN, [result()])):
        with pytest.raises(HistoryError, match=rf"\w+ '\w+' has a schema that pytest-ddpperf does not write{cure}; "):
            use()


def test_a_file_with_statistics_of_sqlite_and_a_schema_without_comments_is_read(tmp_path: Path) -> None:
    """As ANALYZE leaves it, or as another version of pytest-ddpperf has written it."""
    file = tmp_path / "history.sqlite"
    record(file, RUN, [result()])
    with sqlite3.connect(file) as connection:
        connection.execute("ANALYZE")
        connection.execute("PRAGMA writable_schema = ON")
        for name, sql in connection.execute("SELECT name, sql FROM sqlite_master WHERE sql LIKE '%--%'").fetchall():
            bare = re.sub(r" +--.*\n *", " ", sql)
            connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (bare, name))
    connection.close()
    assert [entry.value for entry in entries(file, "step_time")] == [0.04]
    assert record(file, RUN, [result()]) == 2


def test_before_a_run_it_is_known_whether_it_can_be_recorded(tmp_path: Path) -> None:
    file = tmp_path / "history.sqlite"
    ensure_recordable(file)
    assert list(tmp_path.iterdir()) == []
    record(file, RUN, [result()])
    before = file.read_bytes()
    ensure_recordable(file)
    assert file.read_bytes() == before
    with pytest.raises(HistoryError, match="cannot be written: Not a directory; name another file"):
        ensure_recordable(file / "history.sqlite")
    with pytest.raises(HistoryError, match="is a folder, pipe or device; name another file"):
        ensure_recordable(tmp_path)


def test_a_missing_folder_is_made_with_the_first_run(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "history.sqlite"
    ensure_recordable(file)
    assert list(tmp_path.iterdir()) == []
    assert record(file, RUN, [result()]) == 1


def test_a_folder_that_cannot_be_written_is_refused_with_the_cure(tmp_path: Path) -> None:
    """Not by its permissions, which do not hold for root: nothing can be made in /proc."""
    with pytest.raises(HistoryError, match=r"history file /proc/history\.sqlite cannot be written: .*; name another"):
        ensure_recordable(Path("/proc/history.sqlite"))


def test_reading_makes_no_file(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"does not exist; pytest --ddpperf-history=.* writes it"):
        recorded(tmp_path / "history.sqlite", "test")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_another_program_keeps_locked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_ddpperf.baselines.history.sqlite_file.LOCK_TIMEOUT", 0.01)
    file = tmp_path / "history.sqlite"
    record(file, RUN, [result()])
    with sqlite3.connect(file) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(HistoryError, match="database is locked; try again"):
            record(file, RUN, [result()])
    connection.close()


def test_an_empty_file_holds_nothing_yet(tmp_path: Path) -> None:
    """Such as mktemp makes, or a first run that was not written to its end."""
    file = tmp_path / "history.sqlite"
    file.touch()
    ensure_recordable(file)
    assert entries(file, "step_time") == ()
    for column in get_args(Column):
        with pytest.raises(HistoryError, match="no run was recorded in it yet"):
            recorded(file, column)
    record(file, RUN, [result()])
    assert len(entries(file, "step_time")) == 1
