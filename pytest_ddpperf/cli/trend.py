"""``ddpperf trend``: shows a metric over commits."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from pytest_ddpperf.baselines.history.database import Column, entries, last_verdict, recorded
from pytest_ddpperf.baselines.history.trend import MIN_CHANGE, Trend, trends
from pytest_ddpperf.cli.inifile import ini_value
from pytest_ddpperf.errors import HistoryError, SettingError
from pytest_ddpperf.parsers import argument, fraction, positive_int
from pytest_ddpperf.records.results import BaselineRecord
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.files import ensure_writable, write_text
from pytest_ddpperf.reports.formats.page.trends import trends_page
from pytest_ddpperf.reports.lines import printable, wrapped
from pytest_ddpperf.reports.phrases import first_of
from pytest_ddpperf.reports.table import render, terminal_width
from pytest_ddpperf.reports.trend import changes_text, trend_table, trends_text
from pytest_ddpperf.settings import KNOBS

_HISTORY = KNOBS["history"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument(
        "test", nargs="?", metavar="TEST", help="a test's node id, or a part of it (default: all tests that changed)"
    )
    parser.add_argument("--metric", default="step_time", metavar="NAME", help="metric to show (default: %(default)s)")
    add_history(parser)
    add_selection(parser)
    parser.add_argument(
        "--last",
        type=argument(positive_int),
        default=1000,
        metavar="N",
        help="number of newest commits to show (default: %(default)s)",
    )
    parser.add_argument(
        "--least",
        type=argument(fraction),
        default=MIN_CHANGE,
        metavar="FRACTION",
        help="omit smaller changes, such as 0.01 or 1%%; for shares and losses that is an absolute 0.01 "
        "(default: %(default)s)",
    )
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="print as JSON, or write it to a file")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser; - is standard output")


def add_history(parser: argparse.ArgumentParser) -> None:
    """Declares the option that names the file of the history."""
    text = f"file of the history (default: {_HISTORY.ini} of the ini file)"
    parser.add_argument("--history", type=Path, metavar="FILE", help=text)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Declares the options that select results of a history."""
    parser.add_argument("--name", metavar="NAME", help="only this variant of a test")
    parser.add_argument("--world-size", type=argument(positive_int), metavar="N", help="only this number of ranks")
    parser.add_argument("--branch", metavar="NAME", help="only runs of this branch")


def run(options: argparse.Namespace) -> int:
    """Prints the trends that the arguments select, or writes them as JSON or as a page."""
    file = options.json
    no_file = file not in {None, "-"} and ("::" in file or (os.sep not in file and not Path(file).suffix))
    if options.test is None and no_file:
        raise SettingError(f"--json {file}: expected a file FILE.json; to name a test: ddpperf trend {file} --json")
    found = _trends(options, history_file(options.history))
    if options.html is not None:
        write_text(options.html, trends_page(found, options.metric), "--html")
    if options.json:
        if options.test is None:
            found = tuple(trend for trend in found if trend.changes)
        ensure_writable(Path(options.json), "--json")
        write_text(Path(options.json), trends_text(found, options.metric), "--json")
    if options.html is None and not options.json:
        if options.test is None:
            print(*wrapped(changes_text(found, options.metric).split("\n"), terminal_width()), sep="\n")
        else:
            print("\n\n".join(render(trend_table(trend), terminal_width()) for trend in found))
    return 0


def _trends(options: argparse.Namespace, file: Path) -> tuple[Trend, ...]:
    filters: dict[Column, str | int | None] = {
        "name": options.name,
        "world_size": options.world_size,
        "branch": options.branch,
    }
    chosen: Sequence[str | None] = [None] if options.test is None else tests_named(options.test, file)
    for column, value in filters.items():
        if value is not None and value not in (known := recorded(file, column)):
            there = ", ".join(first_of(list(map(str, known)))) or "none"
            raise HistoryError(f"history file {file} has no {column.replace('_', ' ')} {value}; it has {there}")
    found = [entry for test in chosen for entry in entries(file, options.metric, test=test, **filters)]
    if not found:
        selected = "".join(
            f", {name.replace('_', ' ')} {value}" for name, value in filters.items() if value is not None
        )
        raise HistoryError(
            f"history file {file} has no values of {options.metric} for {options.test or 'any test'}{selected}; "
            f"its metrics are {', '.join(recorded(file, 'metric')) or 'none'}"
        )
    return trends(found, min_change=options.least, last=options.last)


def tests_named(test: str, file: Path) -> list[str]:
    """Returns the test with the node id ``test``, else all tests whose node id contains it; SettingError if none."""
    known = recorded(file, "test")
    chosen = [test] if test in known else [node_id for node_id in known if test in node_id]
    if not chosen:
        raise HistoryError(f"history file {file} has no test {test}; its tests are {', '.join(first_of(known))}")
    return chosen


def stale(test: str, record: BaselineRecord, save: str | None) -> str:
    """Returns advice to save again if the last run in the project's history was better than a baseline; else empty."""
    if ini_value(_HISTORY.ini, Path.cwd()) is None or not (file := history_file(None)).is_file():
        return ""
    verdict, date = last_verdict(file, test, record)
    if verdict != Verdict.IMPROVED.value or date[:10] < record.date:
        return ""
    ranks = f" {KNOBS['world_size'].option}={record.world_size}" if record.mode is None else ""
    option = KNOBS["save"].option + (f"={save}" if save else "")
    return f'\nstale: the run of {date[:10]} was better; save again with: pytest "{printable(test)}"{ranks} {option}'


def history_file(named: Path | None) -> Path:
    """Returns the file of ``--history``, else the file that the ini file of the current folder names."""
    if named is not None:
        return named
    configured = ini_value(_HISTORY.ini, Path.cwd())
    if configured is None:
        raise HistoryError(
            f"no history file is given: name it by --history FILE, or set {_HISTORY.ini} in the ini file of pytest; "
            f"pytest {_HISTORY.option}=FILE writes it"
        )
    value, folder = configured
    return folder / value
