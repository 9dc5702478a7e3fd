"""A comment for a pull request, in GitHub's Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import GREEN
from pytest_ddpperf.reports import phrases, remarks, summary
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.lines import printable, with_names
from pytest_ddpperf.reports.table import NOTHING, Table
from pytest_ddpperf.units import format_count

MARK = "<!-- pytest-ddpperf -->"  # by which an action finds the comment that it updates
_LINES, _FOLD = 40, 7  # lines of a comment; lines that folding a table and notes adds
_UNDECIDED, _NOTES, _REASONS = 2, 2, 5  # metrics that are undecided, notes, and reasons of one red benchmark
_LEAST, _ROWS = 3, 150  # rows of a comment's table, and the most of any
_LONGEST = 400  # characters of a line
# Markup inside a line, and at its beginning; an underscore between letters is none.
_MARKUP = re.compile(r"[\\`*\[\]<&|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|^[-+](?=[-\s]|$)|^[#>]")
_NUMBERED = re.compile(r"^(\d+)(?=[.)](?:\s|$))")  # a number that would begin a list

_LINKS = re.compile(r"([@#](?=\w)|://|www\.)", re.IGNORECASE)  # what GitHub links: people, issues and addresses
_FOLDERS = re.compile(r"(?<![\w:/.~])~?/(?:[^\s/\"']+/)+")  # of a machine, which begin the path of a file
_DOLLAR = "<span>$</span>"  # no sign of mathematics, as GitHub asks to write it


def markdown(run: Run) -> str:
    """Returns a comment with failed benchmarks and their causes, and with the other benchmarks in a folded section."""
    results = summary.worst_first(run.results)
    head, lines = [MARK, f"## ddpperf: {plain(remarks.headline(run))}"], list(map(plain, remarks.run_lines(run)))
    if not results:
        return "\n\n".join([*head, *lines]) + "\n"
    undecided = remarks.undecided_lines(with_names(results))
    told = [_listed(phrases.first_of(undecided, _UNDECIDED)), *lines]
    notes, facts = _listed(phrases.first_of(remarks.all_findings(results), _NOTES)), plain(remarks.facts_line(run))
    room = _LINES - _FOLD - sum(text.count("\n") + 2 for text in filter(None, (*head, *told, notes, facts)))
    red, others = _red_first(results, room - _LEAST)
    rows = room - (len(red) + 1 if red else 0)
    blocks = [*head, "\n".join(red), *told, _folded(others, max(rows, _LEAST), notes, red), facts]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _red_first(results: Sequence[Result], most: int) -> tuple[list[str], list[Result]]:
    """Returns about ``most`` lines on failed benchmarks, and the benchmarks that these lines do not describe."""
    lines: list[str] = []
    others = list(results)
    red = sorted((result for result in results if result.red), key=lambda result: -result.severity)
    for number, result in enumerate(red):
        reason = [f"  - {plain(reason)}" for reason in phrases.first_of(remarks.red_lines(result), _REASONS)]
        if number and len(lines) + len(reason) + 2 > most:
            return [*lines, f"- and {len(red) - number} more"], others
        lines += [f"- **{result.verdict.value}**: {code(f'{result.test} {result.name}')}", *reason]
        others = [each for each in others if each is not result]
    return lines, others


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {plain(line)}" for line in lines)


def _folded(results: Sequence[Result], most: int, notes: str, red: Sequence[str]) -> str:
    if not results and not notes:
        return ""
    shown = sorted(results, key=lambda result: result.verdict in GREEN)[:most]
    number = format_count(len(results), "other benchmark" if red else "benchmark")
    title = f"{len(shown)} of {number}" if len(shown) < len(results) else number if results else "Notes"
    table = markdown_table(summary.benchmark_table(shown)) if shown else ""
    parts = (f"<details><summary>{title}</summary>", table, notes, "</details>")
    return "\n\n".join(filter(None, parts))


def code(text: str) -> str:
    """Returns the text as a code span, in which nothing is markup, a link or a mention."""
    text = printable(text)
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    room = " " if text.startswith(("`", " ")) or text.endswith(("`", " ")) else ""
    return f"{fence}{room}{text}{room}{fence}"


def plain(text: str) -> str:
    """Returns the text with escapes, so that GitHub shows no markup, links or mentions; removes paths of folders."""
    text = _FOLDERS.sub(".../", printable(text))
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    text = _NUMBERED.sub(r"\1\\", _MARKUP.sub(r"\\\g<0>", text))
    return _LINKS.sub("\\1\u200b", text.replace("$", _DOLLAR))


def markdown_table(table: Table) -> str:
    """Returns the first rows of a table, with its first column as code, and the table's notes."""
    numbers = len(table.headers) - table.left - table.right
    rules = ["---"] * table.left + ["--:"] * numbers + ["---"] * table.right
    rows = [
        [code(name).replace("|", r"\|"), *(cell if cell == NOTHING else plain(cell) for cell in cells)]
        for name, *cells in table.rows[:_ROWS]
    ]
    lines = [[plain(header.replace("\n", " ")) for header in table.headers], rules, *rows]
    more = [f"\nand {len(table.rows) - _ROWS} more"] if len(table.rows) > _ROWS else []
    notes = [f"\n{plain(note)}" for note in table.notes]
    return "\n".join([*(f"| {' | '.join(line)} |" for line in lines), *more, *notes])
