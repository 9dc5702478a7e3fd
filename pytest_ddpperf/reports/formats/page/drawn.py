"""A chart as the script of the page draws it: in units that read well, short."""

from __future__ import annotations

import re
from typing import Any

from pytest_ddpperf.reports.charts.chart import CUT, Axis, Chart, ChartSeries, in_units, remark_of, view_of
from pytest_ddpperf.reports.lines import JOINED, printable

_LEVEL = re.compile(r"[\d.]+ % CI")  # in which no line is broken
_WHOLE = 12  # digits of a place: all that it has but for what a division leaves


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
    if chart.style != "stacked":
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
