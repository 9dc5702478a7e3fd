"""A chart as data."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.reports.phrases import confidence_text
from pytest_ddpperf.stats.intervals import CONFIDENCE
from pytest_ddpperf.units import scale

CUT = "An interval that ends at the edge continues beyond the edge."  # the remark on a chart that cuts an interval
_NEAR = 0.4  # share of the highest value: 0 is shown if the lowest value is below it
_AROUND = 0.06  # share of the shown range that stays free at either side


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """An axis: the quantity that it shows, with its unit or labels."""

    name: str  # in a few words
    unit: str = ""  # an SI base unit, ``B``, a rate of them, or ``1``; empty for places and numbers of steps and ranks
    labels: tuple[str, ...] = ()  # of the places 0, 1, 2 and so on; empty for an axis of numbers
    log: bool = False  # whether equal ratios are equally far apart


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A value with the ends of its interval, ``low`` and ``high``; an end is None if it is unknown."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None

    def over(self, x: float, y: float) -> ChartPoint:
        """Converts the point to other units: divides its x by ``x``, its y and interval by ``y``."""
        low, high = (None if end is None else end / y for end in (self.low, self.high))
        return ChartPoint(self.x / x, self.y / y, low, high)


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """Points of one line or one group, drawn in the same style.

    For a reference, such as a baseline, ``of`` names the series that it is compared with; empty means all series.
    """

    name: str
    points: tuple[ChartPoint, ...]
    of: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """The data of one picture."""

    title: str  # in a few words
    style: Literal["lines", "points"]  # whether a line connects the points of a series
    x: Axis
    y: Axis
    series: tuple[ChartSeries, ...]  # at least one, each with at least one point
    # What the series are compared with, such as the ideal: lines without marks, with a band if points have intervals.
    references: tuple[ChartSeries, ...] = ()
    benchmark: int | None = None  # the shown benchmark, as an index of the results; None for several
    note: str = ""  # a remark that a reader of the data needs
    subject: str = ""  # the test or benchmark that the chart is about
    kind: str = ""  # the key of its row in ``CHARTS``


def view_of(chart: Chart) -> tuple[float, float, bool]:
    """Returns the lowest and the highest value that a chart shows, and whether an interval extends beyond them.

    The chart shows all values; intervals may at most double its range. The range begins at 0 if 0 is near.
    """
    points = [each for series in (*chart.series, *chart.references) for each in series.points]
    least, most = min(each.y for each in points), max(each.y for each in points)
    room = max(most - least, 0.05 * max(abs(least), abs(most))) / 2
    low = min(each.y if each.low is None else min(each.low, each.y) for each in points)
    high = max(each.y if each.high is None else max(each.high, each.y) for each in points)
    bottom, top = max(low, least - room), min(high, most + room)
    cut = low < bottom or high > top
    if 0 < bottom < _NEAR * top:
        bottom = 0.0
    gap = _AROUND * (top - bottom) or 0.05 * abs(top) or 1.0
    return bottom - gap if bottom else 0.0, top + gap, cut


def in_units(chart: Chart) -> Chart:
    """Returns the chart with its numbers converted to readable units, such as ms, on both axes."""
    values = [(each.x, each.y) for series in chart.series for each in series.points]
    by_x = scale([x for x, _ in values] if chart.x.unit else [], chart.x.unit or "1")
    by_y = scale([y for _, y in values], chart.y.unit or "1")
    series, references = (
        tuple(replace(one, points=tuple(each.over(by_x.factor, by_y.factor) for each in one.points)) for one in every)
        for every in (chart.series, chart.references)
    )
    x, y = replace(chart.x, unit=by_x.unit), replace(chart.y, unit=by_y.unit)
    return replace(chart, x=x, y=y, series=series, references=references)


def remark_of(chart: Chart) -> str:
    """Returns a note on the data and the intervals of a chart; may be empty."""
    points = (each for series in (*chart.series, *chart.references) for each in series.points)
    known = any(each.low is not None or each.high is not None for each in points)
    return "; ".join(filter(None, (chart.note, f"bars and bands: {confidence_text(CONFIDENCE)}" * known)))


def point(x: float, y: float, interval: Interval | None = None) -> ChartPoint:
    """Returns a point with its interval; ends that are not finite are omitted."""
    ends = (None, None) if interval is None else (interval.low, interval.high)
    low, high = (end if end is not None and math.isfinite(end) else None for end in ends)
    return ChartPoint(x, y, low, high)


def numbered(name: str, values: Iterable[float | None], first: int = 0) -> ChartSeries:
    """Returns a series of ``values`` at x = ``first``, ``first + 1`` and so on; omits unknown values."""
    known = ((x, y) for x, y in enumerate(values, first) if y is not None and math.isfinite(y))
    return ChartSeries(name, tuple(ChartPoint(x, y) for x, y in known))


def thinned(chart: Chart, most: int) -> Chart:
    """Reduces each series of a chart to at most ``most`` points, by keeping the largest of several neighbours."""
    longest = max(len(each.points) for each in chart.series)
    every = -(-longest // most)
    if every == 1:
        return chart
    series = tuple(
        ChartSeries(
            one.name,
            tuple(max(one.points[i : i + every], key=attrgetter("y")) for i in range(0, len(one.points), every)),
        )
        for one in chart.series
    )
    note = "; ".join(filter(None, (chart.note, f"of every {every} points the largest is shown")))
    return replace(chart, series=series, note=note)
