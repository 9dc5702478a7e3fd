"""The charts of a run: a new one is a function and a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.charts import of_benchmark, of_run
from pytest_ddpperf.reports.charts.chart import Chart
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.lines import full_name


def _of_each(make: Callable[[Result], Iterator[Chart]]) -> Callable[[Run], Iterator[Chart]]:
    """The charts of each benchmark, with its name and its place."""

    def charts(run: Run) -> Iterator[Chart]:
        for i, result in enumerate(run.results):
            name = full_name(result)
            yield from (
                replace(chart, benchmarks=(i,), subject=f"{name} {chart.subject}".rstrip()) for chart in make(result)
            )

    return charts


CHARTS: Mapping[str, Callable[[Run], Iterator[Chart]]] = {
    "speedup": of_run.speedup,
    "efficiency": of_run.efficiency,
    "rank_throughput": of_run.rank_throughput,
    "throughput": of_run.throughput,
    "steps": _of_each(of_benchmark.steps),
    "launches": _of_each(of_benchmark.launches),
    "memory": _of_each(of_benchmark.memory),
    "memory_phases": _of_each(of_benchmark.memory_phases),
    "bucket_sizes": of_run.bucket_sizes,
    "convergence": of_run.convergence,
    "epoch_time": of_run.epoch_time,
}
"""What makes the charts of each kind; none if the run has no data for it."""


def charts_of(run: Run) -> tuple[Chart, ...]:
    """All charts of a run that have data, in the order of ``CHARTS``; their series have points."""
    return tuple(
        replace(chart, kind=kind, series=series)
        for kind, make in CHARTS.items()
        for chart in make(run)
        if (series := tuple(each for each in chart.series if each.points))
    )
