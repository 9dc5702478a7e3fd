"""Makes an HTML page with charts of a metric's values by commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.baselines.history.trend import Trend
from pytest_ddpperf.reports.charts.chart import Axis, Chart, ChartSeries, point
from pytest_ddpperf.reports.formats.page import Page, PageRow, html_of
from pytest_ddpperf.reports.table import Column, Quantity, table_of
from pytest_ddpperf.reports.trend import change_texts, place_of, too_short, trend_table, trend_title
from pytest_ddpperf.units import format_count, format_number

_DIRECTIONS = ("too few commits", "no change", "better", "worse")


def trends_page(trends: Sequence[Trend], metric: str) -> str:
    """Returns the page of all trends, the worst first, each with its chart, its changes and its commits."""
    ordered = sorted(trends, key=lambda trend: -trend.worst)
    changed = sum(bool(trend.changes) for trend in ordered)
    overview = table_of(
        ordered,
        {
            "benchmark": trend_title,
            "environment": lambda trend: trend.benchmark.environment_key,
            "commits": lambda trend: str(len(trend.points)),
            "first": _value(ordered, 0),
            "newest": _value(ordered, -1),
        },
    )
    return html_of(
        Page(
            title=f"ddpperf: {metric} changed in {changed} of {format_count(len(ordered), 'benchmark')}",
            headers=overview.headers,
            left=2,
            rows=tuple(map(_row, ordered, overview.rows)),
        )
    )


def _value(trends: Sequence[Trend], place: int) -> Column[Trend]:
    if any(trend.benchmark.scale == "exact" for trend in trends):
        return lambda trend: format_number(trend.points[place].value)
    unit = next((trend.benchmark.unit for trend in trends), "1")
    return Quantity(value=lambda trend: trend.points[place].value, unit=unit)


def _row(trend: Trend, cells: tuple[str, ...]) -> PageRow:
    table, changes = trend_table(trend), change_texts(trend)
    commits = replace(  # the chart shows what the last column plots in letters
        table,
        title="commits, the oldest first",
        headers=table.headers[:-1],
        rows=tuple(row[:-1] for row in table.rows),
        notes=table.notes[len(changes) :],
        right=0,
    )
    return PageRow(
        title=cells[0],
        cells=cells,
        verdict=_direction(trend),
        severity=_DIRECTIONS.index(_direction(trend)),
        sections={"Changes": [changes], "Trend": [trend_chart(trend)], "Commits": [commits]},
    )


def _direction(trend: Trend) -> str:
    if not trend.changes:
        return "too few commits" if too_short(trend) else "no change"
    return "worse" if trend.worst > 0 else "better"


def trend_chart(trend: Trend) -> Chart:
    """Returns a chart of a metric's values by commit, with their intervals and the fitted level."""
    metric = trend.benchmark.metric
    values = [point(i, each.value, each.interval) for i, each in enumerate(trend.points)]
    outlying = ChartSeries("out of line with its neighbours", tuple(values[i] for i in trend.outliers))
    others = ChartSeries(metric, tuple(one for i, one in enumerate(values) if i not in trend.outliers))
    return Chart(
        kind="trend",
        title=f"{metric} by commit",
        style="points",
        x=Axis(name="commit", labels=tuple(place_of(each.run) for each in trend.points)),
        y=Axis(name=metric, unit=trend.benchmark.unit),
        series=tuple(each for each in (others, outlying) if each.points),
        references=(ChartSeries("level", tuple(point(i, each.level) for i, each in enumerate(trend.points))),),
        note=f"in {trend.benchmark.environment_key}, of {format_count(len(trend.points), 'commit')}",
    )
