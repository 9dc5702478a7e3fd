"""A metric over commits as a chart."""

from __future__ import annotations

from pytest_ddpperf.baselines.history.trend import Point, Trend
from pytest_ddpperf.reports.charts.chart import Axis, Chart, ChartSeries, point
from pytest_ddpperf.reports.phrases import SHORT_COMMIT
from pytest_ddpperf.units import format_count


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
