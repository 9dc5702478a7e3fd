"""Charts of single benchmarks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from pytest_ddpperf.metrics.table import STEP_TIME
from pytest_ddpperf.records.phases import PHASES
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.reports.charts.chart import Axis, Chart, ChartPoint, ChartSeries, numbered, point
from pytest_ddpperf.units import format_count

THIS_RUN = "this run"
_TWO = 2  # samples that a distribution needs at least
_BYTES = "peak_"  # the prefix of kinds of memory in bytes; others are counts
_MEMORY = {"allocated": "live tensors on a GPU", "heap": "memory of malloc"}


def reference_of(result: Result) -> str:
    """Returns a short name of the reference of a benchmark."""
    return "baseline" if result.paired is None else result.paired.revision


def now_of(judged: Comparison, x: float) -> ChartPoint | None:
    """Returns a point at ``x`` with the value of a metric; None if the value is not finite."""
    series = judged.series
    return point(x, series.value, series.interval) if math.isfinite(series.value) else None


def before_of(judged: Comparison, x: float) -> ChartPoint | None:
    """Returns a point at ``x`` with the baseline of a metric; None without a baseline."""
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
            numbered("more after it than before", [use.change for _, use in known]),
            numbered("most inside it", [use.peak for _, use in known]),
        ),
        note="the largest figures over ranks and launches",
    )
