"""Trends as tables and sentences."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Literal

from pytest_ddpperf.baselines.history.database import Benchmark, HistoryRun
from pytest_ddpperf.baselines.history.shifts import MIN_SIDE
from pytest_ddpperf.baselines.history.trend import CONFIDENCE, MIN_POINTS, Point, Trend, TrendChange
from pytest_ddpperf.records.counts import quantity_texts
from pytest_ddpperf.records.measurement import training_text
from pytest_ddpperf.reports.documents.entries import JsonEntry
from pytest_ddpperf.reports.files import document_text
from pytest_ddpperf.reports.phrases import commit_text, confidence_text
from pytest_ddpperf.reports.table import NOTHING, Table, table_of, with_interval
from pytest_ddpperf.units import format_change, format_count, format_difference, format_number, scale, signed_percent

_PLOT = 32  # characters
_LISTED = 5  # outliers, at most
_UNTOLD = f"a change in the newest {MIN_SIDE - 1} commits would not show yet"


class TrendsFile(JsonEntry, frozen=True):
    """The file of ddpperf trend --json: a metric's values by commit, and the indices at which the metric changed."""

    schema: Literal["pytest-ddpperf/trend/2"]  # name and version of this format
    metric: str  # what all trends are of
    trends: tuple[Trend, ...]  # of a test: one for each variant, number of ranks and environment; else changed ones


def trends_text(trends: Sequence[Trend], metric: str) -> str:
    """Returns the trends as a JSON document."""
    return document_text({"schema": "pytest-ddpperf/trend/2", "metric": metric, "trends": [*trends]})


def trend_table(trend: Trend) -> Table:
    """Returns a table with a row for each commit, which plots the value (``o``) and the fitted level (``|``)."""
    benchmark, points = trend.benchmark, trend.points
    unit, number = _number_format([point.value for point in points], benchmark)
    change = _number_format([max((abs(point.change or 0.0) for point in points), default=0.0)], benchmark)
    values = [v for point in points for v in (point.value, point.level)]
    low, high = min(values), max(values)
    columns: dict[str, Callable[[tuple[int, Point]], str]] = {
        "commit": lambda each: _commit(each[1].run),
        "date": lambda each: _day(each[1].run),
        **({"runs": lambda each: str(each[1].runs)} if any(point.runs > 1 for point in points) else {}),
        f"{benchmark.metric}\n{unit}".rstrip(): lambda each: with_interval(number, each[1].value, each[1].interval),
        f"change\n{'%' if benchmark.scale == 'ratio' else change[0]}".rstrip(): lambda each: _change(
            trend, each[1], change[1]
        ),
        f"{number(low)} .. {number(high)} {unit}".rstrip(): lambda each: _plot(
            each[1], low, high, outlying=each[0] in trend.outliers
        ),
    }
    title = (
        f"{trend_title(trend)}\n{benchmark.environment_key}\n{benchmark.metric}, {benchmark.better} is better: "
        f"{format_count(sum(point.runs for point in points), 'run')}, {_day(points[0].run)} to {_day(points[-1].run)}; "
        "change: compared with the level before"
    )
    return table_of(enumerate(points), columns, title=title, notes=(*change_texts(trend), *_remarks(trend)), left=2)


def changes_text(trends: Sequence[Trend], metric: str) -> str:
    """Returns the trends that changed, the worst first, and a line with the numbers of changed and of all trends."""
    changed = sorted((trend for trend in trends if trend.changes), key=lambda trend: -trend.worst)
    parts = [
        "\n  ".join((f"{trend_title(trend)}\n{trend.benchmark.environment_key}", *change_texts(trend)))
        for trend in changed
    ]
    # A count has no noise: two points are enough.
    short = sum(map(too_short, trends))
    last = f"{metric} changed in {len(changed)} of {format_count(len(trends), 'benchmark')}"
    if len(changed) < len(trends) and any(trend.benchmark.scale != "exact" for trend in trends):
        last += f"; {_UNTOLD}"
    if short:
        last += f"; {short} of them {'has' if short == 1 else 'have'} fewer than {MIN_POINTS} commits, which is too few"
    return "\n\n".join([*parts, last])


def too_short(trend: Trend) -> bool:
    """Returns whether a trend has too few commits to distinguish a change from noise; always False for counts."""
    return len(trend.points) < MIN_POINTS and trend.benchmark.scale != "exact"


def change_texts(trend: Trend) -> tuple[str, ...]:
    """Returns a sentence for each change, or one sentence that explains why there is none."""
    if too_short(trend):
        return (f"fewer than {MIN_POINTS} commits: no change can be distinguished from noise",)
    if trend.changes or trend.benchmark.scale == "exact":
        return tuple(_sentence(trend, change) for change in trend.changes) or ("no change",)
    return (f"no change; {_UNTOLD}",)


def trend_title(trend: Trend) -> str:
    """Returns a title that identifies the benchmark of a trend."""
    benchmark = trend.benchmark
    training = training_text(benchmark.strategy, json.loads(benchmark.recipe))
    mode = "" if benchmark.mode is None else f", {benchmark.mode} scaling"
    own = "" if benchmark.name == training else f" ({training}{mode})"
    after = "" if benchmark.steps is None else f", after {format_count(benchmark.steps, 'step')}"
    turns = ", interleaved" if benchmark.interleaved else ""
    return f"{benchmark.test}: {benchmark.name}{own}{after}{turns}"


def _sentence(trend: Trend, change: TrendChange) -> str:
    points, metric = trend.points, trend.benchmark.metric
    before, after = (place_of(points[i].run) for i in (change.before, change.after))
    direction = "worse" if trend.worsening(change) > 0 else "better"
    if trend.benchmark.scale == "exact":
        levels = [points[i].level for i in (change.before, change.after)]
        return f"between {before} and {after}: {metric} {' -> '.join(quantity_texts(metric, levels))}, {direction}"
    ratio = trend.benchmark.scale == "ratio"
    ends = " .. ".join(signed_percent(end) if ratio else _size(trend, end) for end in (change.low, change.high))
    size = f"{metric} {_size(trend, change.size)} [{confidence_text(CONFIDENCE)} {ends}], {direction}"
    if change.kind == "creep":
        each = _size(trend, change.size / (change.after - change.before), fine=True)
        return f"creep from {before} to {after}: {size}, by about {each} a commit"
    certainty = ""
    if (change.earliest, change.latest) != (change.before, change.after):
        earliest, latest = (place_of(points[i].run) for i in (change.earliest, change.latest))
        certainty = (
            f"; with {confidence_text(CONFIDENCE).removesuffix(' CI')} confidence between {earliest} and {latest}"
        )
    return f"between {before} and {after}: {size}{certainty}"


def _size(trend: Trend, size: float, *, fine: bool = False) -> str:
    """Returns the size of a change with its unit; ``fine`` keeps two digits of a small percentage."""
    if trend.benchmark.scale != "ratio":
        return format_difference(size, trend.benchmark.unit, (point.value for point in trend.points))
    return f"{100 * size:+.2g} %" if fine else format_change(size)


def _remarks(trend: Trend) -> tuple[str, ...]:
    remarks = []
    if trend.outliers:
        named = ", ".join(place_of(trend.points[i].run) for i in trend.outliers[-_LISTED:])
        more = f"{len(trend.outliers) - _LISTED} more and " if len(trend.outliers) > _LISTED else ""
        remarks.append(f"values far from their neighbours (marked x) count less in the fitted level: {more}{named}")
    branches = sorted({point.run.branch or "a detached HEAD" for point in trend.points})
    if len(branches) > 1:
        remarks.append(f"runs of several branches ({', '.join(branches)}); --branch selects one")
    return tuple(remarks)


def _commit(run: HistoryRun) -> str:
    return NOTHING if run.commit is None else commit_text(run.commit, dirty=run.dirty)


def _day(run: HistoryRun) -> str:
    """Returns the day of the commit; if unknown, the day of the run."""
    return (run.commit_date or run.date)[:10]


def place_of(run: HistoryRun) -> str:
    """Returns the commit and its day; if no commit is known, the minute of the run."""
    return f"{_commit(run)} ({_day(run)})" if run.commit is not None else run.date[:16].replace("T", " ")


def _number_format(values: Sequence[float], benchmark: Benchmark) -> tuple[str, Callable[[float], str]]:
    """Returns the unit and the number format of a column of ``values``; counts keep all digits."""
    if benchmark.scale == "exact":
        return scale((), benchmark.unit).unit, format_number
    common = scale(values, benchmark.unit)
    tiny = (benchmark.scale, benchmark.unit) == ("difference", "1")  # a loss may be, and its changes tinier
    return common.unit, "{:.4g}".format if tiny else common.number


def _change(trend: Trend, point: Point, number: Callable[[float], str]) -> str:
    if point.change is None:
        return NOTHING
    if trend.benchmark.scale == "ratio":
        return signed_percent(point.change)
    if _size(trend, point.change) == "0":
        return "0"
    text = number(point.change)
    return text if text.startswith("-") else f"+{text}"


def _plot(point: Point, low: float, high: float, *, outlying: bool) -> str:
    """Returns a line of dots with the fitted level (``|``) and the value (``o``, or ``x`` if ``outlying``)."""

    def place(value: float) -> int:
        return round((value - low) / (high - low) * (_PLOT - 1)) if high > low else 0

    line = ["."] * _PLOT
    line[place(point.level)] = "|"
    line[place(point.value)] = "x" if outlying else "o"
    return "".join(line)
