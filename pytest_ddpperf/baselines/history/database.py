"""The history of runs in an SQLite file: adds and reads runs; several processes may do so at the same time."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import json
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.baselines.codec import environment_json, series_json
from pytest_ddpperf.baselines.files import require_writable_folder
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.baselines.history.sqlite_file import NoRunYet, broken, make_tables, open_history
from pytest_ddpperf.baselines.jsonfile import LARGEST
from pytest_ddpperf.errors import HistoryError
from pytest_ddpperf.metrics.table import FINAL_LOSS
from pytest_ddpperf.records.measurement import BenchmarkId, Better, Interval, Measurement, Mode, Scale
from pytest_ddpperf.records.results import Result

if TYPE_CHECKING:
    import sqlite3


Column = Literal["test", "name", "metric", "branch", "world_size"]
MANY = 5  # number of runs that show the range of a metric
# Columns that are also fields of a Benchmark.
_SAME_NAME = (
    *("test", "name", "strategy", "mode", "recipe", "world_size"),
    *("metric", "unit", "better", "scale", "interleaved"),
)
# Types of a query's columns; all others are text. SQLite takes any value into any column.
_NUMBERS = frozenset({"value", "low", "high", "confidence", "slack"})
_WHOLE = frozenset({"world_size", "total_steps", "interleaved", "dirty", "gated"})
_OPTIONAL = frozenset({"mode", "commit_hash", "commit_date", "branch", "low", "high", "confidence", "total_steps"})


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryRun:
    """A recorded run of pytest: its code and its time."""

    date: str  # when it was recorded; ISO 8601 in UTC, as commit_date
    commit: str | None = None
    commit_date: str | None = None
    branch: str | None = None
    dirty: bool = False  # whether tracked files differed from the commit


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """The identity of a metric in the history: recorded values are comparable if all these fields are equal."""

    test: str
    name: str
    strategy: str
    mode: Mode | None
    recipe: str  # as JSON text, which can be compared
    world_size: int
    environment_key: str
    metric: str
    unit: str
    better: Better
    scale: Scale
    steps: int | None = None  # steps before a final_loss, warm-up included; None for other metrics
    interleaved: bool = False  # whether launches were interleaved, which lengthens steps a little; False for counts


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The value of a metric of a benchmark in a run, with the metric's ``min_tolerance`` and ``gated`` in that run."""

    benchmark: Benchmark
    run: HistoryRun
    value: float
    interval: Interval | None
    min_tolerance: float
    gated: bool


def run_of(checkout: Checkout | None) -> HistoryRun:
    """Returns a run that ends now; ``checkout`` is the code at the start of the run, None if unknown."""
    now = dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
    return HistoryRun(date=now, **({} if checkout is None else asdict(checkout)))


def ensure_recordable(file: Path) -> None:
    """Ensures, before anything is measured, that a run can be recorded; makes no file or folder.

    Raises HistoryError if the folder is not writable, or the file is broken, not regular, or from another program.
    """
    try:
        if file.exists() and not file.is_file():
            raise HistoryError(f"history file {file} is a folder, pipe or device; name another file")
        require_writable_folder(file.resolve().parent)  # SQLite needs a journal next to the file
    except OSError as error:
        raise _unwritable(file, error) from None
    if file.exists():
        with open_history(file, "rw") as connection:
            connection.execute("BEGIN IMMEDIATE")  # a read-only file refuses here


def _unwritable(file: Path, error: OSError) -> HistoryError:
    return HistoryError(f"history file {file} cannot be written: {error.strerror or error}; name another file")


def record(file: Path, run: HistoryRun, results: Sequence[Result]) -> int:
    """Adds a run to the history in one transaction, and returns its number; makes file and folder if there are none.

    Raises HistoryError if the run cannot be written; then the file holds no part of the run.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(file, error) from None
    with open_history(file, "rwc") as connection:
        connection.execute("BEGIN IMMEDIATE")
        make_tables(connection)
        facts = asdict(run)
        facts["commit_hash"] = facts.pop("commit")
        number = _insert(connection, "run", **facts, version=version("pytest-ddpperf"))
        for result in results:
            _insert_result(connection, number, result)
        connection.execute("COMMIT")
    return number


def has_run(file: Path, run: HistoryRun, results: Sequence[Result]) -> bool:
    """Returns whether the file has a run with this time and commit, and exactly these benchmarks and verdicts."""
    if not file.exists():
        return False
    query = """
        SELECT run.id, test, name, world_size, verdict FROM run JOIN result ON result.run = run.id
        WHERE date = :date AND commit_hash IS :commit
    """
    runs: dict[int, list[tuple[Any, ...]]] = {}
    with contextlib.suppress(NoRunYet), open_history(file) as connection:
        for number, *facts in connection.execute(query, {"date": run.date, "commit": run.commit}):
            runs.setdefault(number, []).append(tuple(facts))
    wanted = Counter((one.test, one.name, one.measurement.world_size, one.verdict.value) for one in results)
    return any(Counter(facts) == wanted for facts in runs.values())


def recorded(file: Path, column: Column) -> tuple[Any, ...]:
    """Returns the distinct values of a column, sorted; raises HistoryError if the file cannot be read."""
    table = {"metric": "metric", "branch": "run"}.get(column, "result")
    query = f"SELECT DISTINCT {column} FROM {table} WHERE {column} IS NOT NULL ORDER BY {column}"  # noqa: S608
    with open_history(file) as connection:
        return tuple(_checked(file, {column: value})[column] for (value,) in connection.execute(query))


def entries(file: Path, metric: str, **filters: str | int | None) -> tuple[Entry, ...]:
    """Returns the recorded values of a metric, ordered by the date of the commit, or of the run if it has no commit.

    ``filters`` are required values of ``test``, ``name``, ``world_size`` or ``branch``; None accepts any value. An
    empty file has no values. Raises HistoryError if the file cannot be read.
    """
    wanted = {column: value for column, value in filters.items() if value is not None}
    # CROSS JOIN keeps this order: one test's results and then their metrics, or all values of the metric.
    tables = "result CROSS JOIN metric" if "test" in wanted else "metric CROSS JOIN result"
    conditions = "".join(f" AND {column} = :{column}" for column in wanted)
    with contextlib.suppress(NoRunYet), open_history(file) as connection:
        # A loss falls from step to step; no other metric depends on the number of steps.
        query = f"""
            SELECT test, name, strategy, mode, recipe, world_size, key, metric, unit, better, scale,
                   {"warmup + steps" if metric == FINAL_LOSS else "NULL"} AS total_steps,
                   beside AND scale <> 'exact' AS interleaved,
                   date, commit_hash, commit_date, branch, dirty, value, low, high, confidence, slack, gated
            FROM {tables} ON result.id = metric.result JOIN run ON run.id = result.run
                 JOIN environment ON environment.id = result.environment
            WHERE metric = :metric AND value IS NOT NULL{conditions}
            ORDER BY coalesce(commit_date, date), run.id, result.id
        """  # noqa: S608 - the columns' names are the code's own
        cursor = connection.execute(query, {"metric": metric, **wanted})
        columns = [description[0] for description in cursor.description]
        return tuple(_entry(_checked(file, dict(zip(columns, row, strict=True)))) for row in cursor)
    return ()


def outside(file: Path, test: str, measured: Measurement, metric: str, value: float) -> tuple[int, float, float] | None:
    """Returns (count, minimum, maximum) of the recorded values if ``value`` is outside of their range; else None.

    Values count if training and environment equal those in ``measured``. Fewer than ``MANY`` values also give None.
    """
    identity = (measured.strategy, _json(dict(measured.recipe)), environment_key(measured.environment), measured.turns)
    found = [
        entry.value
        for entry in entries(file, metric, test=test, name=measured.name, world_size=measured.world_size)
        if (one := entry.benchmark) and (one.strategy, one.recipe, one.environment_key, one.interleaved) == identity
    ]
    beyond = len(found) >= MANY and not min(found) <= value <= max(found)
    return (len(found), min(found), max(found)) if beyond else None


def last_verdict(file: Path, test: str, benchmark: BenchmarkId) -> tuple[str, str]:
    """Returns the verdict and the date of the newest run with this benchmark; two empty strings if there is none."""
    query = """
        SELECT verdict, date
        FROM result JOIN run ON run.id = result.run JOIN environment ON environment.id = result.environment
        WHERE test = ? AND name = ? AND key = ? ORDER BY date DESC LIMIT 1
    """
    with contextlib.suppress(NoRunYet), open_history(file) as connection:
        values = test, benchmark.name, environment_key(benchmark.environment)
        return connection.execute(query, values).fetchone() or ("", "")
    return "", ""


def _checked(file: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Returns the row unchanged; raises HistoryError if a value does not have its column's type."""
    for name, value in row.items():
        kind = (int, float) if name in _NUMBERS else int if name in _WHOLE else str
        fits = isinstance(value, kind) and (isinstance(value, str) or abs(value) <= LARGEST)
        if not (fits or (value is None and name in _OPTIONAL)) or (name == "recipe" and not _is_object(value)):
            raise broken(file, f"column {name} contains {reprlib.repr(value)}, which pytest-ddpperf does not write")
    return row


@functools.lru_cache
def _is_object(text: str) -> bool:
    with contextlib.suppress(ValueError, RecursionError):
        return isinstance(json.loads(text), dict)
    return False


def _entry(row: dict[str, Any]) -> Entry:
    row |= {name: bool(row[name]) for name in ("dirty", "interleaved", "gated")}
    run = HistoryRun(
        commit=row["commit_hash"], **{name: row[name] for name in ("date", "commit_date", "branch", "dirty")}
    )
    benchmark = Benchmark(
        environment_key=row["key"], steps=row["total_steps"], **{name: row[name] for name in _SAME_NAME}
    )
    interval = {name: row[name] for name in ("low", "high", "confidence")}
    return Entry(
        benchmark=benchmark,
        run=run,
        value=row["value"],
        interval=None if None in interval.values() else Interval(**interval),
        min_tolerance=row["slack"],
        gated=row["gated"],
    )


def _insert_result(connection: sqlite3.Connection, run: int, result: Result) -> None:
    measured = result.measurement
    facts = _json(environment_json(measured.environment))
    connection.execute(
        "INSERT OR IGNORE INTO environment (key, facts) VALUES (?, ?)", (environment_key(measured.environment), facts)
    )
    (environment,) = connection.execute("SELECT id FROM environment WHERE facts = ?", (facts,)).fetchone()
    row = {name: getattr(measured, name) for name in ("name", "strategy", "mode", "world_size")}
    row |= {"recipe": _json(dict(measured.recipe)), "beside": measured.turns, **asdict(measured.plan)}
    row |= {"test": result.test, "verdict": result.verdict.value}
    number = _insert(connection, "result", run=run, environment=environment, **row)
    for comparison in result.comparisons:
        series = series_json(comparison.series)
        interval = series.pop("interval") or {}
        row = {**series, **interval, "gated": comparison.gated, "verdict": comparison.verdict.value}
        _insert(connection, "metric", **{**row, "samples": _json(series["samples"])}, result=number)


def _insert(connection: sqlite3.Connection, table: str, **row: object) -> int:
    columns, values = ", ".join(row), ", ".join(f":{column}" for column in row)
    cursor = connection.execute(f"INSERT INTO {table} ({columns}) VALUES ({values})", row)  # noqa: S608 - our own names
    return cast("int", cursor.lastrowid)


def _json(data: Mapping[str, Any] | list[object]) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
