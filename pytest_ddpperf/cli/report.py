"""``ddpperf report`` and ``ddpperf compare``: show the JSON file of a run in other forms."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pytest_ddpperf.baselines.earlier_run import judged_by
from pytest_ddpperf.judge.decision import failing_verdict
from pytest_ddpperf.parsers import argument
from pytest_ddpperf.records.results import Provenance
from pytest_ddpperf.reports.causes import reason_text
from pytest_ddpperf.reports.documents.entries import JsonEntry, ResultsFile
from pytest_ddpperf.reports.documents.run_file import read_run
from pytest_ddpperf.reports.documents.schema import schema_of
from pytest_ddpperf.reports.files import write_text
from pytest_ddpperf.reports.formats.html import two_runs_page
from pytest_ddpperf.reports.formats.kinds import KINDS
from pytest_ddpperf.reports.formats.markdown import markdown_table
from pytest_ddpperf.reports.lines import names_of, printable
from pytest_ddpperf.reports.remarks import cause_in_words
from pytest_ddpperf.reports.table import render, terminal_width
from pytest_ddpperf.reports.trend import TrendsFile
from pytest_ddpperf.reports.two_runs import two_runs
from pytest_ddpperf.settings import KNOBS
from pytest_ddpperf.units import format_count

_DOCUMENTS: Mapping[str, type[JsonEntry]] = {"results": ResultsFile, "trend": TrendsFile}
_FAIL_ON = KNOBS["fail_on"]


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``ddpperf report``: an option for each kind of report."""
    _add_results(parser, "results")
    for kind in KINDS.values():
        parser.add_argument(f"--{kind.name}", type=Path, metavar="FILE", help=f"{kind.help}; - is standard output")
    text = "folder for pictures, as PNG files; needs matplotlib (in the extra plots)"
    parser.add_argument("--plots", type=Path, metavar="DIR", help=text)


def report(options: argparse.Namespace) -> int:
    """Writes the requested kinds of reports; prints the report in plain text if none is requested."""
    document = read_run(options.results)
    files = {kind: getattr(options, name.replace("-", "_")) for name, kind in KINDS.items()}
    asked = {kind: file for kind, file in files.items() if file is not None}
    if options.plots is not None:
        from pytest_ddpperf.reports.plots import write_plots

        drawn = write_plots(document, options.plots, "--plots")
        print(printable(f"{format_count(len(drawn), 'picture')} in {options.plots}"), file=sys.stderr)
    elif not asked:
        asked = {KINDS["text"]: Path("-")}
    for kind, file in asked.items():
        write_text(file, kind.render(document), f"--{kind.name}")
    return 0


def add_schema_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the argument of ``ddpperf schema``."""
    parser.add_argument("document", nargs="?", choices=tuple(_DOCUMENTS), default="results", help="(default: results)")


def print_schema(options: argparse.Namespace) -> int:
    """Prints the JSON schema of a document."""
    print(json.dumps(schema_of(_DOCUMENTS[options.document]), indent=1))
    return 0


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``ddpperf compare``."""
    _add_results(parser, "before")
    _add_results(parser, "after")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a table in Markdown; - is standard output")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser; - is standard output")
    parser.add_argument(
        "--fail-on",
        type=argument(_FAIL_ON.parse),
        default=_FAIL_ON.default,
        metavar=_FAIL_ON.metavar,
        help="verdicts that make the exit status 1, or none (default: regressed,broken)",
    )


def compare(options: argparse.Namespace) -> int:
    """Prints the changes of metrics between two runs; returns the exit status, 1 if the second run got worse."""
    before, after = read_run(options.before), read_run(options.after)
    results = judged_by(before.results, Provenance(date=before.date or "", commit=before.commit), after.results)
    table = two_runs(before, after, results)
    if options.markdown is not None:
        write_text(options.markdown, f"{markdown_table(table)}\n", "--markdown")
    if options.html is not None:
        write_text(options.html, two_runs_page(after, results, table), "--html")
    printed = options.markdown is None and options.html is None
    if printed:
        print(render(table, terminal_width()))
    verdicts = [failing_verdict(result, options.fail_on) for result in results]
    for name, result, verdict in zip(names_of(results), results, verdicts, strict=True):
        if verdict is not None:
            failed = replace(result, failure=reason_text(result, verdict, options.fail_on))
            line = printable(f"{verdict.value}: {name}: {cause_in_words(failed)}")
            print(line, file=sys.stdout if printed else sys.stderr)
    return int(any(verdicts))


def _add_results(parser: argparse.ArgumentParser, name: str) -> None:
    text = "file that pytest --ddpperf-report=json:FILE wrote; - is standard input"
    parser.add_argument(name, type=Path, metavar=f"{name.upper()}.json", help=text)
