"""Charts of several benchmarks: each function gives those of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeAlias

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.metrics.scaling import EFFICIENCY, SPEEDUP
from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.convergence import Convergence, Trainings
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.reports.charts import of_benchmark
from pytest_ddpperf.reports.charts.chart import Axis, Chart, ChartPoint, ChartSeries
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.lines import curve_of
from pytest_ddpperf.reports.phrases import find
from pytest_ddpperf.stats.intervals import CONFIDENCE
from pytest_ddpperf.strategies.strategy import parse
from pytest_ddpperf.units import format_count

Placed: TypeAlias = "tuple[int, Result]"
"""A benchmark with its place in the run."""

_MOST = 24  # benchmarks side by side that one can read
_TWO = 2  # of one there is nothing to compare
_SWEPT = "bucket_cap_mb"
_RATES = ("throughput", "token_throughput")


def speedup(run: Run) -> Iterator[Chart]:
    """Speedup over the smallest group, beside the ideal one."""
    return _scaling(run, SPEEDUP, lambda ranks, base: ranks / base)


def efficiency(run: Run) -> Iterator[Chart]:
    """The share of the ideal speedup."""
    return _scaling(run, EFFICIENCY, lambda _ranks, _base: 1.0)


def _scaling(run: Run, metric: str, ideal: Callable[[int, int], float]) -> Iterator[Chart]:
    """Charts of a metric over the smallest group, in which that is 1 by definition."""
    for (test, mode), points in _curves(run).items():
        base, sizes = _sizes(points)

        def value(result: Result, base: int = base) -> ChartPoint | None:
            ranks, judged = result.measurement.world_size, find(result, metric)
            if judged is not None:
                return of_benchmark.now_of(judged, ranks)
            return ChartPoint(base, 1.0) if ranks == base else None

        yield Chart(
            **_ranks_chart(metric.removeprefix("scaling_"), f"{mode} scaling", test, points, value),
            y=Axis(name=f"{metric.replace('_', ' ')} over {format_count(base, 'rank')}", unit="1"),
            references=(ChartSeries("ideal", tuple(ChartPoint(size, ideal(size, base)) for size in sizes)),),
            confidence=of_benchmark.confidence_of(*_known(points, metric)),
        )


def rank_throughput(run: Run) -> Iterator[Chart]:
    """Throughput over the number of ranks, beside what the smallest group's would become without any loss."""
    for (test, mode), points in _curves(run).items():
        rate = _rate(points)
        if rate is None:
            continue
        base, sizes = _sizes(points)
        first = [one for _, one in points if one.measurement.world_size == base]
        starts = {curve_of(one.name): one[rate].series.value for one in first}
        ideals = (
            ChartSeries(
                f"ideal of {name}" if len(starts) > 1 else "ideal",
                tuple(ChartPoint(size, start * size / base) for size in sizes),
                name if len(starts) > 1 else "",
            )
            for name, start in starts.items()
            if math.isfinite(start)
        )

        def value(result: Result, rate: str = rate) -> ChartPoint | None:
            return of_benchmark.now_of(result[rate], result.measurement.world_size)

        yield Chart(
            **_ranks_chart("rank_throughput", f"{mode} scaling", test, points, value),
            y=Axis(name=rate.replace("_", " "), unit=_known(points, rate)[0].series.unit),
            references=tuple(ideals),
            confidence=of_benchmark.confidence_of(*_known(points, rate)),
        )


def _curves(run: Run) -> dict[tuple[str, str], list[Placed]]:
    """The points of all scaling curves, by test and mode; only where there are at least two numbers of ranks."""

    def key(result: Result) -> tuple[str, str] | None:
        mode = result.measurement.mode
        return (result.test, mode) if mode is not None and result.comparisons else None

    return {key: points for key, points in _groups(run, key).items() if len(_sizes(points)[1]) >= _TWO}


def _sizes(points: Sequence[Placed]) -> tuple[int, list[int]]:
    sizes = sorted({result.measurement.world_size for _, result in points})
    return sizes[0], sizes


def _ranks_chart(
    kind: str, what: str, test: str, points: Sequence[Placed], value: Callable[[Result], ChartPoint | None]
) -> dict[str, Any]:
    """Returns what all charts over the number of ranks have: a series for each way to train."""
    ways: dict[str, list[ChartPoint]] = {}
    for _, result in sorted(points, key=lambda placed: placed[1].measurement.world_size):
        if (found := value(result)) is not None:
            ways.setdefault(curve_of(result.name), []).append(found)
    return {
        "title": f"{kind.removeprefix('rank_')} by number of ranks, {what}",
        "subject": test,
        "style": "lines",
        "x": Axis(name="ranks"),
        "series": tuple(ChartSeries(name, tuple(found)) for name, found in ways.items()),
        "benchmarks": tuple(i for i, _ in points),
    }


def throughput(run: Run) -> Iterator[Chart]:
    """Throughput of the ways to train that a test measures on one number of ranks."""

    def key(result: Result) -> tuple[str, int] | None:
        return (_function(result), result.measurement.world_size) if _rate([(0, result)]) else None

    for (test, ranks), points in _groups(run, key).items():
        rate = _rate(points)
        if len(points) >= _TWO and rate is not None:
            subject = f"{test} on {format_count(ranks, 'rank')}"
            yield from _side_by_side(f"{rate.replace('_', ' ')} by way to train", subject, points, rate)


def epoch_time(run: Run) -> Iterator[Chart]:
    """The time of an epoch before and now, where loaders have a length."""
    for test, points in _groups(run, lambda one: _function(one) if find(one, "epoch_time") else None).items():
        yield from _side_by_side("time of an epoch, before and now", test, points, "epoch_time")


def _side_by_side(title: str, subject: str, points: Sequence[Placed], metric: str) -> Iterator[Chart]:
    """A metric of some benchmarks, each with what it is compared with."""
    for part, some in _parts(subject, points):
        yield Chart(
            title=title,
            subject=part,
            style="points",
            x=Axis(name="", labels=tuple(_labels(some))),
            y=Axis(name=metric.replace("_", " "), unit=some[0][1][metric].series.unit),
            **_before_and_now(metric, [(x, *placed) for x, placed in enumerate(some)]),
        )


def _before_and_now(metric: str, points: Sequence[tuple[float, int, Result]]) -> dict[str, Any]:
    """Returns what all charts of a metric have that show benchmarks, each at its x, and what they are compared with."""
    known = [(x, result[metric]) for x, _, result in points]
    before = " and ".join(dict.fromkeys(of_benchmark.reference_of(result) for *_, result in points))
    return {
        "series": (
            _points(of_benchmark.THIS_RUN, (of_benchmark.now_of(each, x) for x, each in known)),
            _points(before, (of_benchmark.before_of(each, x) for x, each in known)),
        ),
        "confidence": of_benchmark.confidence_of(*(each for _, each in known)),
        "benchmarks": tuple(i for _, i, _ in points),
        "note": of_benchmark.BEFORE_NOTE if any(each.baseline is not None for _, each in known) else "",
    }


def bucket_sizes(run: Run) -> Iterator[Chart]:
    """The step time over the size of buckets, of benchmarks that differ in nothing else."""

    def key(result: Result) -> tuple[Any, ...] | None:
        other, measured = _without_size(result), result.measurement
        if not other or find(result, STEP_TIME) is None:
            return None
        return _function(result), other, measured.world_size, tuple(sorted(measured.recipe.items()))

    for (test, strategy, ranks, _), points in _groups(run, key).items():
        if len({_size(result) for _, result in points}) < _TWO:
            continue
        swept = sorted(((_size(result), i, result) for i, result in points), key=itemgetter(0))
        yield Chart(
            title="step time by size of buckets",
            subject=f"{test}, {strategy}, {format_count(ranks, 'rank')}",
            style="lines",
            x=Axis(name=_SWEPT, log=swept[0][0] > 0),
            y=Axis(name="step time", unit="s"),
            **_before_and_now(STEP_TIME, swept),
        )


def _options(result: Result) -> tuple[str, Mapping[str, Any]]:
    try:
        strategy = parse(result.measurement.strategy)
    except SettingError:  # the name of a function with arguments
        return result.measurement.strategy, {}
    return strategy.name, strategy.options


def _size(result: Result) -> float:
    """The size of its buckets; NaN if it names none that is a number: some ways to train take words."""
    try:
        return float(_options(result)[1].get(_SWEPT, math.nan))
    except ValueError:
        return math.nan


def _without_size(result: Result) -> str:
    """The strategy without the size of its buckets; empty if it names none that is a finite number."""
    name, options = _options(result)
    others = [f"{option}={value}" for option, value in options.items() if option != _SWEPT]
    return " ".join((name, *others)) if math.isfinite(_size(result)) else ""


def convergence(run: Run) -> Iterator[Chart]:
    """What trainings by several strategies come to, by optimizer steps: loss, and what is evaluated."""
    for found in run.convergences:
        quantities = dict.fromkeys(name for one in found.strategies for curve in one.curves for name in curve.values)
        yield from (_trained(found, quantity) for quantity in quantities)


def _trained(found: Convergence, quantity: str) -> Chart:
    return Chart(
        title=f"{quantity} by optimizer step",
        subject=f"{found.test} {quantity} on {format_count(found.world_size, 'rank')}",
        style="lines",
        x=Axis(name="optimizer steps"),
        y=Axis(name=f"{quantity}, mean over launches"),
        series=tuple(ChartSeries(one.name, tuple(_course(one, quantity))) for one in found.strategies),
        confidence=CONFIDENCE if len(found.strategies[0].curves) > 1 else None,
    )


def _course(one: Trainings, quantity: str) -> Iterator[ChartPoint]:
    """The mean over launches at each step that all of them have."""
    curves = [dict(zip(curve.steps, curve.values.get(quantity, ()), strict=False)) for curve in one.curves]
    for step in curves[0] if curves else ():
        values = [curve[step] for curve in curves if step in curve]
        if len(values) == len(curves) and (mean := of_benchmark.mean_of(values)) is not None:
            yield replace(mean, x=step)


def _groups(run: Run, key: Callable[[Result], Any]) -> dict[Any, list[Placed]]:
    """Benchmarks with the same key, in order; those whose key is None are omitted."""
    groups: dict[Any, list[Placed]] = {}
    for i, result in enumerate(run.results):
        if (found := key(result)) is not None:
            groups.setdefault(found, []).append((i, result))
    return groups


def _function(result: Result) -> str:
    """The test without its parameters: variants of one function are seen side by side."""
    return result.test.partition("[")[0]


def _labels(points: Sequence[Placed]) -> list[str]:
    """What tells the benchmarks of one function apart: parameters, name, and number of ranks where that differs."""
    several = len(_sizes(points)[1]) > 1

    def label(result: Result) -> str:
        parameters = result.test.partition("[")[2].removesuffix("]")
        name = "" if result.name in (parameters, *parameters.split("-")) else result.name
        ranks = format_count(result.measurement.world_size, "rank") if several else ""
        return " ".join(filter(None, (parameters, name, ranks)))

    return [label(result) for _, result in points]


def _parts(subject: str, points: Sequence[Placed]) -> Iterator[tuple[str, Sequence[Placed]]]:
    """The benchmarks in parts that one can read, with the subject of each."""
    parts = -(-len(points) // _MOST)
    for i in range(parts):
        more = f", part {i + 1} of {parts}" if parts > 1 else ""
        yield subject + more, points[i * _MOST : (i + 1) * _MOST]


def _rate(points: Sequence[Placed]) -> str | None:
    """The rate that all have; None if there is none."""
    return next((rate for rate in _RATES if len(_known(points, rate)) == len(points)), None)


def _known(points: Sequence[Placed], metric: str) -> list[Comparison]:
    return [judged for _, result in points if (judged := find(result, metric)) is not None]


def _points(name: str, found: Iterator[ChartPoint | None]) -> ChartSeries:
    return ChartSeries(name, tuple(each for each in found if each is not None))
