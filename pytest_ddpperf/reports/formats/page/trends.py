"""The page of a metric over commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_ddpperf.baselines.history.trend import Point, Trend
from pytest_ddpperf.reports.charts.chart import Axis, Chart, ChartSeries, point
from pytest_ddpperf.reports.formats.page.page import Page, PageEntry, PageRow, PageSection, html_of
from pytest_ddpperf.reports.phrases import SHORT_COMMIT
from pytest_ddpperf.reports.trend import change_texts, too_short, trend_table
from pytest_ddpperf.units import format_count, format_number, format_value

_DIRECTIONS = ("too few commits", "no change", "better", "worse")


def trends_page(trends: Sequence[Trend], metric: str) -> str:
    """All trends, the worst first, each with its chart, its changes and its commits."""
    ordered = sorted(trends, key=lambda trend: -trend.worst)
    changed = sum(bool(trend.changes) for trend in ordered)
    entries = []
    for trend in ordered:
        table = trend_table(trend)
        commits = replace(  # the chart shows what the last column plots in letters
            table,
            title="commits, the oldest first",
            headers=table.headers[:-1],
            rows=tuple(row[:-1] for row in table.rows),
            notes=table.notes[len(change_texts(trend)) :],
            right=0,
        )
        entries.append(
            PageEntry(
                title=table.title.partition("\n")[0],
                verdict=_direction(trend),
                sections=(
                    PageSection("Changes", (change_texts(trend),)),
                    PageSection("Trend", (trend_chart(trend),)),
                    PageSection("Commits", (commits,)),
                ),
            )
        )
    return html_of(
        Page(
            title=f"ddpperf: {metric} changed in {changed} of {format_count(len(ordered), 'benchmark')}",
            noun="benchmark",
            headers=("benchmark", "environment", "commits", "first", "newest"),
            left=2,
            rows=tuple(
                _row(trend, entry.title, place)
                for place, (trend, entry) in enumerate(zip(ordered, entries, strict=True))
            ),
            entries=tuple(entries),
        )
    )


def _row(trend: Trend, name: str, place: int) -> PageRow:
    values = [trend.points[i].value for i in (0, -1)]
    exact = trend.benchmark.scale == "exact"
    texts = (format_number(value) if exact else format_value(value, trend.benchmark.unit) for value in values)
    return PageRow(
        cells=(name, trend.benchmark.environment_key, str(len(trend.points)), *texts),
        verdict=_direction(trend),
        severity=_DIRECTIONS.index(_direction(trend)),
        entry=place,
        numbers=dict(enumerate(values, start=3)),
    )


def _direction(trend: Trend) -> str:
    """Returns whether it became worse anywhere, else better."""
    if not trend.changes:
        return "too few commits" if too_short(trend) else "no change"
    return "worse" if trend.worst > 0 else "better"


def trend_chart(trend: Trend) -> Chart:
    """The values by commit with their intervals, beside the level without noise."""
    metric = trend.benchmark.metric
    values = [point(i, each.value, each.interval) for i, each in enumerate(trend.points)]
    outlying = ChartSeries("out of line with its neighbours", tuple(values[i] for i in trend.outliers))
    others = ChartSeries(metric, tuple(one for i, one in enumerate(values) if i not in trend.outliers))
    confidences = [each.interval.confidence for each in trend.points if each.interval is not None]
    return Chart(
        kind="trend",
        title=f"{metric} by commit",
        style="points",
        x=Axis(name="commit", labels=tuple(map(_label, trend.points))),
        y=Axis(name=metric, unit=trend.benchmark.unit),
        series=tuple(each for each in (others, outlying) if each.points),
        references=(ChartSeries("level", tuple(point(i, each.level) for i, each in enumerate(trend.points))),),
        confidence=confidences[0] if confidences else None,
        note=f"in {trend.benchmark.environment_key}, of {format_count(len(trend.points), 'commit')}",
    )


def _label(one: Point) -> str:
    """The commit with a plus sign for a changed work tree, and its day."""
    commit = "no commit" if one.run.commit is None else one.run.commit[:SHORT_COMMIT] + "+" * one.run.dirty
    return f"{commit} {(one.run.commit_date or one.run.date)[:10]}"
