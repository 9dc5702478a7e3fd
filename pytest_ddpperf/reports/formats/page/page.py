"""A page as data, and as HTML: one file without anything beside it."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median_low
from typing import Any, TypeAlias

from pytest_ddpperf.reports.charts.chart import CUT, Axis, Chart, ChartSeries, in_units, remark_of, thinned, view_of
from pytest_ddpperf.reports.lines import JOINED, printable
from pytest_ddpperf.reports.table import NOTHING, Table

Block: TypeAlias = "Chart | Table | Mapping[str, str] | tuple[str, ...]"
"""A chart, a table, facts by their names, or sentences."""

_HERE = Path(__file__).parent
_NUMBER = re.compile(r"[-+>]*\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
_PIECES = re.compile(r"[^_\-:\[/.]*[_\-:\[/.]*")  # of a name
_POINTS = 400_000  # of all charts together: a page of 10 MB
_FEWEST = 10  # points of a line, however many lines there are
_OF_CHART = 40_000  # points of one chart: what a browser draws without a pause

_LEVEL = re.compile(r"[\d.]+ % CI")  # in which no line is broken
_WHOLE = 12  # digits of a place: all that it has but for what a division leaves


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part with a title; blocks without content are left out."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PageEntry:
    """What can be opened: a benchmark with all that is known of it."""

    title: str
    verdict: str = ""
    sections: tuple[PageSection, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRow:
    """A row of the overview."""

    cells: tuple[str, ...]
    verdict: str = ""  # what the row can be filtered by
    verdict_text: str = ""  # the same with what is said beside it; empty for the verdict alone
    severity: int = 0  # of the verdict, for sorting
    entry: int | None = None  # the place of what it leads to
    change: tuple[float, float, float] | None = None  # the change that is drawn: value, low and high, as fractions
    tolerance: float | None = None  # drawn beside it
    search: str = ""  # what else it is found by
    numbers: Mapping[int, float] = field(default_factory=dict)  # what cells with units of their own are sorted by


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """What a page shows.

    Attributes:
        title: its heading.
        facts: below the title: code, day, machine.
        lines: what all came to, a sentence each.
        noun: what a row is: ``benchmark``.
        headers: of the overview; a unit stands on a second line.
        left: how many of its first columns are words.
        rows: of the overview.
        notes: below it.
        entries: what its rows lead to.
        sections: what concerns several rows.
    """

    title: str
    facts: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    noun: str
    headers: tuple[str, ...]
    left: int = 1
    rows: tuple[PageRow, ...] = ()
    notes: tuple[str, ...] = ()
    entries: tuple[PageEntry, ...] = ()
    sections: tuple[PageSection, ...] = ()


@dataclass(slots=True)
class _Blocks:
    """The charts and the blocks of a page, each once: what shows them has their numbers."""

    most: int  # points of a series
    numbers: dict[Chart, int] = field(default_factory=dict)
    made: dict[str, int] = field(default_factory=dict)  # number of each block, by its data

    def section(self, section: PageSection) -> dict[str, Any]:
        made = [_json(self._block(block)) for block in section.blocks if filled(block)]
        return {
            "title": printable(section.title),
            "blocks": [self.made.setdefault(block, len(self.made)) for block in made],
        }

    def _block(self, block: Block) -> dict[str, Any]:
        if isinstance(block, Chart):
            return {"chart": self.numbers.setdefault(block, len(self.numbers))}
        if isinstance(block, Table):
            return {"table": _table_data(block)}
        if isinstance(block, Mapping):
            return {"facts": [[printable(name), printable(value)] for name, value in block.items()]}
        return {"lines": list(map(printable, block))}

    @property
    def data(self) -> list[dict[str, Any]]:
        most = {chart: max(_FEWEST, min(self.most, _OF_CHART // len(chart.series))) for chart in self.numbers}
        return [chart_data(thinned(chart, points)) for chart, points in most.items()]


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def filled(block: Block) -> bool:
    """Returns whether a block has any content."""
    if isinstance(block, Chart):
        return bool(block.series)
    return bool(block.rows) if isinstance(block, Table) else bool(block)


def _table_data(table: Table) -> dict[str, Any]:
    meanings = [f"{word}: {meaning}" for word, meaning in table.legend.items()]
    return {
        "caption": printable(table.title.replace("\n", "; ")),
        "headers": [printable(header.replace("\n", " ")) for header in table.headers],
        "rows": [[printable(cell) for cell in row] for row in table.rows],
        "left": table.left,
        "right": table.right,
        "notes": list(map(printable, (*table.notes, *meanings))),
    }


def _longest(page: Page) -> int:
    """Returns how many points a line may have, so that all charts together have not too many."""
    series = sum(
        len(block.series)
        for section in (*page.sections, *(section for entry in page.entries for section in entry.sections))
        for block in section.blocks
        if isinstance(block, Chart) and block.style == "lines"
    )
    return max(_FEWEST, _POINTS // max(series, 1))


def html_of(page: Page) -> str:
    """The page as HTML: style, script and data are in it, so that it needs no network and nothing beside it."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    blocks = _Blocks(_longest(page))
    entries = [[blocks.section(section) for section in entry.sections] for entry in page.entries]
    sections = [blocks.section(section) for section in page.sections]
    data = _json({"entries": entries, "sections": sections, "charts": blocks.data})
    text = f'{{"blocks":[{",".join(blocks.made)}],{data[1:]}'
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(
        page=page,
        verdicts=Counter(row.verdict for row in sorted(page.rows, key=lambda row: -row.severity) if row.verdict),
        cells=_cells,
        bar=_bar(page.rows),
        drawn_after=_drawn_after(page),
        printable=printable,
        broken=_broken,
        # Our own files, and JSON that cannot end its element.
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),  # noqa: S704
        script=Markup((_HERE / "page.js").read_text(encoding="utf-8")),  # noqa: S704
        data=Markup(text.replace("<", "\\u003c")),  # noqa: S704
    )


def _cells(row: PageRow, page: Page) -> list[tuple[str, str | None]]:
    """Each cell of a row: its text and what it is sorted by, which for words is None."""
    return [
        (printable(cell), None if i < page.left else repr(row.numbers[i]) if i in row.numbers else sort_key(cell))
        for i, cell in enumerate(row.cells)
    ]


def sort_key(cell: str) -> str:
    """The number that a cell begins with, as a number is written in JSON; empty if there is none."""
    number = _NUMBER.match(cell)
    if cell == NOTHING or number is None:
        return ""
    return repr(float(number[0].replace(",", "").lstrip(">")))


def _broken(name: str) -> Any:
    """A name that lines are broken in behind its marks, not inside its words."""
    from markupsafe import Markup

    return Markup("<wbr>").join(_PIECES.findall(printable(name)))


def _drawn_after(page: Page) -> int | None:
    """The column behind which changes are drawn; None if no row has one."""
    changes = [i for i, header in enumerate(page.headers) if header.startswith("change")]
    return changes[0] if changes and any(row.change is not None for row in page.rows) else None


_MIDDLE, _EDGE = 46, 42  # of the drawn change, in pixels; the edge is so far from the middle
_WIDEST = 5  # times the typical end of an interval: a change that is larger is cut off


def _bar(rows: Sequence[PageRow]) -> Any:
    """Returns a function that maps a row to the bar of its change in pixels, or to None; all bars have one scale."""
    changes = [row.change for row in rows if row.change is not None]
    typical = median_low([max(map(abs, change)) for change in changes]) if changes else 0.0
    largest = max((abs(value) for value, *_ in changes), default=0.0)
    most = max(typical, min(largest, _WIDEST * typical))
    most = most if math.isfinite(most) and most else 0.01

    def pixels(share: float) -> float:
        share = share if math.isfinite(share) else math.copysign(most, share)
        return round(_MIDDLE + _EDGE * max(-1.0, min(1.0, share / most)), 1)

    def bar(row: PageRow) -> dict[str, Any] | None:
        if row.change is None:
            return None
        value, low, high = map(pixels, row.change)
        return {
            "value": value,
            "low": low,
            "high": max(high, low + 1),
            "tolerance": None if row.tolerance is None or row.tolerance > most else pixels(row.tolerance),
        }

    return bar


def chart_data(chart: Chart) -> dict[str, Any]:
    """Title, axes and series, with all numbers in the unit that the axis names."""
    chart = in_units(chart)
    names = [series.name for series in chart.series]
    references = [_series(series) for series in chart.references]
    for series, data in zip(chart.references, references, strict=True):
        if series.of in names:
            data["of"] = names.index(series.of)
    found: dict[str, Any] = {
        "kind": chart.kind,
        "title": printable(chart.title),
        "style": chart.style,
        "subject": "" if len(chart.benchmarks) == 1 else printable(chart.subject),
        "x": _axis(chart.x),
        "y": _axis(chart.y),
        "series": [_series(series) for series in chart.series],
        "references": references,
    }
    view = view_of(chart)
    found["shown"] = [view.low, view.high]
    if view.cut:
        found["cut"] = CUT
    remark = _LEVEL.sub(lambda level: level[0].replace(" ", JOINED), remark_of(chart))
    return {**found, "note": remark} if remark else found


def _axis(axis: Axis) -> dict[str, Any]:
    data: dict[str, Any] = {"name": printable(axis.name), "unit": axis.unit}
    if axis.labels:
        data["labels"] = list(map(printable, axis.labels))
    return {**data, "log": True} if axis.log else data


def _series(series: ChartSeries) -> dict[str, Any]:
    """Its numbers as lists; ``x`` is the first one where whole numbers follow it, ends are left out where none is."""
    xs = [_short(each.x, _WHOLE) for each in series.points]
    consecutive = xs == [xs[0] + i for i in range(len(xs))]
    ends = {"low": [each.low for each in series.points], "high": [each.high for each in series.points]}
    known = any(end is not None for several in ends.values() for end in several)
    return {
        "name": printable(series.name),
        "x": xs[0] if consecutive else xs,
        "y": [_short(each.y) for each in series.points],
        **({name: [None if end is None else _short(end) for end in ends[name]] for name in ends} if known else {}),
    }


def _short(value: float, digits: int = 5) -> float | int:
    """A number of so many digits."""
    number = float(f"{value:.{digits}g}")
    return int(number) if number.is_integer() else number
