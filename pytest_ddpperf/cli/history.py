"""``ddpperf history``: adds results of other machines to a history, and prints a test's metrics as CSV."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from pathlib import Path

from pytest_ddpperf.baselines.history.database import HistoryRun, entries, has_run, record, recorded
from pytest_ddpperf.cli.trend import add_history, add_selection, history_file, tests_named
from pytest_ddpperf.errors import HistoryError
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.documents.run_file import RESULTS, read_run
from pytest_ddpperf.reports.files import write_text
from pytest_ddpperf.reports.formats.flat import no_formula
from pytest_ddpperf.reports.lines import printable
from pytest_ddpperf.reports.phrases import first_of
from pytest_ddpperf.units import format_count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the subcommands ``add`` and ``csv``."""
    commands = parser.add_subparsers(title="commands", metavar="add|csv", required=True)
    adding = commands.add_parser("add", help="add runs from JSON files, except those that the history has already")
    adding.add_argument(
        "results", type=Path, nargs="+", metavar="RUN.json", help="file of pytest --ddpperf-report=json:RUN.json"
    )
    adding.set_defaults(run=_add)
    table = commands.add_parser("csv", help="print all metrics of one benchmark, a row for each run, oldest first")
    table.add_argument("test", metavar="TEST", help="a test's node id, or a part of it")
    add_selection(table)
    table.add_argument(
        "--metric",
        action="append",
        metavar="NAME",
        help="only this metric, and only runs that have it; may be given several times (default: all metrics)",
    )
    table.add_argument("--output", type=Path, default=Path("-"), metavar="FILE", help="file to write (default: -)")
    table.set_defaults(run=_print_csv)
    for each in (adding, table):
        add_history(each)


def _add(options: argparse.Namespace) -> int:
    """Adds runs to a history; if a file cannot be read, none is added, because all are read first."""
    history = history_file(options.history)
    runs = [(file, *_run_of(file)) for file in options.results]
    for file, run_, results in runs:
        if not results:
            added = "no benchmark was judged"
        elif has_run(history, run_, results):
            added = f"this run is in {history} already"
        else:
            number = record(history, run_, results)
            added = f"{format_count(len(results), 'benchmark')}, run number {number} of {history}"
        print(printable(f"{file}: {added}"))
    return 0


def _run_of(file: Path) -> tuple[HistoryRun, Sequence[Result]]:
    document = read_run(file)
    if document.date is None:
        raise RESULTS.error(file, "field date: is null, and a history needs a date")
    of_code = {name: getattr(document, name) for name in ("commit", "commit_date", "branch", "dirty")}
    return HistoryRun(date=document.date, **of_code), document.results


def _print_csv(options: argparse.Namespace) -> int:
    """Prints the runs that have all requested metrics, oldest first, as change detectors (apache-otava) read them."""
    history = history_file(options.history)
    filters = {"name": options.name, "world_size": options.world_size, "branch": options.branch}
    found = [
        entry
        for test in tests_named(options.test, history)
        for metric in options.metric or recorded(history, "metric")
        for entry in entries(history, metric, test=test, **filters)
    ]
    which = dict.fromkeys(
        f"{one.test} {one.name} w{one.world_size} on {one.environment_key}"
        for one in (entry.benchmark for entry in found)
    )
    if len(which) != 1:
        known = ", ".join(first_of(list(which))) or "none"
        raise HistoryError(
            f"history file {history}: several benchmarks match ({known}); choose one by --name and --world-size"
        )
    rows: dict[HistoryRun, dict[str, float]] = {}
    for entry in found:
        rows.setdefault(entry.run, {})[entry.benchmark.metric] = entry.value
    metrics = options.metric or sorted({metric for values in rows.values() for metric in values})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", "commit", "branch", *map(no_formula, metrics)])
    for run_, values in sorted(rows.items(), key=lambda row: row[0].commit_date or row[0].date):
        if set(options.metric or ()) <= values.keys():
            facts = (no_formula(fact or "") for fact in (run_.commit_date or run_.date, run_.commit, run_.branch))
            writer.writerow([*facts, *(values.get(metric, "") for metric in metrics)])
    write_text(options.output, text.getvalue(), "--output")
    return 0
