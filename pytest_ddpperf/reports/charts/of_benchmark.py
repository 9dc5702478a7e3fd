"""Charts of single benchmarks: each function gives those of one benchmark of a results document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from pytest_ddpperf.metrics.table import METRICS, STEP_TIME, rules_of
from pytest_ddpperf.records.phases import PHASES
from pytest_ddpperf.reports.charts.chart import Axis, Chart, ChartPoint, ChartSeries, across, numbered, point
from pytest_ddpperf.reports.documents.results import MetricData, ResultData
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.units import format_count

BEFORE_NOTE = "the interval of what it is compared with is over its launches alone"
_PLACES = {row.name: place for place, row in enumerate(METRICS)}
THIS_RUN = "this run"
_OF_PHASES = "a few steps of one launch, taken apart: shares can be compared; step times are of other launches"
_TWO = 2  # a distribution has as many samples
_BYTES = "peak_"  # begins the kinds of memory that are in bytes
_MEMORY = {"allocated": "live tensors on a GPU", "heap": "memory of malloc"}


def reference_of(result: ResultData) -> str:
    """Returns what the benchmark is compared with, in a word or two."""
    return "baseline" if result.against is None else result.against.revision


def now_of(metric: MetricData, x: float) -> ChartPoint | None:
    """The value of a metric, at ``x``; None if it is not finite."""
    return None if metric.value is None else point(x, metric.value, metric.interval)


def before_of(metric: MetricData, x: float) -> ChartPoint | None:
    """The baseline of a metric, at ``x``, with the interval over its launches; None if there is none."""
    if metric.baseline is None:
        return None
    samples = [sample for sample in metric.baseline_samples if sample is not None and math.isfinite(sample)]
    interval = center(samples, metric.scale)[1] if samples else None
    within = interval is not None and interval.low <= metric.baseline <= interval.high
    return point(x, metric.baseline, interval if within else None)


def confidence_of(*metrics: MetricData) -> float | None:
    """The confidence of the intervals of metrics; None if none has one."""
    return next((metric.interval.confidence for metric in metrics if metric.interval is not None), None)


def steps(result: ResultData) -> Iterator[Chart]:
    """The time of each timed step, a line for each launch."""
    yield Chart(
        title="step time by step and launch",
        style="lines",
        x=Axis(name="timed step"),
        y=Axis(name="step time of the slowest rank", unit="s"),
        series=tuple(numbered(f"launch {i}", times, first=1) for i, times in enumerate(result.step_times, 1)),
        note=f"after {format_count(result.plan.warmup, 'step')} of warm-up",
    )


def launches(result: ResultData) -> Iterator[Chart]:
    """The value of each launch beside those of the baseline; for the step time and each other gated metric."""
    before, now = reference_of(result), THIS_RUN
    for name, metric in sorted(result.metrics.items(), key=lambda each: _PLACES.get(each[0], len(_PLACES))):
        repeated = rules_of(name).repeats_step_time or metric.scale == "exact"
        ours = numbered(now, metric.samples, first=1)
        if repeated or not (metric.gated or name == STEP_TIME) or len(ours.points) < _TWO:
            continue
        theirs = numbered(before, metric.baseline_samples, first=1)
        ends = (1, max(each.x for one in (ours, theirs) for each in one.points))
        middles = {now: now_of(metric, 0), before: before_of(metric, 0)}
        yield Chart(
            title=f"{name} by launch",
            subject=name,
            style="points",
            x=Axis(name="round" if metric.paired or result.against is not None else "launch"),
            y=Axis(name=name, unit=metric.unit),
            series=(ours, theirs),
            references=tuple(
                across(f"{one}, all launches", mid, ends, one) for one, mid in middles.items() if mid is not None
            ),
            confidence=confidence_of(metric),
            note=BEFORE_NOTE if theirs.points else "",
        )


def phase_change(result: ResultData) -> Iterator[Chart]:
    """The phases of a step upon each other, before and now; where the baseline has them."""
    known = phases_of(result)
    before = {phase: before_of(metric, 0) for phase, metric in known.items()}
    if not known or None in before.values():
        return
    now = {phase: now_of(metric, 0) for phase, metric in known.items()}
    bars = {reference_of(result): before, THIS_RUN: now}
    yield stacked_phases("phases of a step, before and now", bars, tuple(known.values()))


def phases_of(result: ResultData) -> dict[str, MetricData]:
    """The metric of each phase that is known, in the order of a step."""
    names = {phase: f"phase_{phase}" for phase in PHASES}
    return {phase: result.metrics[name] for phase, name in names.items() if name in result.metrics}


def stacked_phases(
    title: str, bars: Mapping[str, Mapping[str, ChartPoint | None]], metrics: Sequence[MetricData]
) -> Chart:
    """Phases upon each other: a bar for each label, the points of which are by phase."""
    return Chart(
        title=title,
        style="stacked",
        x=Axis(name="", labels=tuple(bars)),
        y=Axis(name="time of a step of the average rank", unit="s"),
        series=tuple(
            ChartSeries(
                phase.replace("_", " "),
                tuple(
                    ChartPoint(x, found.y, found.low, found.high)
                    for x, points in enumerate(bars.values())
                    if (found := points.get(phase)) is not None
                ),
            )
            for phase in PHASES
        ),
        confidence=confidence_of(*metrics),
        note=_OF_PHASES,
    )


def memory(result: ResultData) -> Iterator[Chart]:
    """The memory of each rank, by category."""
    known = {kind: ranks for kind, ranks in result.memory_by_rank.items() if kind.startswith(_BYTES)}
    yield Chart(
        title="memory of ranks by category",
        style="points",
        x=Axis(name="rank", labels=tuple(str(rank) for rank in range(result.world_size))),
        y=Axis(name="peak, mean over launches", unit="B"),
        series=tuple(numbered(kind.replace("_", " "), ranks) for kind, ranks in known.items()),
        references=tuple(
            across(f"{name} of the largest rank", middle, (0, result.world_size - 1), name)
            for kind in known
            for name in [kind.replace("_", " ")]
            if kind in result.metrics and (middle := now_of(result.metrics[kind], 0)) is not None
        ),
        confidence=confidence_of(*(result.metrics[kind] for kind in known if kind in result.metrics)),
    )


def memory_phases(result: ResultData) -> Iterator[Chart]:
    """What each phase did to the memory of a rank."""
    known = [(phase, result.memory_by_phase[phase]) for phase in PHASES if phase in result.memory_by_phase]
    kinds = dict.fromkeys(_MEMORY[use.kind] for _, use in known)
    yield Chart(
        title="memory by phase",
        style="points",
        x=Axis(name="phase", labels=tuple(phase.replace("_", " ") for phase, _ in known)),
        y=Axis(name=" and ".join(kinds) or "memory", unit="B"),
        series=(
            numbered("more after it than before", [float(use.change) for _, use in known]),
            numbered("most inside it", [None if use.peak is None else float(use.peak) for _, use in known]),
        ),
        note="the largest figures over ranks and launches",
    )


def mean_of(values: Sequence[float | None]) -> ChartPoint | None:
    """The mean over launches and its interval, at 0; None unless each launch has a finite value."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known or len(known) < len(values):
        return None
    return point(0, fmean(known), center(known, "difference")[1])
