"""A chart as data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.reports.document import IntervalData

Style = Literal["lines", "points", "stacked"]
"""Points of a series joined by a line, or each for itself; or the series' amounts upon each other at each place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """What an axis shows.

    Attributes:
        name: in a few words.
        unit: an SI base unit, ``B``, a rate of them, or ``1``; empty for places and for numbers of steps and ranks.
        labels: of the places 0, 1, 2 and so on; empty for an axis of numbers.
        log: whether equal ratios are equally far apart.
    """

    name: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    log: bool = False


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A value and where it lies: ``low`` and ``high`` are the ends of its interval, None where no such end is known."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class ChartSeries:
    """Points that belong together; in a ``stacked`` chart the amounts of one part, which may be below 0."""

    name: str
    points: tuple[ChartPoint, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """What one picture shows.

    Attributes:
        kind: its row of ``CHARTS``.
        title: what it shows, in a few words.
        subject: of which test or benchmark.
        style: how its series are drawn.
        x, y: its axes.
        series: at least one, each with at least one point.
        references: what the series are seen beside, such as the ideal: lines without marks, with a band where their
            points have intervals.
        confidence: of the intervals; None where there are none.
        benchmarks: the places, from 0, of what it shows among the results of the document.
        note: what a reader has to know of the data; may be empty.
    """

    kind: str
    title: str
    subject: str
    style: Style
    x: Axis
    y: Axis
    series: tuple[ChartSeries, ...]
    references: tuple[ChartSeries, ...] = ()
    confidence: float | None = None
    benchmarks: tuple[int, ...] = ()
    note: str = ""

    @property
    def name(self) -> str:
        """Kind and subject: no other chart of the document has both."""
        return f"{self.kind} {self.subject}"


def point(x: float, y: float, interval: Interval | IntervalData | None = None) -> ChartPoint:
    """A point with its interval; an end that is not finite is none."""
    ends = (None, None) if interval is None else (interval.low, interval.high)
    low, high = (end if end is not None and math.isfinite(end) else None for end in ends)
    return ChartPoint(x, y, low, high)


def numbered(name: str, values: Iterable[float | None], first: int = 0) -> ChartSeries:
    """A series of values at ``first`` and the whole numbers that follow; what is not known is left out."""
    known = ((x, y) for x, y in enumerate(values, first) if y is not None and math.isfinite(y))
    return ChartSeries(name, tuple(ChartPoint(x, y) for x, y in known))


def across(name: str, y: ChartPoint, xs: Sequence[float]) -> ChartSeries:
    """A reference: the value and the interval of ``y``, from one x to another."""
    return ChartSeries(name, tuple(replace(y, x=x) for x in xs))


def filled(charts: Iterable[Chart]) -> Iterator[Chart]:
    """The charts with their series that have points; those without any are left out."""
    for chart in charts:
        series = tuple(each for each in chart.series if each.points)
        if series:
            yield replace(chart, series=series)


def thinned(chart: Chart, most: int) -> Chart:
    """The chart with at most so many points in a series: of those side by side the one with the largest value."""
    longest = max(len(each.points) for each in chart.series)
    every = -(-longest // most)
    if every == 1:
        return chart
    series = tuple(
        ChartSeries(one.name, tuple(max(one.points[i : i + every], key=_y) for i in range(0, len(one.points), every)))
        for one in chart.series
    )
    note = "; ".join(filter(None, (chart.note, f"of every {every} points the largest is shown")))
    return replace(chart, series=series, note=note)


def _y(each: ChartPoint) -> float:
    return each.y
