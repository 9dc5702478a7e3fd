"""The SQLite file of a history: its tables, and how it is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pytest_ddpperf.errors import HistoryError

if TYPE_CHECKING:
    import sqlite3

APPLICATION = 0x64647066  # "ddpf": tells our files from other programs'
VERSION = 2  # 1 knew neither the steps of a result nor whether they took turns
PATIENCE = 30.0  # seconds to wait for other processes, each of which writes for milliseconds

# Rows of one metric lie together, so that a trend reads few pages of a large file.
_SCHEMA = (
    """
    CREATE TABLE run (
        id INTEGER PRIMARY KEY,
        date TEXT NOT NULL,      -- when it was recorded; ISO 8601, UTC
        commit_hash TEXT,        -- in full; NULL outside of a git repository
        commit_date TEXT,        -- ISO 8601, UTC
        branch TEXT,             -- NULL where HEAD is detached
        dirty INTEGER NOT NULL,  -- 1: tracked files differed from the commit
        version TEXT NOT NULL    -- of pytest-ddpperf
    )
    """,
    """
    CREATE TABLE environment (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        facts TEXT NOT NULL UNIQUE  -- JSON
    )
    """,
    """
    CREATE TABLE result (
        id INTEGER PRIMARY KEY,
        run INTEGER NOT NULL REFERENCES run,
        environment INTEGER NOT NULL REFERENCES environment,
        test TEXT NOT NULL,      -- pytest node id
        name TEXT NOT NULL,      -- of the variant within its test
        strategy TEXT NOT NULL,
        mode TEXT,               -- of a point of a scaling curve: strong, weak
        recipe TEXT NOT NULL,    -- JSON: the settings that are not the defaults
        world_size INTEGER NOT NULL,
        verdict TEXT NOT NULL,
        warmup INTEGER,          -- untimed steps of each launch; NULL in what version 1 recorded
        steps INTEGER,           -- timed ones after them; likewise
        beside INTEGER           -- whether its steps took turns with those of other launches; likewise
    )
    """,
    "CREATE INDEX result_of_test ON result (test, name)",
    """
    CREATE TABLE metric (
        metric TEXT NOT NULL,
        result INTEGER NOT NULL REFERENCES result,
        unit TEXT NOT NULL,
        better TEXT NOT NULL,    -- lower, higher
        family TEXT NOT NULL,    -- absolute, relative, counted
        scale TEXT NOT NULL,     -- ratio, difference, exact
        gated INTEGER NOT NULL,
        slack REAL NOT NULL,
        value REAL,
        low REAL,                -- of the interval; NULL where there is none
        high REAL,
        confidence REAL,
        samples TEXT NOT NULL,   -- JSON: one number for each launch that tells it
        verdict TEXT NOT NULL,
        PRIMARY KEY (metric, result)
    ) WITHOUT ROWID
    """,
)
_ADDED = tuple(f"ALTER TABLE result ADD COLUMN {column} INTEGER" for column in ("warmup", "steps", "beside"))
_KEPT = "restore it from a backup, or name another file and start a new history there"


class NoRunYet(HistoryError):
    """Nothing was recorded in the file yet: it is empty, as a file that the first run could not be written to is."""


def tells_how(connection: sqlite3.Connection) -> bool:
    """Whether the tables have a place for how a result was measured; those of version 1 have not."""
    return _version(connection) > 1


def make_tables(connection: sqlite3.Connection) -> None:
    """Makes the tables of a new file, and adds to those of an older one, within the transaction that writes to it."""
    version = _version(connection)
    if version >= VERSION:
        return
    for statement in _ADDED if version else _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def opened(file: Path, mode: str = "read") -> Iterator[sqlite3.Connection]:
    """A connection to the file, closed afterwards: what was not committed is rolled back. All errors become ours.

    To read, it has to hold something, and is opened for writing where that is possible: what a process left that died
    while it wrote is rolled back by the next one that opens the file. Not in WAL mode: that fails on network file
    systems, and a journal is enough for one short transaction per run.

    Args:
        file: the history.
        mode: ``read``, ``rw`` to write to a file that is there, ``rwc`` to make it if need be.

    Raises:
        NoRunYet: it was to be read and is empty.
        HistoryError: the file is missing, locked, unwritable, broken, foreign or newer.
    """
    import sqlite3

    if mode == "read" and not file.exists():
        raise HistoryError(f"history file {file}: there is no such file; pytest --ddpperf-history=FILE makes one")
    try:
        address = f"{file.absolute().as_uri()}?mode={'rw' if mode == 'read' else mode}"
        with closing(sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None)) as connection:
            _require_ours(connection, file, empty=mode != "read")
            yield connection
    except sqlite3.OperationalError as error:
        cure = "try again" if "locked" in str(error) else "see to its permissions and the disk, or name another file"
        raise HistoryError(f"history file {file}: {error}; {cure}") from None
    except sqlite3.DatabaseError as error:
        raise HistoryError(f"history file {file}: {error}: it is broken, or no history; {_KEPT}") from None


def _version(connection: sqlite3.Connection) -> int:
    """That of the tables; 0 where there are none."""
    return cast("int", connection.execute("PRAGMA user_version").fetchone()[0])


def _require_ours(connection: sqlite3.Connection, file: Path, *, empty: bool) -> None:
    connection.execute("BEGIN")  # all three answers from one moment: another process may be making the tables
    questions = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    application, written, tables = (connection.execute(question).fetchone()[0] for question in questions)
    connection.execute("ROLLBACK")
    if application == written == tables == 0:
        if not empty:
            raise NoRunYet(f"history file {file}: no run was recorded in it yet")
        return
    if application != APPLICATION:
        raise HistoryError(f"history file {file} is a database of another program; name another file")
    if written > VERSION:
        raise HistoryError(
            f"history file {file} was written by a newer pytest-ddpperf (history {written}); this one knows {VERSION}: "
            "upgrade pytest-ddpperf"
        )
