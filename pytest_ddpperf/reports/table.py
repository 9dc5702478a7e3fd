"""A table for the terminal, in the widest form that fits."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.lines import INDENT, JOINED, clipped, folded, printable, shortened, whom, wrapped

NOTHING = "-"
_NAME, _SHORTEST_NAME = 24, 12  # characters of a name that a narrow column leaves, and that a narrow table leaves
_NARROWEST = 20  # columns of a terminal that is written for
_GAP = 2  # columns between two columns of the table
_COLOURS: Mapping[str, str] = {
    Verdict.IMPROVED.value: "green",
    Verdict.UNCHANGED.value: "green",
    Verdict.OK.value: "green",
    Verdict.DOES_NOT_FIT.value: "yellow",
    Verdict.INCOMPATIBLE.value: "yellow",
    Verdict.INCONCLUSIVE.value: "yellow",
    Verdict.REGRESSED.value: "red",
    Verdict.BROKEN.value: "red",
}


@dataclass(frozen=True, slots=True)
class RowNote:
    """A remark on some of the rows, which it names by their first cells."""

    text: str
    names: tuple[str, ...]
    before: str = ""  # what stands before the names

    def line(self, of: int, short: Mapping[str, str] | None = None, width: int | None = None) -> str:
        """The remark behind those of so many benchmarks that it concerns."""
        return f"{self.before} {whom(tuple(map(printable, self.names)), of, short, width)}: {self.text}".lstrip()


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text."""

    headers: tuple[str, ...]  # of the columns; a unit stands on a second line
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str | RowNote, ...] = ()  # below the rows
    title: str = ""  # what holds for all rows
    left: int = 1  # how many columns at the left are words and not numbers
    right: int = 1  # how many at the right
    above: tuple[str | RowNote, ...] = ()  # before the title: what is to be read first
    narrower: tuple[str, ...] = ()  # columns that lose first their intervals, then their place, one after the other
    legend: Mapping[str, str] = field(default_factory=dict)  # what a header or another word means


def render(table: Table, width: int | None = None, paint: Callable[[str], str] = str) -> str:
    """The table as plain text: its title, the rows, the notes, a line each, then the meaning of its words."""
    if width is not None:
        width = max(width, _NARROWEST)
    table = replace(table, rows=tuple(tuple(map(printable, row)) for row in table.rows))
    form, short = _fitting(table, width)
    paragraphs = (_paragraph(table, row, width or 0, paint) for row in table.rows)
    body = _lines(form, paint) if form else list(chain.from_iterable(paragraphs))
    shown = {_word(header) for header in (form or table).headers}
    left_out = [] if form is None else _left_out(table, form)
    meanings = [
        f"{word}: {meaning}"
        for word, meaning in table.legend.items()
        if word in shown or word not in map(_word, table.headers)
    ]
    of = len(table.rows)
    full = {} if width is None else shortened([row[0] for row in table.rows], width)
    blocks = [
        _told(table.above, of, full, width),
        [*(wrapped(table.title.split("\n"), width) if table.title else []), *body],
        _told(table.notes, of, short, width),
        wrapped([*meanings, *left_out], width),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _told(notes: Sequence[str | RowNote], of: int, names: Mapping[str, str], width: int | None) -> list[str]:
    """Remarks on so many rows, by the names that these have here; those on rows are not longer than one reads."""
    return [
        line
        for note in notes
        for line in (wrapped([note], width) if isinstance(note, str) else clipped(note.line(of, names, width), width))
    ]


def terminal_width() -> int | None:
    """The columns of standard output; None where it is no terminal and the environment names no ``COLUMNS``."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return shutil.get_terminal_size().columns
    return None


def verdict_painter(markup: Callable[..., str]) -> Callable[[str], str]:
    """What gives a verdict its colour, by the ``markup`` of pytest's terminal writer; other cells stay as they are."""

    def paint(cell: str) -> str:
        return markup(cell, **{_COLOURS[cell]: True}) if cell in _COLOURS else cell

    return paint


def _fitting(table: Table, width: int | None) -> tuple[Table | None, Mapping[str, str]]:
    """The widest form that leaves enough of the names, and these as it has them; no form where none fits."""
    if width is None or not table.rows:
        return table, {}
    forms = list(_forms(table))
    for enough, tried in ((_NAME, forms), (_SHORTEST_NAME, forms[-1:])):
        for form in tried:
            widths = _widths(form)
            room = width - sum(widths[form.left :]) - _GAP * (len(widths) - 1)
            if room >= sum(min(natural, enough) for natural in widths[: form.left]):
                return _cut(form, widths[: form.left], room)
    return None, shortened([row[0] for row in table.rows], max(_SHORTEST_NAME, width * 2 // 3))


def _cut(table: Table, widths: Sequence[int], room: int) -> tuple[Table, Mapping[str, str]]:
    """The table with its names cut so that their columns take no more than ``room``; the widest give up most."""
    most = max(widths)
    while sum(min(natural, most) for natural in widths) > room:
        most -= 1
    short = [shortened((row[i] for row in table.rows), most) for i in range(table.left)]
    rows = (tuple(short[i][c] if i < table.left else c for i, c in enumerate(row)) for row in table.rows)
    return replace(table, rows=tuple(rows)), short[0]


def _forms(table: Table) -> Iterator[Table]:
    """The table as it is, then ever narrower ones."""
    yield table
    for word in table.narrower:
        column = next((i for i, header in enumerate(table.headers) if _word(header) == word), None)
        if column is None:
            continue
        if any(row[column].endswith("]") for row in table.rows):
            table = _changed(table, column, lambda cell: (_parts(cell)[0],))
        else:
            table = _changed(table, column, lambda _: ())
        yield table


def _changed(table: Table, column: int, change: Callable[[str], tuple[str, ...]]) -> Table:
    """The table with a column changed, or without it."""

    def new(row: tuple[str, ...]) -> tuple[str, ...]:
        return (*row[:column], *change(row[column]), *row[column + 1 :])

    return replace(table, headers=new(table.headers), rows=tuple(map(new, table.rows)))


def _left_out(table: Table, form: Table) -> list[str]:
    """What a terminal of more columns would show."""
    shown = {_word(header): header for header in form.headers}
    gone = [_word(header) for header in table.headers if _word(header) not in shown]
    bare = [word for header in table.headers if shown.get(word := _word(header), header) != header]
    if not gone and not bare:
        return []
    widths = _widths(table)
    columns = sum(min(width, _NAME) for width in widths[: table.left]) + sum(widths[table.left :])
    intervals = [f"intervals of {', '.join(bare)}"] if bare else []
    return [
        f"not shown: {', '.join([*gone, *intervals])}; {columns + _GAP * (len(widths) - 1)} columns have room for all"
    ]


def _word(header: str) -> str:
    return header.partition("\n")[0]


def _widths(table: Table) -> list[int]:
    return [
        max(map(len, (*header.split("\n"), *cells)))
        for header, cells in zip(table.headers, _columns(table), strict=True)
    ]


def _columns(table: Table) -> list[tuple[str, ...]]:
    """The cells, column by column."""
    columns = zip(*table.rows, strict=True)
    return [column if i < table.left else _aligned(column) for i, column in enumerate(columns)]


def _lines(table: Table, paint: Callable[[str], str]) -> list[str]:
    if not table.rows:
        return []
    lines = _grid(table)
    height = len(lines) - len(table.rows)
    painted = (_painted(line, row[-1], paint) for line, row in zip(lines[height:], table.rows, strict=True))
    return [*lines[:height], *painted]


def _grid(table: Table) -> list[str]:
    from tabulate import tabulate

    numbers = len(table.headers) - table.left - table.right
    grid = tabulate(
        [table.headers, *zip(*_columns(table), strict=True)],
        tablefmt="simple",
        disable_numparse=True,  # the cells are text that is already formatted
        preserve_whitespace=True,
        colalign=("left",) * table.left + ("right",) * numbers + ("left",) * table.right,
    )
    # Headers given as such would make every column two characters wider; as a row they only lack their rule,
    # which stands above and below the rows.
    rule, *body, _ = (line.rstrip() for line in grid.splitlines())
    height = max(header.count("\n") for header in table.headers) + 1
    return [*body[:height], rule, *body[height:]]


def _aligned(cells: tuple[str, ...]) -> tuple[str, ...]:
    """The cells of a column, its intervals made equally wide, so that the values before them stand in one line."""
    room = max(len(_parts(cell)[1]) for cell in cells)
    return tuple(value + interval.ljust(room) for value, interval in map(_parts, cells))


def _parts(cell: str) -> tuple[str, str]:
    """``41.8 [41.2, 42.4]`` in two: the value, and the interval with the space before it."""
    value = cell.partition("[")[0].rstrip()
    return value, cell.removeprefix(value)


def _paragraph(table: Table, row: tuple[str, ...], width: int, paint: Callable[[str], str]) -> list[str]:
    """A row as its words, with the verdict behind them, and its values below, each by its column's name."""
    words = " ".join(row[: table.left])
    values = [
        " ".join((name, cell, *unit)).replace(" ", JOINED)
        for header, cell in zip(table.headers[table.left :], row[table.left :], strict=True)
        if cell != NOTHING
        for name, *unit in [_parts(header)[0].split("\n")]
    ]
    head = words
    if table.right:
        *values, _ = values
        head = f"{words}: {row[-1]}"
    *before, last = folded(head, width)
    lines = folded(", ".join(values), width - len(INDENT))
    return [*before, _painted(last, row[-1], paint), *(INDENT + line.replace(JOINED, " ") for line in lines)]


def _painted(line: str, cell: str, paint: Callable[[str], str]) -> str:
    return line.removesuffix(cell) + paint(cell) if cell and line.endswith(cell) else line
