"""The history of runs in an SQLite file: a run is added whole or not at all, by any number of processes."""

from __future__ import annotations

import datetime as dt
import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pytest_ddpperf.against.checkout import Checkout
from pytest_ddpperf.baselines.codec import environment_data
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.history.sqlite_file import NoRunYet, make_tables, opened, tells_how
from pytest_ddpperf.baselines.jsonfile import rounded
from pytest_ddpperf.errors import HistoryError
from pytest_ddpperf.metrics.table import FINAL_LOSS
from pytest_ddpperf.records.measurement import Better, Interval, Mode, Scale
from pytest_ddpperf.records.results import Comparison, Result

if TYPE_CHECKING:
    import sqlite3


Column = Literal["test", "name", "metric", "branch", "world_size"]
_TABLES: dict[Column, str] = {
    "test": "result",
    "name": "result",
    "metric": "metric",
    "branch": "run",
    "world_size": "result",
}


@dataclass(frozen=True)
class Run:
    """Where and when something was measured.

    Attributes:
        date: when it was recorded, ISO 8601 in UTC; ``commit_date`` likewise.
        dirty: whether tracked files differed from the commit.
    """

    date: str
    commit: str | None
    commit_date: str | None
    branch: str | None
    dirty: bool


@dataclass(frozen=True)
class Benchmark:
    """What must be the same for values of several runs to be one line.

    Attributes:
        recipe: as JSON text, which can be compared.
        steps: after how many a ``final_loss`` is, warm-up included; None for all else, and where that was not
            recorded.
        beside: whether its steps took turns with those of other launches, and so last a little longer. Of counts it
            does not matter.
    """

    test: str
    name: str
    strategy: str
    mode: Mode | None
    recipe: str
    world_size: int
    environment_key: str
    metric: str
    unit: str
    better: Better
    scale: Scale
    steps: int | None = None
    beside: bool = False


@dataclass(frozen=True)
class Entry:
    """One metric of one benchmark in one run; ``slack`` and ``gated`` are as of a Series."""

    benchmark: Benchmark
    run: Run
    value: float
    interval: Interval | None
    slack: float
    gated: bool


def run_of(checkout: Checkout | None) -> Run:
    """A run that ends now, of the code that was checked out when it began; None where that is unknown."""
    now = dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
    if checkout is None:
        return Run(now, None, None, None, dirty=False)
    return Run(now, checkout.commit, checkout.commit_date, checkout.branch, checkout.dirty)


def ensure_recordable(file: Path) -> None:
    """Makes sure, before anything is measured, that a run can be recorded. Leaves nothing behind.

    Raises:
        HistoryError: it cannot: the folder is missing or read-only, or the file is none of ours or broken.
    """
    try:
        if not file.parent.is_dir():
            raise HistoryError(f"history file {file}: there is no folder {file.parent}; make it, or name another file")
        with tempfile.TemporaryFile(dir=file.parent):  # SQLite needs a journal beside the file
            pass
    except OSError as error:
        raise HistoryError(
            f"history file {file} cannot be written: {error.strerror or error}; name another file"
        ) from None
    if file.exists():
        with opened(file, "rw") as connection:
            connection.execute("BEGIN IMMEDIATE")  # a read-only file refuses here


def record(file: Path, run: Run, results: Sequence[Result]) -> int:
    """Adds a run to the history, in one transaction; makes the file if need be.

    Returns:
        The number of the run.

    Raises:
        HistoryError: it cannot be written; then nothing of the run is in it.
    """
    with opened(file, "rwc") as connection:
        connection.execute("BEGIN IMMEDIATE")
        make_tables(connection)
        facts = (run.date, run.commit, run.commit_date, run.branch, run.dirty, version("pytest-ddpperf"))
        number = _insert(connection, "run", None, *facts)
        for result in results:
            _insert_result(connection, number, result)
        connection.execute("COMMIT")
    return number


def recorded(file: Path, column: Column) -> tuple[Any, ...]:
    """All that the history knows of a column, in order: node ids of tests, names of metrics and branches, world sizes.

    Raises:
        HistoryError: the file cannot be read.
    """
    query = f"SELECT DISTINCT {column} FROM {_TABLES[column]} WHERE {column} IS NOT NULL ORDER BY {column}"  # noqa: S608
    with opened(file) as connection:
        return tuple(value for (value,) in connection.execute(query))


def entries(file: Path, metric: str, **like: str | int | None) -> tuple[Entry, ...]:
    """What was recorded of a metric, in the order of the commits (of the runs, where there is no commit).

    It is nothing where no run was recorded yet.

    Args:
        file: the history.
        metric: its name, such as ``step_time``.
        like: what to keep to: ``test``, ``name``, ``world_size``, ``branch``; None for all.

    Raises:
        HistoryError: the file cannot be read.
    """
    wanted = {column: value for column, value in like.items() if value is not None}
    # CROSS JOIN keeps the order: one test's results and then their metrics, or all of the metric.
    tables = "result CROSS JOIN metric" if "test" in wanted else "metric CROSS JOIN result"
    conditions = "".join(f" AND {column} = :{column}" for column in wanted)
    try:
        with opened(file) as connection:
            # A loss falls from step to step; nothing else depends on how many there were.
            told = tells_how(connection)
            query = f"""
                SELECT test, name, strategy, mode, recipe, world_size, key, metric, unit, better, scale,
                       {"warmup + steps" if told and metric == FINAL_LOSS else "NULL"},
                       {"beside AND scale <> 'exact'" if told else "0"},
                       date, commit_hash, commit_date, branch, dirty, value, low, high, confidence, slack, gated
                FROM {tables} ON result.id = metric.result JOIN run ON run.id = result.run
                     JOIN environment ON environment.id = result.environment
                WHERE metric = :metric AND value IS NOT NULL{conditions}
                ORDER BY coalesce(commit_date, date), run.id, result.id
            """  # noqa: S608 - the columns' names are the code's own
            return tuple(map(_entry, connection.execute(query, {"metric": metric, **wanted})))
    except NoRunYet:
        return ()


def _entry(row: tuple[Any, ...]) -> Entry:
    date, commit, committed, branch, dirty, value, low, high, confidence, slack, gated = row[13:]
    interval = None if low is None or high is None else Interval(low, high, confidence)
    run = Run(date, commit, committed, branch, bool(dirty))
    benchmark = Benchmark(*(*row[:12], bool(row[12])))
    return Entry(benchmark, run, value, interval, slack, bool(gated))


def _insert_result(connection: sqlite3.Connection, run: int, result: Result) -> None:
    measured = result.measurement
    key, facts = environment_key(measured.environment), _json(environment_data(measured.environment))
    connection.execute("INSERT OR IGNORE INTO environment (key, facts) VALUES (?, ?)", (key, facts))
    (environment,) = connection.execute("SELECT id FROM environment WHERE facts = ?", (facts,)).fetchone()
    what = (result.test, result.name, measured.strategy, measured.mode, _json(dict(measured.recipe)))
    told = (measured.world_size, result.verdict.value, measured.plan.warmup, measured.plan.steps)
    number = _insert(connection, "result", None, run, environment, *what, *told, measured.turns)
    for comparison in result.comparisons:
        _insert(connection, "metric", *_metric_row(number, comparison))


def _metric_row(result: int, comparison: Comparison) -> tuple[object, ...]:
    series = comparison.series
    # Counts keep all their digits, as in a baseline: they are compared exactly.
    number = _finite if series.scale == "exact" else _rounded
    interval = series.interval
    ends = (None,) * 3 if interval is None else (_rounded(interval.low), _rounded(interval.high), interval.confidence)
    return (
        series.metric,
        result,
        series.unit,
        series.better,
        series.family,
        series.scale,
        comparison.gated,
        series.min_tolerance,
        number(series.value),
        *ends,
        _json([number(sample) for sample in series.samples]),
        comparison.verdict.value,
    )


def _insert(connection: sqlite3.Connection, table: str, *row: object) -> int:
    values = ", ".join("?" * len(row))
    cursor = connection.execute(f"INSERT INTO {table} VALUES ({values})", row)  # noqa: S608 - our own names
    return cast("int", cursor.lastrowid)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _rounded(value: float) -> float | None:
    return rounded(value) if math.isfinite(value) else None


def _json(data: Mapping[str, Any] | list[float | None]) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
