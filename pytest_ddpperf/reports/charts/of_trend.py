"""A metric over commits as a chart."""

from __future__ import annotations

from pytest_ddpperf.reports.charts.chart import Axis, Chart, ChartPoint, ChartSeries, point
from pytest_ddpperf.reports.documents.trend import PointData, TrendData
from pytest_ddpperf.reports.phrases import SHORT_COMMIT
from pytest_ddpperf.units import format_count


def trend_chart(trend: TrendData, metric: str) -> Chart:
    """The values by commit with their intervals, beside the level without noise."""
    values = tuple(ChartPoint(i, each.value, *_ends(each)) for i, each in enumerate(trend.points))
    outlying = ChartSeries("out of line with its neighbours", tuple(values[i] for i in trend.outliers))
    others = ChartSeries(metric, tuple(one for i, one in enumerate(values) if i not in trend.outliers))
    confidences = [each.interval.confidence for each in trend.points if each.interval is not None]
    return Chart(
        kind="trend",
        title=f"{metric} by commit",
        subject=f"{trend.test} {trend.name} w{trend.world_size}",
        style="points",
        x=Axis(name="commit", labels=tuple(map(_label, trend.points))),
        y=Axis(name=metric, unit=trend.unit),
        series=tuple(each for each in (others, outlying) if each.points),
        references=(ChartSeries("level", tuple(point(i, each.level) for i, each in enumerate(trend.points))),),
        confidence=confidences[0] if confidences else None,
        note=f"in {trend.environment_key}, of {format_count(len(trend.points), 'commit')}",
    )


def _ends(each: PointData) -> tuple[float | None, float | None]:
    return (None, None) if each.interval is None else (each.interval.low, each.interval.high)


def _label(each: PointData) -> str:
    """The commit with a plus sign for a changed work tree, and its day."""
    commit = "no commit" if each.commit is None else each.commit[:SHORT_COMMIT] + "+" * each.dirty
    return f"{commit} {each.date[:10]}"
