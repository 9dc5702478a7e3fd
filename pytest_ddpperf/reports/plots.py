"""Pictures of the results: matplotlib draws the charts of a run into PNG files."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.baselines.files import write_bytes
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.reports.charts.chart import CUT, Axis, Chart, ChartPoint, ChartSeries, in_units, remark_of, view_of
from pytest_ddpperf.reports.charts.of_run import charts_of
from pytest_ddpperf.reports.files import ensure_folder, writing
from pytest_ddpperf.reports.lines import file_stem, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pytest_ddpperf.reports.documents.entries import Run

_WIDTH, _HEIGHT, _DPI = 9.0, 4.0, 110  # inches of a chart, and dots of an inch
_PLACE = 0.3  # inches of a label of the horizontal axis
_MARKED = 40  # points of a line that are marked
_LETTERS = 100  # of a line above a chart
_ASIDE = 0.12  # of a place: how far the points of series that share it are apart
_LONG = 60  # letters of all labels of an axis that still stand upright
_STYLE = "tableau-colorblind10"
_TEXT: dict[Any, Any] = {"text.parse_math": False, "text.usetex": False}  # names are no formulas
_MARKERS = "osD^vPX<>*"  # so that colour is not all that tells series apart


def require_plots(folder: Path, option: str) -> None:
    """Checks before the measurement that pictures can be drawn and written; raises SettingError if not."""
    if find_spec("matplotlib") is None:
        raise SettingError(f"{option} needs matplotlib, which is not installed: pip install matplotlib")
    ensure_folder(folder, option)


def write_plots(run: Run, folder: Path, option: str) -> list[Path]:
    """Draws each chart of a run into a PNG file, which is named after the chart; replaces existing files.

    Returns:
        The files, in the order in which they were drawn.

    Raises:
        SettingError: matplotlib is missing, or the folder cannot be written.
    """
    require_plots(folder, option)
    from matplotlib import style

    drawn, named = list[Path](), Counter[str]()
    with warnings.catch_warnings(), style.context(["default", _STYLE, _TEXT]):  # not as the user has set it
        warnings.simplefilter("ignore")  # of letters that the font lacks
        for chart in charts_of(run):
            named[name := file_stem(f"{chart.kind}.{chart.subject}")] += 1
            number = f".{named[name]}" if named[name] > 1 else ""
            picture, file = BytesIO(), folder / f"{name}{number}.png"
            figure_of(chart).savefig(picture, format="png")
            with writing(folder, option):
                folder.mkdir(parents=True, exist_ok=True)
                write_bytes(file, picture.getvalue())
            drawn.append(file)
    return drawn


def figure_of(chart: Chart) -> Figure:
    """Returns a matplotlib figure of a chart."""
    from matplotlib.figure import Figure

    width = max(_WIDTH, _PLACE * len(chart.x.labels))
    figure, chart = Figure(figsize=(width, _HEIGHT), dpi=_DPI, layout="constrained"), in_units(chart)
    axes = figure.subplots()
    axes.set_xlabel(_axis_name(chart.x))
    axes.set_ylabel(_axis_name(chart.y))
    axes.grid(axis="y", alpha=0.3)
    _plot(chart, axes)
    _ticks(chart, axes)
    colors = {str(each.get_label()): each[0].get_color() for each in axes.containers}
    for series in chart.references:
        _refer(series, axes, colors.get(series.of, "0.5"))
    if len(chart.series) + len(chart.references) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, fontsize="small")
    said = wrapped([remark] if (remark := remark_of(chart)) else [], _LETTERS)
    low, high, cut = view_of(chart)
    axes.set_ylim(low, high)
    said += [CUT] * cut
    axes.set_title("\n".join((chart.title, chart.subject, *said)), loc="left", fontsize="medium")
    return figure


def _axis_name(axis: Axis) -> str:
    return f"{axis.name} ({axis.unit})" if axis.unit else axis.name


def _ticks(chart: Chart, axes: Axes) -> None:
    """Sets the ticks of the x axis: at its labels if it has any, else at the points' values if there are few points."""
    from matplotlib.ticker import MaxNLocator, NullLocator

    if chart.x.log:
        axes.set_xscale("log")
    if chart.x.labels:
        tilted = sum(map(len, chart.x.labels)) > _LONG
        axes.set_xticks(
            range(len(chart.x.labels)), chart.x.labels, rotation=30 * tilted, ha="right" if tilted else "center"
        )
        return
    values = sorted({point.x for series in chart.series for point in series.points})
    if len(values) <= len(_MARKERS):
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.xaxis.set_minor_locator(NullLocator())
    elif not chart.x.log:
        axes.xaxis.set_major_locator(MaxNLocator(integer=not chart.x.unit))


def _plot(chart: Chart, axes: Axes) -> None:
    middle = (len(chart.series) - 1) / 2
    for i, (series, marker) in enumerate(zip(chart.series, cycle(_MARKERS), strict=False)):
        lines = chart.style == "lines"
        aside = 0.0 if lines else (i - middle) * min(_ASIDE, 0.8 / len(chart.series))
        axes.errorbar(
            [point.x + aside for point in series.points],
            [point.y for point in series.points],
            yerr=_reach(series.points),
            label=series.name,
            marker=marker if len(series.points) <= _MARKED else "",
            markersize=5,
            linestyle="-" if lines else "",
            linewidth=1.2,
            capsize=3,
        )


def _reach(points: Sequence[ChartPoint]) -> Any:
    """Returns the lengths of the error bars below and above each point; None if no point has an interval."""
    if all(point.low is None and point.high is None for point in points):
        return None
    below = [max(0.0, point.y - (point.y if point.low is None else point.low)) for point in points]
    above = [max(0.0, (point.y if point.high is None else point.high) - point.y) for point in points]
    return [below, above]


def _refer(series: ChartSeries, axes: Axes, color: Any) -> None:
    places, values = zip(*((point.x, point.y) for point in series.points), strict=True)
    axes.plot(places, values, "--", linewidth=1, label=series.name, color=color)
    ends = [(point.x, point.low, point.high) for point in series.points]
    if known := [each for each in ends if None not in each]:
        xs, lows, highs = zip(*known, strict=True)
        axes.fill_between(xs, lows, highs, alpha=0.15, color=color)
