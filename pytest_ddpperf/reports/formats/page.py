"""A page as data, and as one HTML file that needs no other files."""

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

from markupsafe import Markup

from pytest_ddpperf.reports.charts.chart import CUT, Axis, Chart, ChartSeries, in_units, remark_of, thinned, view_of
from pytest_ddpperf.reports.lines import printable
from pytest_ddpperf.reports.table import Table

Block: TypeAlias = "Chart | Table | Mapping[str, str] | tuple[str, ...]"
"""A chart, a table, facts by name, or sentences."""
Sections: TypeAlias = "Mapping[str, Sequence[Block]]"
"""Parts of a page by title; empty blocks and parts without blocks are not shown."""

_HERE = Path(__file__).parent
_PIECES = re.compile(r"[^_\-:\[/.]*[_\-:\[/.]*")  # of a name: where it may be broken
_MOST_FAILED = 20  # benchmarks with the reasons of their failures at the head of the page
_POINTS = 400_000  # points of all charts together, which make a page of 10 MB
_FEWEST = 10  # points of a line, however many lines there are
_OF_CHART = 40_000  # points of one chart: what a browser draws without a pause

_WHOLE = 12  # digits of a place: all that it has but for what a division leaves


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRow:
    """A benchmark: its row of the overview, and its details, which can be opened."""

    title: str  # shown on the part that opens; the page's search looks in it
    cells: tuple[str, ...]
    verdict: str  # the verdict by which rows are filtered
    verdict_text: str = ""  # the verdict with a remark; empty if there is no remark
    severity: int = 0  # of the verdict, for sorting
    reasons: tuple[str, ...] = ()  # why it failed, a sentence each: at the head of the page
    change: tuple[float, float, float] | None = None  # the change that is drawn: value, low and high, as fractions
    tolerance: float | None = None  # of the drawn change
    sections: Sections = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """The content of a page: title, facts, an overview with a row for each benchmark, and sections below."""

    title: str
    facts: tuple[str, ...] = ()  # code, day, machine
    lines: tuple[str, ...] = ()  # sentences on all benchmarks together
    headers: tuple[str, ...]  # of the overview; a unit stands on a second line
    left: int = 1  # how many of its first columns are words
    rows: tuple[PageRow, ...] = ()
    notes: tuple[str, ...] = ()  # below the overview
    sections: Sections = field(default_factory=dict)  # parts about several benchmarks


@dataclass(slots=True)
class _Blocks:
    """The charts and the other blocks of a page; equal blocks are stored once, and HTML refers to them by number."""

    charts: list[Chart] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=dict)  # number of each block, by its data

    def listed(self, sections: Sections) -> list[dict[str, Any]]:
        made = []
        for title, blocks in sections.items():
            shown = [_json(self._block(each)) for each in blocks if (each.rows if isinstance(each, Table) else each)]
            numbers = [self.made.setdefault(block, len(self.made)) for block in shown]
            made += [{"title": printable(title), "blocks": numbers}] if numbers else []
        return made

    def _block(self, block: Block) -> dict[str, Any]:
        if isinstance(block, Chart):
            self.charts.append(block)
            return {"chart": len(self.charts) - 1}
        if isinstance(block, Table):
            return {"table": _table_data(block)}
        if isinstance(block, Mapping):
            return {"facts": [[printable(name), printable(value)] for name, value in block.items()]}
        return {"lines": list(map(printable, block))}

    @property
    def data(self) -> list[dict[str, Any]]:
        lines = sum(len(chart.series) for chart in self.charts if chart.style == "lines")
        most = _POINTS // max(lines, 1)  # of a series
        return [
            chart_data(thinned(chart, max(_FEWEST, min(most, _OF_CHART // len(chart.series))))) for chart in self.charts
        ]


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


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


def html_of(page: Page) -> str:
    """Returns the page as HTML with style, script and data inside, so that it needs no network and no other file."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    blocks = _Blocks()
    entries = [blocks.listed(row.sections) for row in page.rows]
    sections = blocks.listed(page.sections)
    data = _json({"entries": entries, "sections": sections, "charts": blocks.data})
    text = f'{{"blocks":[{",".join(blocks.made)}],{data[1:]}'
    drawn = any(row.change is not None for row in page.rows)
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
        sections=[section["title"] for section in sections],
        verdicts=Counter(row.verdict for row in sorted(page.rows, key=lambda row: -row.severity)),
        failed=[(number, row) for number, row in enumerate(page.rows) if row.reasons],
        most=_MOST_FAILED,
        bar=_bar(page.rows),
        drawn_after=next((i for i, header in enumerate(page.headers) if drawn and header.startswith("change")), None),
        printable=printable,
        broken=_broken,
        # Our own files, and JSON that cannot end its element.
        style=Markup((_HERE / "page.css").read_text(encoding="utf-8")),  # noqa: S704
        script=Markup((_HERE / "page.js").read_text(encoding="utf-8")),  # noqa: S704
        data=Markup(text.replace("<", "\\u003c")),  # noqa: S704
    )


def _broken(name: str) -> Any:
    """Returns a name as HTML in which a browser breaks a line only after punctuation, not inside words."""
    return Markup("<wbr>").join(_PIECES.findall(printable(name)))


_MIDDLE, _EDGE = 46, 42  # pixels of a bar: the middle, and from there to the edge
_WIDEST = 5  # times the typical end of an interval: a change that is larger is cut off


def _bar(rows: Sequence[PageRow]) -> Any:
    """Returns a function that computes the positions of a row's bar in pixels; None for a row without a change."""
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
    """Returns title, axes and series of a chart, with numbers in the units of the axes."""
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
        "subject": "" if chart.benchmark is not None else printable(chart.subject),
        "x": _axis(chart.x),
        "y": _axis(chart.y),
        "series": [_series(series) for series in chart.series],
        "references": references,
    }
    *found["shown"], cut = view_of(chart)
    if cut:
        found["cut"] = CUT
    return {**found, "note": remark} if (remark := remark_of(chart)) else found


def _axis(axis: Axis) -> dict[str, Any]:
    data: dict[str, Any] = {"name": printable(axis.name), "unit": printable(axis.unit)}
    if axis.labels:
        data["labels"] = list(map(printable, axis.labels))
    return {**data, "log": True} if axis.log else data


def _series(series: ChartSeries) -> dict[str, Any]:
    """Returns the numbers of a series as lists; ``x`` is only the first number if x grows by 1 from point to point."""
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
    number = float(f"{value:.{digits}g}")
    return int(number) if number.is_integer() else number
