"""``ddpperf report``, ``compare``, ``schema`` and ``trace``: show the files that runs wrote."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from pytest_ddpperf.analysis.traces.difference import difference
from pytest_ddpperf.baselines.earlier_run import judged_by
from pytest_ddpperf.cli.options import add_option
from pytest_ddpperf.errors import TraceError
from pytest_ddpperf.judge.decision import failing_verdict
from pytest_ddpperf.parsers import fraction, positive_int
from pytest_ddpperf.records.results import Provenance
from pytest_ddpperf.reports import causes, files, lines, remarks, table, traces, trend, two_runs
from pytest_ddpperf.reports.documents.entries import JsonEntry, ResultsFile
from pytest_ddpperf.reports.documents.run_file import read_run
from pytest_ddpperf.reports.formats.html import two_runs_page
from pytest_ddpperf.reports.formats.kinds import KINDS
from pytest_ddpperf.reports.formats.markdown import markdown_table
from pytest_ddpperf.run.call.traces import MOST_CHANGES, groups_of, merge, pairs_of, read_traces
from pytest_ddpperf.settings import KNOBS
from pytest_ddpperf.units import format_count

_DOCUMENTS: Mapping[str, type[JsonEntry]] = {"results": ResultsFile, "trend": trend.TrendsFile}
_FAIL_ON = KNOBS["fail_on"]


def add_report_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``ddpperf report``: an option for each kind of report."""
    _add_results(parser, "results")
    for name, kind in KINDS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"{kind.help}; - is standard output")
    text = "folder for pictures, as PNG files; needs matplotlib (pip install pytest-ddpperf[plots])"
    parser.add_argument("--plots", type=Path, metavar="DIR", help=text)
    parser.set_defaults(run=report)


def report(options: argparse.Namespace) -> int:
    """Writes the requested kinds of reports; prints the report in plain text if none is requested."""
    document = read_run(options.results)
    asked = {name: file for name in KINDS if (file := getattr(options, name.replace("-", "_"))) is not None}
    if options.plots is not None:
        from pytest_ddpperf.reports.plots import write_plots

        drawn = write_plots(document, options.plots, "--plots")
        print(lines.printable(f"{format_count(len(drawn), 'picture')} in {options.plots}"), file=sys.stderr)
    elif not asked:
        asked = {"text": Path("-")}
    for name, file in asked.items():
        files.write_text(file, KINDS[name].render(document), f"--{name}")
    return 0


def add_schema_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the argument of ``ddpperf schema``."""
    parser.add_argument("document", nargs="?", choices=tuple(_DOCUMENTS), default="results", help="(default: results)")
    parser.set_defaults(run=print_schema)


def print_schema(options: argparse.Namespace) -> int:
    """Prints the JSON schema of a document."""
    print(json.dumps(msgspec.json.schema(_DOCUMENTS[options.document]), indent=1))
    return 0


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``ddpperf compare``."""
    _add_results(parser, "before")
    _add_results(parser, "after")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a table in Markdown; - is standard output")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser; - is standard output")
    text = "verdicts that make the exit status 1, or none"
    add_option(parser, "--fail-on", _FAIL_ON.parse, str(_FAIL_ON.metavar), text, default=_FAIL_ON.default_text)
    parser.set_defaults(run=compare)


def compare(options: argparse.Namespace) -> int:
    """Prints the changes of metrics between two runs; returns the exit status, 1 if the second run got worse."""
    before, after = read_run(options.before), read_run(options.after)
    results = judged_by(before.results, Provenance(date=before.date or "", commit=before.commit), after.results)
    changes = two_runs.two_runs(before, after, results)
    if options.markdown is not None:
        files.write_text(options.markdown, f"{markdown_table(changes)}\n", "--markdown")
    if options.html is not None:
        files.write_text(options.html, two_runs_page(after, results, changes), "--html")
    printed = options.markdown is None and options.html is None
    if printed:
        print(table.render(changes, table.terminal_width()))
    verdicts = [failing_verdict(result, options.fail_on) for result in results]
    for (name, result), verdict in zip(lines.with_names(results), verdicts, strict=True):
        if verdict is not None:
            failed = replace(result, failure=causes.reason_text(result, verdict, options.fail_on))
            line = lines.printable(f"{verdict.value}: {name}: {remarks.cause_in_words(failed)}")
            print(line, file=sys.stdout if printed else sys.stderr)
    return int(any(verdicts))


def _add_results(parser: argparse.ArgumentParser, name: str) -> None:
    text = "file that pytest --ddpperf-report=json:FILE wrote; - is standard input"
    parser.add_argument(name, type=Path, metavar=f"{name.upper()}.json", help=text)


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of ``ddpperf trace``."""
    kinds = parser.add_subparsers(metavar="summary|diff", required=True)
    summary = kinds.add_parser("summary", help="show how ranks spend their steps, and which is late to collectives")
    text = "folders, trace files, or prefixes of their names"
    summary.add_argument("paths", nargs="+", type=Path, metavar="DIR|FILE", help=text)
    summary.add_argument("--merge", type=Path, metavar="FILE", help="write one trace of all ranks to this file")
    summary.set_defaults(run=_summary)
    text = "show operators, kernels and collectives that are added, removed, slower or faster in B"
    diff = kinds.add_parser("diff", help=text)
    for name in ("A", "B"):
        diff.add_argument(name, type=Path, help="a folder, a trace file, or a prefix of the names of trace files")
    text = "smallest change of time to show, as a share of A's step time, such as 0.01 or 1%%"
    add_option(diff, "--least", fraction, "FRACTION", text, default=0.01)
    text = "number of changes to print, the largest first"
    add_option(diff, "--most", positive_int, "N", text, default=MOST_CHANGES)
    diff.set_defaults(run=_diff)


def _summary(options: argparse.Namespace) -> int:
    groups = {name: read_traces(wanted) for name, wanted in groups_of(options.paths).items()}
    if options.merge is not None and len(groups) > 1:
        raise TraceError(f"--merge={options.merge} merges traces of one benchmark, not of {len(groups)}: name one")
    parts = [table.render(traces.summary_table(*group), table.terminal_width()) for group in groups.items()]
    if options.merge is not None:
        (found,) = groups.values()
        parts.append("\n".join(lines.wrapped([merge(found, options.merge, "--merge")], table.terminal_width())))
    print("\n\n".join(parts))
    return 0


def _diff(options: argparse.Namespace) -> int:
    tables = []
    for (before, of_before), (after, of_after) in pairs_of(options.A, options.B):
        found = difference(read_traces(of_before), read_traces(of_after), options.least)
        names = "\n".join(lines.wrapped([f"A: {before}", f"B: {after}"], table.terminal_width()))
        tables.append(
            f"{names}\n\n{table.render(traces.difference_table(found, options.most), table.terminal_width())}"
        )
    print("\n\n".join(tables))
    return 0
