"""Charts of several benchmarks: each function gives those of a results document."""

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
from pytest_ddpperf.reports.charts import of_benchmark
from pytest_ddpperf.reports.charts.chart import Axis, Chart, ChartPoint, ChartSeries
from pytest_ddpperf.reports.documents.results import MetricData, ResultData, ResultsData
from pytest_ddpperf.reports.names import curve_of
from pytest_ddpperf.stats.intervals import CONFIDENCE
from pytest_ddpperf.strategies.strategy import parse
from pytest_ddpperf.units import format_count

Placed: TypeAlias = "tuple[int, ResultData]"
"""A benchmark with its place in the document."""

_MOST = 24  # benchmarks side by side that one can read
_TWO = 2  # of one there is nothing to compare
_SWEPT = "bucket_cap_mb"
_RATES = ("throughput", "token_throughput")


def speedup(document: ResultsData) -> Iterator[Chart]:
    """Speedup over the smallest group, beside the ideal one."""
    return _scaling(document, SPEEDUP, lambda ranks, base: ranks / base)


def efficiency(document: ResultsData) -> Iterator[Chart]:
    """The share of the ideal speedup."""
    return _scaling(document, EFFICIENCY, lambda _ranks, _base: 1.0)


def _scaling(document: ResultsData, metric: str, ideal: Callable[[int, int], float]) -> Iterator[Chart]:
    """Charts of a metric over the smallest group, in which that is 1 by definition."""
    for (test, mode), points in _curves(document).items():
        base, sizes = _sizes(points)

        def value(result: ResultData, base: int = base) -> ChartPoint | None:
            if metric in result.metrics:
                return of_benchmark.now_of(result.metrics[metric], result.world_size)
            return ChartPoint(base, 1.0) if result.world_size == base else None

        yield Chart(
            **_ranks_chart(metric.removeprefix("scaling_"), f"{mode} scaling", test, points, value),
            y=Axis(name=f"{metric.replace('_', ' ')} over {format_count(base, 'rank')}", unit="1"),
            references=(ChartSeries("ideal", tuple(ChartPoint(size, ideal(size, base)) for size in sizes)),),
            confidence=of_benchmark.confidence_of(*_known(points, metric)),
        )


def rank_throughput(document: ResultsData) -> Iterator[Chart]:
    """Throughput over the number of ranks, beside what the smallest group's would become without any loss."""
    for (test, mode), points in _curves(document).items():
        rate = _rate(points)
        if rate is None:
            continue
        base, sizes = _sizes(points)
        starts = {
            curve_of(one.name): one.metrics[rate].value
            for _, one in points
            if one.world_size == base and rate in one.metrics
        }
        ideals = (
            ChartSeries(
                f"ideal of {name}" if len(starts) > 1 else "ideal",
                tuple(ChartPoint(size, start * size / base) for size in sizes),
                name if len(starts) > 1 else "",
            )
            for name, start in starts.items()
            if start is not None
        )
        yield Chart(
            **_ranks_chart("rank_throughput", f"{mode} scaling", test, points, _value_of(rate)),
            y=Axis(name=rate.replace("_", " "), unit=_known(points, rate)[0].unit),
            references=tuple(ideals),
            confidence=of_benchmark.confidence_of(*_known(points, rate)),
        )


def _curves(document: ResultsData) -> dict[tuple[str, str], list[Placed]]:
    """The points of all scaling curves, by test and mode; only where there are at least two numbers of ranks."""
    curves: dict[tuple[str, str], list[Placed]] = {}
    for i, result in enumerate(document.results):
        if result.mode is not None and result.metrics:
            curves.setdefault((result.test, result.mode), []).append((i, result))
    return {key: points for key, points in curves.items() if len(_sizes(points)[1]) >= _TWO}


def _sizes(points: Sequence[Placed]) -> tuple[int, list[int]]:
    sizes = sorted({result.world_size for _, result in points})
    return sizes[0], sizes


def _ranks_chart(
    kind: str, what: str, test: str, points: Sequence[Placed], value: Callable[[ResultData], ChartPoint | None]
) -> dict[str, Any]:
    """Returns what all charts over the number of ranks have: a series for each way to train."""
    ways: dict[str, list[ChartPoint]] = {}
    for _, result in sorted(points, key=lambda placed: placed[1].world_size):
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


def throughput(document: ResultsData) -> Iterator[Chart]:
    """Throughput of the ways to train that a test measures on one number of ranks."""
    groups = _groups(document, lambda result: (_function(result), result.world_size) if _rate([(0, result)]) else None)
    for (test, ranks), points in groups.items():
        rate = _rate(points)
        if len(points) >= _TWO and rate is not None:
            subject = f"{test} on {format_count(ranks, 'rank')}"
            yield from _side_by_side(f"{rate.replace('_', ' ')} by way to train", subject, points, rate)


def epoch_time(document: ResultsData) -> Iterator[Chart]:
    """The time of an epoch before and now, where loaders have a length."""
    for test, points in _groups(
        document, lambda result: _function(result) if "epoch_time" in result.metrics else None
    ).items():
        yield from _side_by_side("time of an epoch, before and now", test, points, "epoch_time")


def phases(document: ResultsData) -> Iterator[Chart]:
    """The phases of a step upon each other, a bar for each benchmark of a test."""
    for test, points in _groups(
        document, lambda result: _function(result) if of_benchmark.phases_of(result) else None
    ).items():
        for part, some in _parts(test, points):
            bars = {
                label: {
                    phase: of_benchmark.now_of(metric, 0) for phase, metric in of_benchmark.phases_of(result).items()
                }
                for label, (_, result) in zip(_labels(some), some, strict=True)
            }
            metrics = [metric for _, result in some for metric in of_benchmark.phases_of(result).values()]
            chart = of_benchmark.stacked_phases("phases of a step", bars, metrics)
            yield replace(chart, subject=part, benchmarks=tuple(i for i, _ in some))


def _side_by_side(title: str, subject: str, points: Sequence[Placed], metric: str) -> Iterator[Chart]:
    """A metric of some benchmarks, each with what it is compared with."""
    for part, some in _parts(subject, points):
        yield Chart(
            title=title,
            subject=part,
            style="points",
            x=Axis(name="", labels=tuple(_labels(some))),
            y=Axis(name=metric.replace("_", " "), unit=some[0][1].metrics[metric].unit),
            **_before_and_now(metric, [(x, *placed) for x, placed in enumerate(some)]),
        )


def _before_and_now(metric: str, points: Sequence[tuple[float, int, ResultData]]) -> dict[str, Any]:
    """Returns what all charts of a metric have that show benchmarks, each at its x, and what they are compared with."""
    known = [(x, result.metrics[metric]) for x, _, result in points]
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


def bucket_sizes(document: ResultsData) -> Iterator[Chart]:
    """The step time over the size of buckets, of benchmarks that differ in nothing else."""
    sweeps = _groups(
        document,
        lambda result: (
            (_function(result), *other, result.world_size, tuple(sorted(result.recipe.items())))
            if STEP_TIME in result.metrics and (other := _without_size(result))
            else None
        ),
    )
    for (test, strategy, ranks, _), points in sweeps.items():
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


def _options(result: ResultData) -> tuple[str, Mapping[str, Any]]:
    try:
        strategy = parse(result.strategy)
    except SettingError:  # the name of a function with arguments
        return result.strategy, {}
    return strategy.name, strategy.options


def _size(result: ResultData) -> float:
    """The size of its buckets; NaN if it names none that is a number: some ways to train take words."""
    try:
        return float(_options(result)[1].get(_SWEPT, math.nan))
    except ValueError:
        return math.nan


def _without_size(result: ResultData) -> tuple[str] | None:
    """The strategy without the size of its buckets; None if it names none that is a finite number."""
    name, options = _options(result)
    others = [f"{option}={value}" for option, value in options.items() if option != _SWEPT]
    return (" ".join((name, *others)),) if math.isfinite(_size(result)) else None


def convergence(document: ResultsData) -> Iterator[Chart]:
    """What trainings by several strategies come to, by optimizer steps: loss, and what is evaluated."""
    for found in document.convergences:
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
        if (
            all(step in curve for curve in curves)
            and (mean := of_benchmark.mean_of([curve[step] for curve in curves])) is not None
        ):
            yield replace(mean, x=step)


def _groups(document: ResultsData, key: Callable[[ResultData], Any]) -> dict[Any, list[Placed]]:
    """Benchmarks with the same key, in order; those whose key is None are omitted."""
    groups: dict[Any, list[Placed]] = {}
    for i, result in enumerate(document.results):
        if (found := key(result)) is not None:
            groups.setdefault(found, []).append((i, result))
    return groups


def _function(result: ResultData) -> str:
    """The test without its parameters: variants of one function are seen side by side."""
    return result.test.partition("[")[0]


def _labels(points: Sequence[Placed]) -> list[str]:
    """What tells the benchmarks of one function apart: parameters, name, and number of ranks where that differs."""
    sizes = {result.world_size for _, result in points}

    def label(result: ResultData) -> str:
        parameters = result.test.partition("[")[2].removesuffix("]")
        name = "" if result.name in (parameters, *parameters.split("-")) else result.name
        ranks = format_count(result.world_size, "rank") if len(sizes) > 1 else ""
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
    return next((rate for rate in _RATES if all(rate in result.metrics for _, result in points)), None)


def _known(points: Sequence[Placed], metric: str) -> list[MetricData]:
    return [result.metrics[metric] for _, result in points if metric in result.metrics]


def _value_of(metric: str) -> Callable[[ResultData], ChartPoint | None]:
    return lambda result: of_benchmark.now_of(result.metrics[metric], result.world_size)


def _points(name: str, found: Iterator[ChartPoint | None]) -> ChartSeries:
    return ChartSeries(name, tuple(each for each in found if each is not None))
