"""The SQLite file of a history: its tables, and how to open it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from pytest_ddpperf.errors import HistoryError
from pytest_ddpperf.instruments.deadlines import late

if TYPE_CHECKING:
    import sqlite3

APPLICATION = 0x64647066  # "ddpf": marks the files of pytest-ddpperf
VERSION = 2
LOCK_TIMEOUT = 30.0  # seconds; a process that writes holds the lock for milliseconds

# Rows of one metric are adjacent, so that a trend reads few pages of a large file.
_SCHEMA = (
    """
    CREATE TABLE run (
        id INTEGER PRIMARY KEY,
        date TEXT NOT NULL,      -- when it was recorded; ISO 8601, UTC
        commit_hash TEXT,        -- in full; NULL outside of a git repository
        commit_date TEXT,        -- ISO 8601, UTC
        branch TEXT,             -- NULL if HEAD is detached
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
        warmup INTEGER,          -- untimed steps of each launch
        steps INTEGER,           -- timed ones after them
        beside INTEGER           -- whether its steps took turns with those of other launches
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
        low REAL,                -- of the interval; NULL if there is none
        high REAL,
        confidence REAL,
        samples TEXT NOT NULL,   -- JSON: one number for each launch that has one
        verdict TEXT NOT NULL,
        PRIMARY KEY (metric, result)
    ) WITHOUT ROWID
    """,
)
_STATISTICS = ("CREATE TABLE sqlite_stat1(tbl,idx,stat)", "CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)")
_RECOVERY = "restore the file from a backup, or name another one to start a new history"


class NoRunYet(HistoryError):
    """Raised if the file is empty, because no run was recorded in it yet."""


def make_tables(connection: sqlite3.Connection) -> None:
    """Makes the tables of a new file, in the caller's transaction."""
    if connection.execute("PRAGMA user_version").fetchone() != (0,):
        return
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


@contextmanager
def open_history(file: Path, mode: str = "read") -> Iterator[sqlite3.Connection]:
    """Opens a connection to the file; when it closes, SQLite rolls back uncommitted changes.

    ``mode`` is ``read``, ``rw`` to write to an existing file, or ``rwc`` to make the file if necessary. Even ``read``
    opens the file for writing if possible, so that SQLite can roll back the write of a process that died. SQLite keeps
    its default journal, because WAL mode fails on network file systems.

    Raises NoRunYet if the mode is ``read`` and the file is empty. Raises HistoryError if the file is missing, locked,
    unwritable, broken, or from another program or a newer version. A schema that is not this plugin's raises
    HistoryError, too, because views, triggers, generated columns and indexes of expressions may run for ever.
    """
    import sqlite3

    if mode == "read" and not file.exists():
        raise HistoryError(f"history file {file} does not exist; pytest --ddpperf-history={file} writes it")
    try:
        address = f"{file.absolute().as_uri()}?mode={'rw' if mode == 'read' else mode}"
        with closing(sqlite3.connect(address, uri=True, timeout=LOCK_TIMEOUT, isolation_level=None)) as connection:
            connection.text_factory = lambda text: text.decode(errors="replace")
            _check_header(connection, file, may_be_empty=mode != "read")
            connection.text_factory = str
            yield connection
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter if SQLite's message quotes broken text
        if not isinstance(error, sqlite3.OperationalError) or "Could not decode" in str(error):
            raise broken(file, f"{shorten(str(error), 100)}: the file is broken, or is not a history") from None
        if "locked" in str(error):
            raise late(HistoryError(f"history file {file}: {error}; try again")) from None
        cure = "check its permissions and the disk, or name another file"
        raise HistoryError(f"history file {file}: {error}; {cure}") from None


def broken(file: Path, problem: str) -> HistoryError:
    """Returns the error for a file whose content pytest-ddpperf cannot have written."""
    return HistoryError(f"history file {file}: {problem}; {_RECOVERY}")


def _check_header(connection: sqlite3.Connection, file: Path, *, may_be_empty: bool) -> None:
    """Raises HistoryError for files of other programs or newer versions, and for empty files if not allowed."""
    connection.execute("BEGIN")  # another process may be making the tables: all answers are of one moment
    queries = ("PRAGMA application_id", "PRAGMA user_version")
    application, written = (connection.execute(query).fetchone()[0] for query in queries)
    made = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    connection.execute("ROLLBACK")
    if application == written == len(made) == 0:
        if not may_be_empty:
            raise NoRunYet(f"history file {file}: no run was recorded in it yet")
        return
    if application != APPLICATION:
        raise HistoryError(f"history file {file} is a database of another program; name another file")
    if written > VERSION:
        reason = f"history file {file} was written by a newer pytest-ddpperf (format {written}; this version"
        raise HistoryError(f"{reason} reads up to {VERSION}): upgrade pytest-ddpperf")
    own = {*map(_bare, (*_SCHEMA, *_STATISTICS))}
    for kind, name, sql in made:
        if _bare(sql) not in own:
            cure = f": remove the {kind} by DROP {kind.upper()}" * (kind in {"index", "trigger"})
            raise broken(file, f"{kind} {name!a} has a schema that pytest-ddpperf does not write{cure}")


def _bare(sql: str) -> str:
    """Returns an SQL statement without comments and spaces, because these differ between versions of this plugin."""
    return re.sub(r"--.*|\s", "", str(sql))
