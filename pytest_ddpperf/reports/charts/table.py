"""The charts of a results document: a new one is a function and a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_ddpperf.reports.charts import of_benchmark, of_run
from pytest_ddpperf.reports.charts.chart import Chart, filled
from pytest_ddpperf.reports.documents.results import ResultData, ResultsData


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartKind:
    """A kind of chart: a row of ``CHARTS``."""

    name: str
    help: str  # what it shows
    make: Callable[[ResultsData], Iterator[Chart]]  # none where the document has no data for it


def _of_each(make: Callable[[ResultData, str], Iterator[Chart]]) -> Callable[[ResultsData], Iterator[Chart]]:
    """The charts of each benchmark, with its place."""

    def charts(document: ResultsData) -> Iterator[Chart]:
        for i, result in enumerate(document.results):
            subject = f"{result.test} {result.name} w{result.world_size}"
            yield from (replace(chart, benchmarks=(i,)) for chart in make(result, subject))

    return charts


CHARTS: Mapping[str, ChartKind] = {
    kind.name: kind
    for kind in (
        ChartKind(name="speedup", help="speedup by number of ranks, with the ideal", make=of_run.speedup),
        ChartKind(name="efficiency", help="scaling efficiency by number of ranks", make=of_run.efficiency),
        ChartKind(
            name="rank_throughput", help="throughput by number of ranks, with the ideal", make=of_run.rank_throughput
        ),
        ChartKind(name="throughput", help="throughput of the ways to train of a test", make=of_run.throughput),
        ChartKind(name="steps", help="step time by step and launch", make=_of_each(of_benchmark.steps)),
        ChartKind(
            name="launches", help="gated metrics by launch, with the baseline's", make=_of_each(of_benchmark.launches)
        ),
        ChartKind(name="memory", help="memory of ranks by category", make=_of_each(of_benchmark.memory)),
        ChartKind(name="memory_phases", help="memory by phase", make=_of_each(of_benchmark.memory_phases)),
        ChartKind(name="phases", help="phases of a step of the benchmarks of a test", make=of_run.phases),
        ChartKind(name="phase_change", help="phases before and now", make=_of_each(of_benchmark.phase_change)),
        ChartKind(name="bucket_sizes", help="step time by size of buckets", make=of_run.bucket_sizes),
        ChartKind(name="convergence", help="loss and metrics by optimizer step and strategy", make=of_run.convergence),
        ChartKind(name="epoch_time", help="time of an epoch before and now", make=of_run.epoch_time),
    )
}


def charts_of(document: ResultsData) -> tuple[Chart, ...]:
    """All charts of a document that have data, in the order of ``CHARTS``."""
    return tuple(chart for kind in CHARTS.values() for chart in filled(kind.make(document)))
