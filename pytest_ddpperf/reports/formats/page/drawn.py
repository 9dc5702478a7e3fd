"""A chart as the script of the page draws it: in units that read well, short."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pytest_ddpperf.reports.charts.chart import CUT, Axis, Chart, ChartPoint, ChartSeries, remark_of, units_of, view_of
from pytest_ddpperf.reports.lines import JOINED, printable
from pytest_ddpperf.units import Scale

_LEVEL = re.compile(r"[\d.]+ % CI")  # in which no line is broken
_WHOLE = 12  # digits of a place: all that it has but for what a division leaves


def chart_data(chart: Chart) -> dict[str, Any]:
    """Title, axes and series, with all numbers in the unit that the axis names."""
    by_x, common = units_of(chart)
    names = [series.name for series in chart.series]
    references = [_series(series, by_x, common) for series in chart.references]
    for series, data in zip(chart.references, references, strict=True):
        if series.of in names:
            data["of"] = names.index(series.of)
    found: dict[str, Any] = {
        "kind": chart.kind,
        "title": printable(chart.title),
        "style": chart.style,
        "subject": "" if len(chart.benchmarks) == 1 else printable(chart.subject),
        "x": _axis(chart.x, by_x),
        "y": _axis(chart.y, common),
        "series": [_series(series, by_x, common) for series in chart.series],
        "references": references,
    }
    if chart.style != "stacked":
        view = view_of(chart)
        found["shown"] = [view.low / common.factor, view.high / common.factor]
        if view.cut:
            found["cut"] = CUT
    remark = _LEVEL.sub(lambda level: level[0].replace(" ", JOINED), remark_of(chart))
    return {**found, "note": remark} if remark else found


def _axis(axis: Axis, common: Scale) -> dict[str, Any]:
    data: dict[str, Any] = {"name": printable(axis.name), "unit": common.unit}
    if axis.labels:
        data["labels"] = list(map(printable, axis.labels))
    return {**data, "log": True} if axis.log else data


def _series(series: ChartSeries, by_x: Scale, common: Scale) -> dict[str, Any]:
    """Its numbers as lists; ``x`` is the first one where whole numbers follow it, ends are left out where none is."""
    points = series.points
    xs = [_short(point.x, by_x, _WHOLE) for point in points]
    consecutive = xs == [xs[0] + i for i in range(len(xs))]
    data: dict[str, Any] = {
        "name": printable(series.name),
        "x": xs[0] if consecutive else xs,
        "y": [_short(point.y, common) for point in points],
    }
    return {**data, **_ends(points, common)}


def _ends(points: Sequence[ChartPoint], common: Scale) -> dict[str, Any]:
    lows, highs = [point.low for point in points], [point.high for point in points]
    if not any(end is not None for end in (*lows, *highs)):
        return {}
    return {
        "low": [None if end is None else _short(end, common) for end in lows],
        "high": [None if end is None else _short(end, common) for end in highs],
    }


def _short(value: float, common: Scale, digits: int = 5) -> float | int:
    """A number of so many digits in a unit."""
    number = float(f"{value / common.factor:.{digits}g}")
    return int(number) if number.is_integer() else number
