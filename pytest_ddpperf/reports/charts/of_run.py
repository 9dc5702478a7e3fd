"""Makes the charts of a run and of its benchmarks. A new chart needs a function and a row of ``CHARTS``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from statistics import fmean
from typing import Any

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics.scaling import EFFICIENCY, SPEEDUP
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verbs import Trainings
from pytest_ddpperf.reports import lines, phrases
from pytest_ddpperf.reports.charts import of_benchmark
from pytest_ddpperf.reports.charts.chart import Axis, Chart, ChartPoint, ChartSeries, point
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.strategies.strategy import parse
from pytest_ddpperf.units import format_count

_TWO = 2  # points that a comparison needs at least
_RANKS = re.compile(r" w\d+( over w\d+)?(?= |$)")  # as ddpperf.scaling names points
_SWEPT = "bucket_cap_mb"
_RATES = ("throughput", "token_throughput")


def _over_ranks(run: Run, what: str, ratio: str | None, ideal: Callable[[int, int], float]) -> Iterator[Chart]:
    """Yields charts of the metric ``ratio`` by number of ranks; charts of the throughput if ``ratio`` is None.

    ``what`` is the title. ``ideal`` returns the ideal value for a number of ranks and the smallest number of ranks.
    """
    for (test, mode), points in _curves(run).items():
        metric = ratio or _rate(points)
        if metric is None:
            continue
        base, sizes = _sizes(points)
        variants: dict[str, list[ChartPoint]] = {}
        for result in sorted(points, key=lambda result: result.measurement.world_size):
            ranks, judged = result.measurement.world_size, phrases.find(result, metric)
            now = ChartPoint(base, 1.0) if ratio and ranks == base else None
            if judged is not None:
                now = of_benchmark.now_of(judged, ranks)
            if now is not None:
                variants.setdefault(_RANKS.sub("", result.name), []).append(now)
        starts = {"": 1.0} if ratio else {name: found[0].y for name, found in variants.items() if found[0].x == base}
        several = len(starts) > 1
        name = metric.replace("_", " ")
        yield Chart(
            title=f"{what} by number of ranks, {mode} scaling",
            subject=test,
            style="lines",
            x=Axis(name="ranks"),
            y=Axis(name=f"{name} over {format_count(base, 'rank')}", unit="1")
            if ratio
            else Axis(name=name, unit=_known(points, metric)[0].series.unit),
            series=tuple(ChartSeries(variant, tuple(found)) for variant, found in variants.items()),
            references=tuple(
                ChartSeries(
                    f"ideal of {variant}" if several else "ideal",
                    tuple(ChartPoint(size, start * ideal(size, base)) for size in sizes),
                    variant if several else "",
                )
                for variant, start in starts.items()
            ),
        )


def _curves(run: Run) -> dict[tuple[str, str], list[Result]]:
    """Returns the points of scaling curves with at least two numbers of ranks, by test and mode."""

    def key(result: Result) -> tuple[str, str] | None:
        mode = result.measurement.mode
        return (result.test, mode) if mode is not None and result.comparisons else None

    return {key: points for key, points in _groups(run, key).items() if len(_sizes(points)[1]) >= _TWO}


def _sizes(points: Sequence[Result]) -> tuple[int, list[int]]:
    sizes = sorted({result.measurement.world_size for result in points})
    return sizes[0], sizes


def throughput(run: Run) -> Iterator[Chart]:
    """Yields charts of the throughput of several trainings that a test measures with the same number of ranks."""

    def key(result: Result) -> tuple[str, int] | None:
        return (_function(result), result.measurement.world_size) if _rate([result]) else None

    for (test, ranks), points in _groups(run, key).items():
        rate = _rate(points)
        if len(points) >= _TWO and rate is not None:
            subject = f"{test} on {format_count(ranks, 'rank')}"
            yield _side_by_side(f"{rate.replace('_', ' ')} by variant", subject, points, rate)


def epoch_time(run: Run) -> Iterator[Chart]:
    """Yields charts of the time of an epoch, before and now, for loaders that have a length."""
    for test, points in _groups(run, lambda one: _function(one) if phrases.find(one, "epoch_time") else None).items():
        yield _side_by_side("time of an epoch, before and now", test, points, "epoch_time")


def _side_by_side(title: str, subject: str, results: Sequence[Result], metric: str) -> Chart:
    return Chart(
        title=title,
        subject=subject,
        style="points",
        x=Axis(name="", labels=tuple(name for name, _ in lines.with_names(results))),
        y=Axis(name=metric.replace("_", " "), unit=results[0][metric].series.unit),
        **_before_and_now(metric, list(enumerate(results))),
    )


def _before_and_now(metric: str, points: Sequence[tuple[float, Result]]) -> dict[str, Any]:
    """Returns two series, a metric of this run and of its reference, for the (x, benchmark) pairs in ``points``."""
    known = [(x, result[metric]) for x, result in points]
    before = " and ".join(dict.fromkeys(of_benchmark.reference_of(result) for _, result in points))
    return {
        "series": (
            _points(of_benchmark.THIS_RUN, (of_benchmark.now_of(each, x) for x, each in known)),
            _points(before, (of_benchmark.before_of(each, x) for x, each in known)),
        )
    }


def bucket_sizes(run: Run) -> Iterator[Chart]:
    """Yields charts of the step time over the bucket size, for benchmarks that differ only in this size."""

    def key(result: Result) -> tuple[Any, ...] | None:
        swept, measured = _swept(result), result.measurement
        if swept is None or phrases.find(result, STEP_TIME) is None:
            return None
        return _function(result), swept[1], measured.world_size, tuple(sorted(measured.recipe.items()))

    for (test, strategy, ranks, _), points in _groups(run, key).items():
        sizes = [(swept[0], result) for result in points if (swept := _swept(result))]
        if len({size for size, _ in sizes}) < _TWO:
            continue
        sizes.sort(key=itemgetter(0))
        yield Chart(
            title="step time by size of buckets",
            subject=f"{test}, {strategy}, {format_count(ranks, 'rank')}",
            style="lines",
            x=Axis(name=_SWEPT, log=sizes[0][0] > 0),
            y=Axis(name="step time", unit="s"),
            **_before_and_now(STEP_TIME, sizes),
        )


def _swept(result: Result) -> tuple[float, str] | None:
    """Returns a benchmark's bucket size, and its strategy without this option; None without a finite size."""
    try:
        strategy = parse(result.measurement.strategy)
        size = float(strategy.options[_SWEPT])
    except (SettingError, KeyError, ValueError):  # the name of a function with arguments, or a word
        return None
    others = [f"{option}={value}" for option, value in strategy.options.items() if option != _SWEPT]
    return (size, " ".join((strategy.name, *others))) if math.isfinite(size) else None


def convergence(run: Run) -> Iterator[Chart]:
    """Yields charts of the loss and of each metric over the optimizer steps, for trainings by several strategies."""
    for found in run.convergences:
        quantities = dict.fromkeys(name for one in found.strategies for curve in one.curves for name in curve.values)
        for quantity in quantities:
            yield Chart(
                title=f"{quantity} by optimizer step",
                subject=f"{found.test} {quantity} on {format_count(found.world_size, 'rank')}",
                style="lines",
                x=Axis(name="optimizer steps"),
                y=Axis(name=f"{quantity}, mean over launches"),
                series=tuple(ChartSeries(one.name, tuple(_course(one, quantity))) for one in found.strategies),
            )


def _course(one: Trainings, quantity: str) -> Iterator[ChartPoint]:
    """Yields, for each step, the mean over launches with its interval; omits steps with a value that is not finite."""
    curves = [dict(zip(curve.steps, curve.values.get(quantity, ()), strict=False)) for curve in one.curves]
    for step in curves[0] if curves else ():
        values = [curve.get(step, math.nan) for curve in curves]
        if all(map(math.isfinite, values)):
            yield point(step, fmean(values), center(values, "difference")[1])


def _groups(run: Run, key: Callable[[Result], Any]) -> dict[Any, list[Result]]:
    """Groups benchmarks by ``key``, in their order; omits benchmarks whose key is None."""
    groups: dict[Any, list[Result]] = {}
    for result in run.results:
        if (found := key(result)) is not None:
            groups.setdefault(found, []).append(result)
    return groups


def _function(result: Result) -> str:
    """Returns a test's name without parameters, so that variants of one test function are in one chart."""
    return result.test.partition("[")[0]


def _rate(points: Sequence[Result]) -> str | None:
    return next((rate for rate in _RATES if len(_known(points, rate)) == len(points)), None)


def _known(points: Sequence[Result], metric: str) -> list[Comparison]:
    return [judged for result in points if (judged := phrases.find(result, metric)) is not None]


def _points(name: str, found: Iterator[ChartPoint | None]) -> ChartSeries:
    return ChartSeries(name, tuple(each for each in found if each is not None))


def _of_each(make: Callable[[Result], Iterator[Chart]]) -> Callable[[Run], Iterator[Chart]]:
    """Returns a function that calls ``make`` for each benchmark of a run and yields all charts."""

    def charts(run: Run) -> Iterator[Chart]:
        for i, result in enumerate(run.results):
            name = lines.full_name(result)
            yield from (
                replace(chart, benchmark=i, subject=f"{name} {chart.subject}".rstrip()) for chart in make(result)
            )

    return charts


CHARTS: Mapping[str, Callable[[Run], Iterator[Chart]]] = {
    # Each with its ideal: that of the throughput is the smallest group's, as it would grow without any loss.
    "speedup": partial(_over_ranks, what="speedup", ratio=SPEEDUP, ideal=lambda ranks, base: ranks / base),
    "efficiency": partial(_over_ranks, what="efficiency", ratio=EFFICIENCY, ideal=lambda _ranks, _base: 1.0),
    "rank_throughput": partial(_over_ranks, what="throughput", ratio=None, ideal=lambda ranks, base: ranks / base),
    "throughput": throughput,
    "steps": _of_each(of_benchmark.steps),
    "launches": _of_each(of_benchmark.launches),
    "memory": _of_each(of_benchmark.memory),
    "memory_phases": _of_each(of_benchmark.memory_phases),
    "bucket_sizes": bucket_sizes,
    "convergence": convergence,
    "epoch_time": epoch_time,
}
"""For each name of a chart, the function that yields such charts; none if the run has no data for them."""


def charts_of(run: Run) -> tuple[Chart, ...]:
    """Returns all charts for which a run has data, in the order of ``CHARTS``, without empty series."""
    return tuple(
        replace(chart, kind=kind, series=series)
        for kind, make in CHARTS.items()
        for chart in make(run)
        if (series := tuple(each for each in chart.series if each.points))
    )
