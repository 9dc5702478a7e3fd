"""A comment for a pull request, in GitHub's Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import GREEN
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.lines import names_of, printable
from pytest_ddpperf.reports.remarks import (
    all_findings,
    common_text,
    facts_line,
    headline,
    overall_lines,
    reasons,
    undecided_lines,
)
from pytest_ddpperf.reports.summary import benchmark_table, worst_first
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import format_count

MARK = "<!-- pytest-ddpperf -->"  # by which an action finds the comment that it updates
_TOLD, _ROWS = 20, 150  # red benchmarks and rows of a comment, of which GitHub takes 65536 characters
_FEW, _UNDECIDED, _NOTES = 12, 5, 8  # rows, but all that did not pass has one; metrics that are undecided; notes
_LONGEST = 400  # characters of a line
# Markup inside a line, and at its beginning; an underscore between letters is none.
_MARKUP = re.compile(r"[\\`*\[\]<&|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+](?=[-\s]|$)|^[#>]")
_NUMBERED = re.compile(r"^(\d+)(?=[.)](?:\s|$))")  # begins a list

_LINKS = re.compile(r"([@#](?=\w)|://|www\.)", re.IGNORECASE)  # what GitHub links: people, issues and addresses
_DOLLAR = "<span>$</span>"  # no sign of mathematics, as GitHub asks to write it


def markdown(run: Run) -> str:
    """What became worse and why, then all benchmarks, folded; names are shown as they are, whatever they hold."""
    results = worst_first(run.results)
    red = sorted((result for result in results if result.red), key=lambda result: -result.severity)
    named = list(zip(names_of(results), results, strict=True))
    blocks = [MARK, f"## ddpperf: {plain(headline(results))}"]
    if run.interrupted:
        blocks.append(f"The run ended before all its tests had run: {plain(run.interrupted)}")
    for result in red[:_TOLD]:
        lines = [f"- {plain(line)}" for line in reasons(result)]
        blocks.append("\n".join([f"**{result.verdict.value}**: {code(f'{result.test} {result.name}')}", "", *lines]))
    if len(red) > _TOLD:
        blocks.append(f"and {len(red) - _TOLD} more")
    if results:
        most = max(_FEW, sum(result.verdict not in GREEN for result in results))
        shown, number = sorted(results, key=lambda result: result.verdict in GREEN)[:most], len(results)
        title = "All" if number <= most else f"{most} of"
        blocks += [
            "\n".join(f"- {plain(line)}" for line in undecided_lines(named)[:_UNDECIDED]),
            *map(plain, (*common_text(run.common_change), *overall_lines(results))),
            _folded(f"{title} {format_count(number, 'benchmark')}", markdown_table(benchmark_table(shown))),
            _remarks(results),
        ]
        blocks.append(plain(facts_line(run)))
    return "\n\n".join(filter(None, blocks)) + "\n"


def code(text: str) -> str:
    """The text as it is, in a span of code: nothing in it is markup, a link or a mention."""
    text = printable(text)
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    room = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return f"{fence}{room}{text}{room}{fence}"


def plain(text: str) -> str:
    """A sentence in which nothing is markup, mathematics, a link or a mention."""
    text = printable(text)
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    text = _NUMBERED.sub(r"\1\\", _MARKUP.sub(r"\\\g<0>", text))
    return _LINKS.sub("\\1\u200b", text.replace("$", _DOLLAR))


def markdown_table(table: Table) -> str:
    """A table, its first column as code; of many rows the first ones."""
    numbers = len(table.headers) - table.left - table.right
    rules = ["---"] * table.left + ["--:"] * numbers + ["---"] * table.right
    rows = [[code(row[0]).replace("|", r"\|"), *(_cell(cell) for cell in row[1:])] for row in table.rows[:_ROWS]]
    lines = [[plain(header.replace("\n", " ")) for header in table.headers], rules, *rows]
    more = [f"\nand {len(table.rows) - _ROWS} more"] if len(table.rows) > _ROWS else []
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *more])


def _cell(text: str) -> str:
    return text if text == NOTHING else plain(text)


def _remarks(results: Sequence[Result]) -> str:
    lines = [f"- {plain(line)}" for line in all_findings(results)]
    more = [f"- and {len(lines) - _NOTES} more"] if len(lines) > _NOTES else []
    return _folded("Notes", "\n".join([*lines[:_NOTES], *more])) if lines else ""


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"
