"""The table of what came out, for a terminal and for the page of the documentation."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from benchmarks.regressions.case import Case, Row, url

PAGE = Path(__file__).parents[2] / "docs" / "what-it-catches.md"
TOP = """\
# What it catches

{summary}

`benchmarks/regressions/cases/` rebuilds each regression as a better and a worse version of a program of about twenty
lines. Two ranks, in one case four, train each version on a CPU. The better version is the baseline. The plugin compares
counts, or times if only times can show the regression. Each bullet says what the worse version does, and links to the
report on GitHub.
"""
GROUPS: Mapping[str, Sequence[str]] = {
    "Collectives": ("collective_calls", "collective_bytes"),
    "Waits for the device": ("synchronisations", "allocator_calls"),
    "Memory": ("peak_tensor_bytes", "model_state_bytes", "python_objects", "loaders_kept"),
    "Other work": (),
    "Wrong training": (),
    "Times": (),
}
"""The headings of the page.

A case stands below the first that names a metric which is red. The last two are for cases that are ``broken``, and for
cases that only times show.
"""


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
    loud = [row for row in twins if row.twin in ("regressed", "broken")]
    counted = [row.seconds for row in red if not row.clock]
    least, most = min(counted, default=0.0), max(counted, default=0.0)
    summary = (
        f"{len(red)} of {len(rows)} regressions of real projects turn a test red, {len(counted)} of them by counts "
        f"alone, in {least:.1f} to {most:.0f} s. The failure names the guilty line in "
        f"{sum(row.line for row in red)} of them. Of {len(twins)} harmless changes, such as a renamed "
        f"function, {len(loud)} are red."
    )
    text = TOP.format(summary=textwrap.fill(summary, 120))
    for title in GROUPS:
        here = [_red_row(cases[row.number], row) for row in red if _group(row) == title]
        text += _section(title, here)
    return text + _section("Not red", [_open_row(cases[row.number], row) for row in others])


def _group(row: Row) -> str:
    if row.clock or row.verdict == "broken":
        return "Times" if row.clock else "Wrong training"
    return next((title for title, metrics in GROUPS.items() if set(metrics) & set(row.red)), "Other work")


def _section(title: str, lines: Sequence[str]) -> str:
    return "\n".join(["", f"## {title}", "", *(f"- {line}" for line in lines), ""]) if lines else ""


def _red_row(case: Case, row: Row) -> str:
    return _linked(case) + ("" if row.line else " The failure does not name the line.")


def _open_row(case: Case, row: Row) -> str:
    why = case.left_out or case.blind or row.skipped or f"has the verdict `{row.verdict}`"
    return f"{_linked(case)} This case {why}."


def _linked(case: Case) -> str:
    return f"[{case.title}]({url(case.threads[0])})."


def _yes(fact: bool) -> str:  # noqa: FBT001  a cell of the table
    return "yes" if fact else "no"
