"""``ddpperf trend`` and ``ddpperf history``: show a metric over commits, add runs to a history, and print it as CSV."""

from __future__ import annotations

import argparse
import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from pytest_ddpperf.baselines.history import database
from pytest_ddpperf.baselines.history.trend import MIN_CHANGE, trends
from pytest_ddpperf.cli.options import add_option, ini_path
from pytest_ddpperf.errors import HistoryError, SettingError
from pytest_ddpperf.parsers import fraction, positive_int
from pytest_ddpperf.records.results import BaselineRecord, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.run_file import RESULTS, read_run
from pytest_ddpperf.reports.files import ensure_writable, write_text
from pytest_ddpperf.reports.formats.flat import no_formula
from pytest_ddpperf.reports.formats.trends_page import trends_page
from pytest_ddpperf.reports.lines import printable, wrapped
from pytest_ddpperf.reports.phrases import first_of
from pytest_ddpperf.reports.table import render, terminal_width
from pytest_ddpperf.reports.trend import changes_text, trend_table, trends_text
from pytest_ddpperf.settings import KNOBS
from pytest_ddpperf.units import format_count

_HISTORY = KNOBS["history"]


def add_trend_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``ddpperf trend``."""
    text = "a test's node id, or a part of it (default: all tests that changed)"
    parser.add_argument("test", nargs="?", metavar="TEST", help=text)
    parser.add_argument("--metric", default="step_time", metavar="NAME", help="metric to show (default: %(default)s)")
    _add_history(parser)
    _add_selection(parser)
    add_option(parser, "--last", positive_int, "N", "number of newest commits to show", default=1000)
    text = "smallest change to show, such as 0.01 or 1%%; for shares and losses, 0.01 is an absolute difference"
    add_option(parser, "--least", fraction, "FRACTION", text, default=MIN_CHANGE)
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="print as JSON, or write it to a file")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser; - is standard output")
    parser.set_defaults(run=trend)


def add_history_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the subcommands ``add`` and ``csv`` of ``ddpperf history``."""
    commands = parser.add_subparsers(title="commands", metavar="add|csv", required=True)
    adding = commands.add_parser("add", help="add runs from JSON files, except those that the history has already")
    text = "file of pytest --ddpperf-report=json:RUN.json"
    adding.add_argument("results", type=Path, nargs="+", metavar="RUN.json", help=text)
    adding.set_defaults(run=_add)
    table = commands.add_parser("csv", help="print all metrics of one benchmark, a row for each run, oldest first")
    table.add_argument("test", metavar="TEST", help="a test's node id, or a part of it")
    _add_selection(table)
    text = "only this metric, and only runs that have it; may be given several times (default: all metrics)"
    table.add_argument("--metric", action="append", metavar="NAME", help=text)
    table.add_argument("--output", type=Path, default=Path("-"), metavar="FILE", help="file to write (default: -)")
    table.set_defaults(run=_print_csv)
    for each in (adding, table):
        _add_history(each)


def _add_history(parser: argparse.ArgumentParser) -> None:
    text = f"file of the history (default: {_HISTORY.ini} of the ini file)"
    parser.add_argument("--history", type=Path, metavar="FILE", help=text)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", metavar="NAME", help="only this variant of a test")
    add_option(parser, "--world-size", positive_int, "N", "only this number of ranks")
    parser.add_argument("--branch", metavar="NAME", help="only runs of this branch")


def _file(options: argparse.Namespace) -> Path:
    """Returns the file that ``--history`` names, else the file that the ini file of the current folder names."""
    if options.history is not None:
        return Path(options.history)
    configured = ini_path(_HISTORY.ini)
    if configured is None:
        reason = f"no history file is given: name it by --history FILE, or set {_HISTORY.ini} in the ini file of pytest"
        raise HistoryError(f"{reason}; pytest {_HISTORY.option}=FILE writes it")
    return configured


def stale(test: str, record: BaselineRecord, save: str | None) -> str:
    """Returns advice to save a baseline again, in the set ``save``, if the last recorded run was better; else ""."""
    file = ini_path(_HISTORY.ini)
    if file is None or not file.is_file():
        return ""
    verdict, date = database.last_verdict(file, test, record)
    if verdict != Verdict.IMPROVED.value or date[:10] < record.date:
        return ""
    ranks = f" {KNOBS['world_size'].option}={record.world_size}" if record.mode is None else ""
    option = KNOBS["save"].option + (f"={save}" if save else "")
    return f'\nstale: the run of {date[:10]} was better; save again with: pytest "{printable(test)}"{ranks} {option}'


def _selected(options: argparse.Namespace, metrics: Sequence[str] | None) -> list[database.Entry]:
    """Returns the values that the arguments select, of all metrics if ``metrics`` is None.

    Raises HistoryError if there are no such values, or if one of ``metrics`` has none.
    """
    file, test = _file(options), options.test
    known: Sequence[str] = () if test is None else database.recorded(file, "test")
    tests = [test] if test is None or test in known else [node_id for node_id in known if test in node_id]
    if not tests:
        raise HistoryError(f"history file {file} has no test {test}; its tests are {', '.join(first_of(known))}")
    columns: tuple[database.Column, ...] = ("name", "world_size", "branch")
    filters = {column: value for column in columns if (value := getattr(options, column)) is not None}
    for column, value in filters.items():
        if value not in (there := database.recorded(file, column)):
            names = ", ".join(first_of(list(map(str, there)))) or "none"
            raise HistoryError(f"history file {file} has no {column.replace('_', ' ')} {value}; it has {names}")
    found = {
        metric: [entry for each in tests for entry in database.entries(file, metric, test=each, **filters)]
        for metric in metrics or database.recorded(file, "metric")
    }
    missing = [metric for metric, values in found.items() if not values] if metrics else []
    if missing or not any(found.values()):
        chosen = "".join(f", {column.replace('_', ' ')} {value}" for column, value in filters.items())
        raise HistoryError(
            f"history file {file} has no values of {missing[0] if missing else 'a metric'} for "
            f"{test or 'any test'}{chosen}; its metrics are {', '.join(database.recorded(file, 'metric')) or 'none'}"
        )
    return [entry for values in found.values() for entry in values]


def trend(options: argparse.Namespace) -> int:
    """Prints the trends that the arguments select, or writes them as JSON or as a page."""
    file = options.json
    no_file = file not in {None, "-"} and ("::" in file or (os.sep not in file and not Path(file).suffix))
    if options.test is None and no_file:
        raise SettingError(f"--json {file}: expected a file FILE.json; to name a test: ddpperf trend {file} --json")
    found = trends(_selected(options, [options.metric]), min_change=options.least, last=options.last)
    if options.html is not None:
        write_text(options.html, trends_page(found, options.metric), "--html")
    if options.json:
        if options.test is None:
            found = tuple(one for one in found if one.changes)
        ensure_writable(Path(options.json), "--json")
        write_text(Path(options.json), trends_text(found, options.metric), "--json")
    if options.html is None and not options.json:
        if options.test is None:
            print(*wrapped(changes_text(found, options.metric).split("\n"), terminal_width()), sep="\n")
        else:
            print("\n\n".join(render(trend_table(one), terminal_width()) for one in found))
    return 0


def _add(options: argparse.Namespace) -> int:
    """Adds runs to a history; first reads all files, so that no run is added if a file cannot be read."""
    history = _file(options)
    runs = [(file, *_run_of(file)) for file in options.results]
    for file, run, results in runs:
        if not results:
            added = "no benchmark was judged"
        elif database.has_run(history, run, results):
            added = f"this run is in {history} already"
        else:
            number = database.record(history, run, results)
            added = f"{format_count(len(results), 'benchmark')}, run number {number} of {history}"
        print(printable(f"{file}: {added}"))
    return 0


def _run_of(file: Path) -> tuple[database.HistoryRun, Sequence[Result]]:
    document = read_run(file)
    if document.date is None:
        raise RESULTS.error(file, "field date: is null, and a history needs a date")
    of_code = {name: getattr(document, name) for name in ("commit", "commit_date", "branch", "dirty")}
    return database.HistoryRun(date=document.date, **of_code), document.results


def _print_csv(options: argparse.Namespace) -> int:
    """Prints the runs that have all requested metrics, oldest first, as CSV for change detectors (apache-otava)."""
    found = _selected(options, options.metric)
    which = dict.fromkeys(
        f"{one.test} {one.name} w{one.world_size} on {one.environment_key}"
        for one in (entry.benchmark for entry in found)
    )
    if len(which) > 1:
        names = ", ".join(first_of(list(which)))
        raise HistoryError(
            f"history file {_file(options)}: several benchmarks match ({names}); choose one by --name and --world-size"
        )
    rows: dict[database.HistoryRun, dict[str, float]] = {}
    for entry in found:
        rows.setdefault(entry.run, {})[entry.benchmark.metric] = entry.value
    metrics = options.metric or sorted({metric for values in rows.values() for metric in values})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", "commit", "branch", *map(no_formula, metrics)])
    for run, values in sorted(rows.items(), key=lambda row: row[0].commit_date or row[0].date):
        if set(options.metric or ()) <= values.keys():
            facts = (no_formula(fact or "") for fact in (run.commit_date or run.date, run.commit, run.branch))
            writer.writerow([*facts, *(values.get(metric, "") for metric in metrics)])
    write_text(options.output, text.getvalue(), "--output")
    return 0
