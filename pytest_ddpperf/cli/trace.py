"""``ddpperf trace``: summarises traces of ranks, and shows the differences between two runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_ddpperf.analysis.traces.difference import difference
from pytest_ddpperf.errors import TraceError
from pytest_ddpperf.parsers import argument, fraction, positive_int
from pytest_ddpperf.reports.lines import wrapped
from pytest_ddpperf.reports.table import render, terminal_width
from pytest_ddpperf.reports.traces import difference_table, summary_table
from pytest_ddpperf.run.call.traces import MOST_CHANGES, groups_of, merge, pairs_of, read_group


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    kinds = parser.add_subparsers(metavar="summary|diff", required=True)
    summary = kinds.add_parser("summary", help="show how ranks spend their steps, and which is late to collectives")
    summary.add_argument(
        "paths", nargs="+", type=Path, metavar="DIR|FILE", help="folders, trace files, or prefixes of their names"
    )
    summary.add_argument("--merge", type=Path, metavar="FILE", help="write one trace of all ranks to this file")
    summary.set_defaults(run=_summary)
    diff = kinds.add_parser(
        "diff", help="show operators, kernels and collectives that are added, removed, slower or faster in B"
    )
    for name in ("A", "B"):
        diff.add_argument(name, type=Path, help="a folder, a trace file, or a prefix of the names of trace files")
    diff.add_argument(
        "--least",
        type=argument(fraction),
        default=0.01,
        metavar="FRACTION",
        help="omit smaller changes of time, as a share of A's step, such as 0.01 or 1%% (default: %(default)s)",
    )
    diff.add_argument(
        "--most",
        type=argument(positive_int),
        default=MOST_CHANGES,
        metavar="N",
        help="number of changes to print, the largest first (default: %(default)s)",
    )
    diff.set_defaults(run=_diff)


def _summary(options: argparse.Namespace) -> int:
    groups = [read_group(name, files) for name, files in groups_of(options.paths).items()]
    if options.merge is not None and len(groups) > 1:
        raise TraceError(f"--merge={options.merge} merges traces of one benchmark, not of {len(groups)}: name one")
    parts = [render(summary_table(group.name, group.traces), terminal_width()) for group in groups]
    if options.merge is not None:
        parts.append("\n".join(wrapped([merge(groups[0], options.merge, "--merge")], terminal_width())))
    print("\n\n".join(parts))
    return 0


def _diff(options: argparse.Namespace) -> int:
    tables = []
    for before, after in pairs_of(options.A, options.B):
        found = difference(before.traces, after.traces, options.least)
        names = "\n".join(wrapped([f"A: {before.name}", f"B: {after.name}"], terminal_width()))
        tables.append(f"{names}\n\n{render(difference_table(found, options.most), terminal_width())}")
    print("\n\n".join(tables))
    return 0
