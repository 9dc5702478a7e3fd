"""The table of what came out, for a terminal and for the page of the documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from benchmarks.regressions.case import Case, Row, url
from pytest_ddpperf.records.counts import COUNTS

PAGE = Path(__file__).parents[2] / "docs" / "what-it-catches.md"
TOP = """\
# What it catches

Which regressions of real projects does it find, and how are they told?

Somebody reported each of these regressions on GitHub. `benchmarks/regressions/cases/` rebuilds each as two versions of
a program of some twenty lines, which two ranks (in one case four) train on a CPU. pytest saves a baseline of the better
version, and judges the worse one with `--ddpperf-counts=only`: by counts, without a clock. If only times can tell, the
versions run side by side with `--ddpperf-against`. `python benchmarks/regressions/run.py` runs all of them and writes
this page.

{summary}
"""
ROWS = """
## What is red

*Red* has the metrics that turned the test red, without those that follow from others. *Clock* says whether times told
it. *Line* says whether the failure names the guilty line, and *s* is the test's time; to start pytest and import torch
takes some seconds more, once a session. *Harmless* is the verdict on a version with a renamed function, a moved line or
another seed. *Back* is the verdict if the change is taken back; where both ways are `regressed` one count is worse and
another one better, and the report names both.

{table}
"""
OPEN = """
## What is not red, or is not run

{table}
"""
FOLLOWS = frozenset(name for name, count in COUNTS.items() if count.follows or not count.gated)


def caught(row: Row) -> bool:
    """Whether the worse version turned its test red by what it should."""
    return row.verdict in ("regressed", "broken") and not row.lacking


def table(cases: Mapping[int, Case], rows: Sequence[Row]) -> str:
    """What came out, for a terminal."""
    lines = [
        (
            row.number,
            cases[row.number].name,
            row.verdict or f"left out: {row.skipped}",
            " ".join(row.red),
            " ".join([*(f"-{name}" for name in row.lacking), *(f"+{name}" for name in row.moved)]),
            _yes(row.cause),
            _yes(row.line),
            f"{row.seconds:.1f}",
            " ".join((row.twin, *row.twin_red)),
            row.back + ("" if row.both else " (one side)"),
        )
        for row in rows
    ]
    heads = ("case", "program", "verdict", "red", "expected", "cause", "line", "s", "twin", "back")
    return tabulate(lines, heads, maxcolwidths=[None, 18, 16, 26, 20, None, None, None, 12, 12])


def page(cases: Mapping[int, Case], rows: Sequence[Row]) -> str:
    """The page of the documentation."""
    red = [row for row in rows if caught(row)]
    others = [row for row in rows if not caught(row)]
    twins = [row for row in rows if row.twin]
    quiet = [row for row in twins if row.twin not in ("regressed", "broken")]
    counted = [row.seconds for row in red if not row.clock]
    summary = (
        f"{len(red)} of {len(rows)} are red, {len(counted)} of them by counts alone, each of these within "
        f"{max(counted, default=0.0):.0f} s. The failure names the guilty line in "
        f"{sum(row.line for row in red)} of them. Of {len(twins)} harmless changes {len(twins) - len(quiet)} are red."
    )
    text = TOP.format(summary=textwrap.fill(summary, 120))
    if red:
        heads = ("what the change did", "reported in", "red", "clock", "line", "s", "harmless", "back")
        text += ROWS.format(table=_markdown(heads, [_red_row(cases[row.number], row) for row in red]))
    if others:
        why = ("what the change did", "reported in", "why")
        text += OPEN.format(table=_markdown(why, [_open_row(cases[row.number], row) for row in others]))
    return text


def _red_row(case: Case, row: Row) -> Sequence[str]:
    metrics = [name for name in row.red if name not in FOLLOWS] or [row.verdict]
    red = ", ".join(f"`{name}`" for name in metrics)
    told = (_yes(row.clock), _yes(row.line), f"{row.seconds:.1f}", row.twin or "-", row.back)
    return (case.title, _threads(case), red, *told)


def _open_row(case: Case, row: Row) -> Sequence[str]:
    return case.title, _threads(case), case.left_out or case.blind or row.skipped or f"the verdict is `{row.verdict}`"


def _threads(case: Case) -> str:
    return ", ".join(f"[{thread}]({url(thread)})" for thread in case.threads)


def _markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *lines))


def _yes(fact: bool) -> str:  # noqa: FBT001  a cell of the table
    return "yes" if fact else "no"
