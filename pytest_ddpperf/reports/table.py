"""A table for the terminal: as a grid, or row by row if the terminal is too narrow; names are never cut."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Generic, TypeAlias, TypeVar

from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.lines import INDENT, JOINED, columns, folded, printable, wrapped
from pytest_ddpperf.reports.phrases import NOISY, confidence_text
from pytest_ddpperf.units import format_percent, scale

NOTHING = "-"
_NARROWEST = 20  # columns of a terminal that is written for
_COLOURS: Mapping[str, str] = {
    Verdict.DOES_NOT_FIT.value: "yellow",
    Verdict.INCOMPATIBLE.value: "yellow",
    Verdict.INCONCLUSIVE.value: "yellow",
    Verdict.REGRESSED.value: "red",
    Verdict.BROKEN.value: "red",
    "failed": "red",  # by another rule than its verdict
}
T = TypeVar("T")
Paint: TypeAlias = "Callable[[str, str], str]"
"""A function (text, name of a colour) -> coloured text."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text, with title, headers, rows and notes."""

    headers: tuple[str, ...]  # of the columns; a unit stands on a second line
    rows: tuple[tuple[str, ...], ...]  # a row with only a first cell is the heading of the rows below
    notes: tuple[str, ...] = ()  # below the rows
    title: str = ""  # what holds for all rows
    left: int = 1  # how many columns at the left are words and not numbers
    right: int = 1  # how many at the right
    legend: Mapping[str, str] = field(default_factory=dict)  # what a header or another word means


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity(Generic[T]):
    """A column of numbers; its header names the unit with an SI prefix, such as ms.

    Attributes:
        value: function that returns the value of an item; None if the item has no value.
        unit: SI base unit, ``B``, a rate such as ``samples/s``, or ``1``; ``%`` for shares.
        interval: function that returns the interval of the value; the header shows its confidence.
        text: function that makes the cell from an item and a formatter of numbers; default: value and interval.
        alone: whether this column has its own SI prefix; all other columns with one SI unit share a prefix.
    """

    value: Callable[[T], float | None]
    unit: str
    interval: Callable[[T], Interval | None] = lambda _: None
    text: Callable[[T, Callable[[float], str]], str] | None = None
    alone: bool = False

    def cell(self, item: T, number: Callable[[float], str]) -> str:
        """Returns the text for the value of ``item``; ``number`` formats single numbers."""
        value = self.value(item)
        if value is None:
            return NOTHING
        return self.text(item, number) if self.text else with_interval(number, value, self.interval(item))


Column: TypeAlias = "Callable[[T], str] | Quantity[T]"
"""A function that makes the cell of an item, or a quantity."""


def table_of(items: Iterable[T], columns: Mapping[str, Column[T]], *, every: bool = True, **more: Any) -> Table:
    """Returns a table with a row for each item, and a column for each header.

    Without ``every``, empty columns are omitted. ``more``: other fields of ``Table``.
    """
    listed = list(items)
    made = [_column(header, column, listed, [*columns.values()]) for header, column in columns.items()]
    shown = {header: cells for header, cells in made if every or {*cells} - {NOTHING}}
    return Table(headers=tuple(shown), rows=tuple(zip(*shown.values(), strict=True)), **more)


def with_meanings(table: Table, meanings: Mapping[str, str]) -> Table:
    """Returns the table with a legend: the entries of ``meanings`` for words that occur in the table."""
    words = {header.partition("\n")[0] for header in table.headers}
    words |= {word for row in table.rows for cell in row[1:] for word in re.split(r" \(|\)$", cell)}
    return replace(table, legend={word: meaning for word, meaning in meanings.items() if meaning and word in words})


def _column(header: str, column: Column[T], items: Sequence[T], columns: Sequence[Column[T]]) -> tuple[str, list[str]]:
    if not isinstance(column, Quantity):
        return header, [column(item) or NOTHING for item in items]
    header = interval_header(f"{header}\n{{}}", map(column.interval, items))
    if column.unit == "%":
        return header.format("%"), [
            column.cell(item, lambda share: format_percent(share).removesuffix(" %")) for item in items
        ]
    alike = [each for each in columns if isinstance(each, Quantity) and each.unit == column.unit and not each.alone]
    values = (each.value(item) for each in ([column] if column.alone else alike) for item in items)
    common = scale([value for value in values if value is not None], column.unit)
    told = header.format(common.unit).replace("\n ", "\n").rstrip()
    return told, [column.cell(item, common.number) for item in items]


def interval_header(header: str, intervals: Iterable[Interval | None]) -> str:
    """Returns a column's header with the confidence of its intervals, if it has intervals: ``ms [95 % CI]``."""
    levels = {interval.confidence for interval in intervals if interval is not None}
    return f"{header} [{', '.join(map(confidence_text, sorted(levels)))}]" if levels else header


def with_interval(
    number: Callable[[float], str], value: float, interval: Interval | None, *, noisy: bool = False
) -> str:
    """Returns a value with its interval, if any, formatted by ``number``: ``41.8 [41.2, 42.4]``, ``41.8 noisy``."""
    if noisy:
        return f"{number(value)} {NOISY}"
    return number(value) if interval is None else f"{number(value)} [{number(interval.low)}, {number(interval.high)}]"


def render(table: Table, width: int | None = None, paint: Paint = lambda text, _: text) -> str:
    """Returns the table as plain text: title, rows, notes and legend. ``paint`` adds a colour to a line."""
    if width is not None:
        width = max(width, _NARROWEST)
    blocks = [
        [*(wrapped(table.title.split("\n"), width) if table.title else []), *_body(table, width, paint)],
        wrapped(table.notes, width, clipped=True),
        wrapped([f"{word}: {meaning}" for word, meaning in table.legend.items()], width),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def terminal_width() -> int | None:
    """Returns the environment variable ``COLUMNS``, or else the terminal's width; None if there is neither."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def _body(table: Table, width: int | None, paint: Paint) -> list[str]:
    """Returns the lines of headers and rows; ``paint`` colours each row by its verdict."""
    if not table.rows:
        return []
    rows = [tuple(map(printable, row)) for row in table.rows]
    table = replace(table, headers=tuple(printable(each, keep="\n") for each in table.headers))
    numbers = range(table.left, len(table.headers) - table.right)
    heads = list(zip_longest(*(header.split("\n") for header in table.headers), fillvalue=""))
    cells = [[row[i] for row in rows if any(row[1:])] for i in range(len(table.headers))]
    for i in numbers:  # intervals of equal width align the values before them
        firsts = [cell.partition("[")[0].rstrip() for cell in cells[i]]
        ends = [cell.removeprefix(value) for cell, value in zip(cells[i], firsts, strict=True)]
        longest = max(map(len, ends), default=0)
        cells[i] = [value + end.ljust(longest) for value, end in zip(firsts, ends, strict=True)]
    widths = [max(map(columns, each)) for each in zip(*heads, *zip(*cells, strict=True), strict=True)]
    room = None if width is None else width - sum(2 + each for each in widths[1:])
    lines: list[str] = []
    if room is not None and room < max(columns(head[0]) for head in heads):
        blocks = [_paragraph(table, row, width or 0) for row in rows]
    else:
        long = {name for name in cells[0] if room is not None and columns(name) > room}
        cells[0] = ["" if name in long else name for name in cells[0]]
        widths[0] = max(map(columns, (*(head[0] for head in heads), *cells[0])))
        lines = [*in_columns(heads, widths, numbers), "  ".join("-" * each for each in widths)]
        values = iter(in_columns(list(zip(*cells, strict=True)), widths, numbers))
        blocks = [
            [*(folded(name, width or 0, INDENT) if name in long else []), next(values)]
            if any(others)
            else wrapped([name], width)
            for name, *others in rows
        ]
    for row, block in zip(rows, blocks, strict=True):
        words = [cell.partition(" ")[0] for cell in row[1:]]
        colour = next((_COLOURS[word] for word in words if word in _COLOURS), "")
        lines += [paint(line, colour) if colour else line for line in block]
    return lines


def in_columns(rows: Sequence[Sequence[str]], widths: Sequence[int], numbers: Container[int]) -> list[str]:
    """Returns a line for each row, with two spaces between columns; ``numbers``: indices of right-aligned columns."""
    lines = []
    for row in rows:
        spaces = [" " * (width - columns(cell)) for cell, width in zip(row, widths, strict=True)]
        filled = (space + row[i] if i in numbers else row[i] + space for i, space in enumerate(spaces))
        lines.append("  ".join(filled).rstrip())
    return lines


def _paragraph(table: Table, row: tuple[str, ...], width: int) -> list[str]:
    """Returns a row as lines: its name, then its values, each after the name of its column."""
    room = width - 2 * len(INDENT)
    values = [
        text.replace(" ", JOINED) if columns(text) <= room else text
        for header, cell in zip(table.headers[1:], row[1:], strict=True)
        if cell not in {NOTHING, ""}
        for name, *unit in [header.partition("[")[0].rstrip().split("\n")]
        for text in [" ".join((name, cell, *unit))]
    ]
    if not values:
        return wrapped([row[0]], width)
    return [*folded(row[0], width, INDENT), *(INDENT * 2 + line for line in folded(", ".join(values), room))]
