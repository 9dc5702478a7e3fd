"""A table for the terminal, in the widest form that fits."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_ddpperf.records.verdict import Verdict

NOTHING = "-"
_INDENT = "  "
_COLOURS: Mapping[str, str] = {
    Verdict.IMPROVED.value: "green",
    Verdict.UNCHANGED.value: "green",
    Verdict.INCOMPATIBLE.value: "yellow",
    Verdict.INCONCLUSIVE.value: "yellow",
    Verdict.REGRESSED.value: "red",
    Verdict.BROKEN.value: "red",
}
_FOLD = 24  # characters of a variant's name, where room is scarce
_JOINED = "\u00a0"  # a space that no line is broken at


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text."""

    headers: tuple[str, ...]  # of the columns; a unit stands on a second line
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  # below the rows
    title: str = ""  # what holds for all rows
    left: int = 1  # how many columns at the left are words and not numbers
    right: int = 1  # how many at the right


def render(table: Table, width: int | None = None, paint: Callable[[str], str] = str) -> str:
    """The table as plain text: its title, the rows, then the notes, a line each."""
    title = wrapped(table.title.split("\n"), width) if table.title else []
    return "\n".join([*title, *_body(table, width, paint), *wrapped(table.notes, width)])


def verdict_painter(markup: Callable[..., str]) -> Callable[[str], str]:
    """What gives a verdict its colour, by the ``markup`` of pytest's terminal writer; other cells stay as they are."""

    def paint(cell: str) -> str:
        return markup(cell, **{_COLOURS[cell]: True}) if cell in _COLOURS else cell

    return paint


def _body(table: Table, width: int | None, paint: Callable[[str], str]) -> list[str]:
    if not table.rows:
        return []
    for form in _forms(table):
        lines = _grid(form)
        if width is None or max(map(len, lines)) <= width:
            height = len(lines) - len(form.rows)
            painted = (_painted(line, row[-1], paint) for line, row in zip(lines[height:], form.rows, strict=True))
            return [*lines[:height], *painted]
    return [line for row in table.rows for line in _paragraph(table, row, width, paint)]


def _forms(table: Table) -> Iterator[Table]:
    """The table as it is, then ever narrower ones."""
    yield table
    if table.left > 1:
        yield _grouped(table)
        table = _grouped(table, _FOLD)
        yield table
    with_intervals = [i for i in range(len(table.headers)) if any(row[i].endswith("]") for row in table.rows)]
    for column in with_intervals[:-1]:
        rows = (tuple(_parts(cell)[0] if i == column else cell for i, cell in enumerate(row)) for row in table.rows)
        table = replace(table, rows=tuple(rows))
        yield table


def _grouped(table: Table, fold: int | None = None) -> Table:
    """The table with the cells of the first column as headings above those of the second, which may be folded."""
    rows: list[tuple[str, ...]] = []
    group = ""
    for first, second, *others in table.rows:
        *above, last = [second] if fold is None else _folded(second, fold)
        above = [first] * (first != group) + [_INDENT + line for line in above]
        rows += [(line, *("" for _ in others)) for line in above]
        rows.append((_INDENT + last, *others))
        group = first
    headers = (table.headers[0], *table.headers[2:])
    return replace(table, headers=headers, rows=tuple(rows), left=table.left - 1)


def _grid(table: Table) -> list[str]:
    from tabulate import tabulate

    numbers = len(table.headers) - table.left - table.right
    columns = [_aligned(column) for column in zip(*table.rows, strict=True)]
    grid = tabulate(
        [table.headers, *zip(*columns, strict=True)],
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
    at = cell.find(" [") if cell.endswith("]") else -1
    return (cell, "") if at < 0 else (cell[:at], cell[at:])


def _paragraph(table: Table, row: tuple[str, ...], width: int | None, paint: Callable[[str], str]) -> list[str]:
    """A row as a line with its words, and indented ones with its numbers."""
    words = " ".join(row[: table.left])
    values = [
        " ".join((name, cell, *unit)).replace(" ", _JOINED)
        for header, cell in zip(table.headers[table.left :], row[table.left :], strict=True)
        if cell != NOTHING
        for name, *unit in [header.split("\n")]
    ]
    if table.right:
        *values, _ = values
        head = _painted(f"{words}: {row[-1]}", row[-1], paint)
    else:
        head = words
    lines = [", ".join(values)] if width is None else _folded(", ".join(values), width - len(_INDENT))
    return [head, *(_INDENT + line.replace(_JOINED, " ") for line in lines)]


def _painted(line: str, cell: str, paint: Callable[[str], str]) -> str:
    return line.removesuffix(cell) + paint(cell) if cell and line.endswith(cell) else line


def wrapped(lines: Sequence[str], width: int | None) -> list[str]:
    """The lines, broken where they are longer than ``width``; what follows is indented. None: as they are."""
    if width is None:
        return list(lines)
    return [part for line in lines for part in _broken(line, width)]


def _broken(line: str, width: int) -> list[str]:
    inner = _INDENT * (2 if line.startswith(_INDENT) else 1)
    kept = line.replace(" %", f"{_JOINED}%")
    return [part.replace(_JOINED, " ") for part in _folded(kept, width, inner)]


def _folded(line: str, width: int, indent: str = "") -> list[str]:
    folded = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return folded or [""]
