"""Makes the charts of a run and of its benchmarks. A new chart needs a function and a row of ``CHARTS``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from statistics import fmean
from typing import Any

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics.scaling import EFFICIENCY, SPEEDUP
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.phases import PHASES
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verbs import Trainings
from pytest_ddpperf.reports import lines, phrases
from pytest_ddpperf.reports.charts.chart import Axis, Chart, ChartPoint, ChartSeries, numbered, point
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.strategies.strategy import parse
from pytest_ddpperf.units import format_count

_TWO = 2  # points that a comparison needs at least, and samples of a distribution
_RANKS = re.compile(r" w\d+( over w\d+)?(?= |$)")  # as ddpperf.scaling names points
_SWEPT = "bucket_cap_mb"
_RATES = ("throughput", "token_throughput")
THIS_RUN = "this run"
_BYTES = "peak_"  # the prefix of kinds of memory in bytes; others are counts
_MEMORY = {"allocated": "live tensors on a GPU", "heap": "memory of malloc"}


def _over_ranks(run: Run, what: str, ratio: str | None, ideal: Callable[[int, int], float]) -> Iterator[Chart]:
    """Yields charts of the metric ``ratio`` by number of ranks; charts of the throughput if ``ratio`` is None.

    ``what`` is the title. ``ideal`` returns the ideal value for a number of ranks and the smallest number of ranks.
    """

    def key(result: Result) -> tuple[str, str] | None:
        mode = result.measurement.mode
        return (result.test, mode) if mode is not None and result.comparisons else None

    for (test, mode), points in _groups(run, key).items():
        metric, sizes = ratio or _rate(points), sorted({result.measurement.world_size for result in points})
        if metric is None or len(sizes) < _TWO:
            continue
        base = sizes[0]
        variants: dict[str, list[ChartPoint]] = {}
        for result in sorted(points, key=lambda result: result.measurement.world_size):
            ranks, judged = result.measurement.world_size, phrases.find(result, metric)
            now = ChartPoint(base, 1.0) if ratio and ranks == base else None
            if judged is not None:
                now = now_of(judged, ranks)
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
            else Axis(name=name, unit=points[0][metric].series.unit),
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


def throughput(run: Run) -> Iterator[Chart]:
    """Yields charts of the throughput of several trainings that a test measures with the same number of ranks."""

    def key(result: Result) -> tuple[str, int] | None:
        return (_function(result), result.measurement.world_size) if _rate([result]) else None

    for (test, ranks), points in _groups(run, key).items():
        rate = _rate(points)
        if len(points) >= _TWO and rate is not None:
            subject = f"{test} on {format_count(ranks, 'rank')}"
            yield _before_and_now(f"{rate.replace('_', ' ')} by variant", subject, rate, enumerate(points))


def epoch_time(run: Run) -> Iterator[Chart]:
    """Yields charts of the time of an epoch, before and now, for loaders that have a length."""
    for test, points in _groups(run, lambda one: _function(one) if phrases.find(one, "epoch_time") else None).items():
        yield _before_and_now("time of an epoch, before and now", test, "epoch_time", enumerate(points))


def _before_and_now(
    title: str, subject: str, metric: str, points: Iterable[tuple[float, Result]], axis: Axis | None = None
) -> Chart:
    """Returns a chart of a metric of this run and of its reference, for (x, benchmark) pairs; ``axis``: the x axis."""
    places, results = zip(*points, strict=True)
    known = list(zip(places, (result[metric] for result in results), strict=True))
    before = " and ".join(dict.fromkeys(map(reference_of, results)))
    sides = [(THIS_RUN, (now_of(each, x) for x, each in known)), (before, (before_of(each, x) for x, each in known))]
    return Chart(
        title=title,
        subject=subject,
        style="lines" if axis else "points",
        x=axis or Axis(name="", labels=tuple(name for name, _ in lines.with_names(results))),
        y=Axis(name=metric.replace("_", " "), unit=known[0][1].series.unit),
        series=tuple(ChartSeries(name, tuple(filter(None, side))) for name, side in sides),
    )


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
        subject = f"{test}, {strategy}, {format_count(ranks, 'rank')}"
        axis = Axis(name=_SWEPT, log=sizes[0][0] > 0)
        yield _before_and_now("step time by size of buckets", subject, STEP_TIME, sizes, axis)


def _swept(result: Result) -> tuple[float, str] | None:
    """Returns a benchmark's bucket size, and its strategy without the bucket size; None if no finite size is set."""
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
    return next((rate for rate in _RATES if all(phrases.find(result, rate) for result in points)), None)


def reference_of(result: Result) -> str:
    """Returns a short name of the reference of a benchmark."""
    return "baseline" if result.paired is None else result.paired.revision


def now_of(judged: Comparison, x: float) -> ChartPoint | None:
    """Returns a point at ``x`` with the value of a metric; None if the value is not finite."""
    series = judged.series
    return point(x, series.value, series.interval) if math.isfinite(series.value) else None


def before_of(judged: Comparison, x: float) -> ChartPoint | None:
    """Returns a point at ``x`` with the reference's value of a metric; None if there is no such value."""
    return None if judged.baseline is None else ChartPoint(x, judged.baseline)


def steps(result: Result) -> Iterator[Chart]:
    """Yields the chart of all timed steps, with a line for each launch."""
    measured = result.measurement
    yield Chart(
        title="step time by step and launch",
        style="lines",
        x=Axis(name="timed step"),
        y=Axis(name="step time of the slowest rank", unit="s"),
        series=tuple(numbered(f"launch {i}", one.step_times, first=1) for i, one in enumerate(measured.launches, 1)),
        note=f"after {format_count(measured.plan.warmup, 'step')} of warm-up",
    )


def launches(result: Result) -> Iterator[Chart]:
    """Yields charts that compare the launches with the baseline's launches, for the step time and gated metrics."""
    before, now = reference_of(result), THIS_RUN
    for judged in result.comparisons:
        series = judged.series
        repeated = series.rules.repeats_step_time or series.scale == "exact"
        ours = numbered(now, series.samples, first=1)
        if repeated or not (judged.gated or series.metric == STEP_TIME) or len(ours.points) < _TWO:
            continue
        theirs = numbered(before, judged.base_samples, first=1)
        ends = (1, max(each.x for one in (ours, theirs) for each in one.points))
        middles = {now: now_of(judged, 0), before: before_of(judged, 0)}
        yield Chart(
            title=f"{series.metric} by launch",
            subject=series.metric,
            style="points",
            x=Axis(name="round" if judged.paired or result.paired is not None else "launch"),
            y=Axis(name=series.metric, unit=series.unit),
            series=(ours, theirs),
            references=tuple(
                ChartSeries(f"{one}, all launches", tuple(replace(mid, x=x) for x in ends), one)
                for one, mid in middles.items()
                if mid is not None
            ),
        )


def memory(result: Result) -> Iterator[Chart]:
    """Yields the chart of each rank's peak memory, by kind of memory such as resident and allocated."""
    ranks = range(result.measurement.world_size)
    known = {kind: values for kind, values in result.step.memory_by_rank.items() if kind.startswith(_BYTES)}
    yield Chart(
        title="memory of ranks by category",
        style="points",
        x=Axis(name="rank", labels=tuple(map(str, ranks))),
        y=Axis(name="peak, mean over launches", unit="B"),
        series=tuple(numbered(kind.replace("_", " "), values) for kind, values in known.items()),
    )


def memory_phases(result: Result) -> Iterator[Chart]:
    """Yields the chart of the memory that each phase of a step used on a rank."""
    uses = result.step.memory_by_phase
    known = [(phase, uses[phase]) for phase in PHASES if phase in uses]
    kinds = dict.fromkeys(_MEMORY[use.kind] for _, use in known)
    yield Chart(
        title="memory by phase",
        style="points",
        x=Axis(name="phase", labels=tuple(phase.replace("_", " ") for phase, _ in known)),
        y=Axis(name=" and ".join(kinds) or "memory", unit="B"),
        series=(
            numbered("change over the phase", [use.change for _, use in known]),
            numbered("peak in the phase", [use.peak for _, use in known]),
        ),
        note="the largest figures over ranks and launches",
    )


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
    "steps": _of_each(steps),
    "launches": _of_each(launches),
    "memory": _of_each(memory),
    "memory_phases": _of_each(memory_phases),
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
