"""A metric over commits: one trend for each benchmark and environment, with its changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from pytest_ddpperf.baselines.history.change_points import TrendChange, change_points, exact_change_points
from pytest_ddpperf.baselines.history.database import Benchmark, Entry, HistoryRun
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.stats.intervals import from_log

MIN_CHANGE = 0.01
"""The smallest change that is reported, as a fraction of the previous level; for differences see ``_floor``."""

MIN_SECONDS = 1e-5
"""The smallest change of a phase's seconds that is reported: a fraction of a time near 0 would be too small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A commit and the metric's value at this commit."""

    run: HistoryRun  # the first run of the commit
    runs: int  # number of runs of the commit; the value is their mean (geometric for ratios)
    value: float
    interval: Interval | None  # of a single run, over its launches; None for several runs
    level: float  # the fitted value
    change: float | None  # from the previous level: relative for ratios, else absolute; None for the first point


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """The values of a metric of a benchmark in one environment by commit, and the changes found in them."""

    benchmark: Benchmark
    points: tuple[Point, ...]  # one for each commit, and one for each run of changed files or without a commit
    changes: tuple[TrendChange, ...]  # sizes are relative for ratios, else absolute; places are indices of points
    outliers: tuple[int, ...]  # indices of points that are far from their neighbours

    def worsening(self, change: TrendChange) -> float:
        """Returns the worsening by a change, a fraction of the previous level; negative for an improvement."""
        size = change.size if self.benchmark.better == "lower" else -change.size
        level = abs(self.points[change.before].level)
        if self.benchmark.scale == "exact":
            return size / level if level else math.copysign(math.inf, size)
        return size

    @property
    def worst(self) -> float:
        """Returns the largest worsening among the changes, a fraction; negative if all changes are improvements."""
        return max(map(self.worsening, self.changes), default=-math.inf)


def trends(entries: Iterable[Entry], *, min_change: float = MIN_CHANGE, last: int | None = None) -> tuple[Trend, ...]:
    """Returns the trend of each benchmark in each environment, in the order in which they first occur.

    ``entries`` are in the order of commits; only the newest ``last`` commits count. Changes below ``min_change`` (a
    fraction; for percentages a difference) or the metric's ``min_tolerance`` are omitted, except for counts.
    """
    by_benchmark: dict[Benchmark, list[Entry]] = {}
    for entry in entries:
        by_benchmark.setdefault(entry.benchmark, []).append(entry)
    return tuple(_trend(benchmark, recorded, min_change, last) for benchmark, recorded in by_benchmark.items())


@dataclass(frozen=True, slots=True)
class _AnalysisScale:
    """The transformation of values to a scale of constant noise, its inverse, and the reported size of a difference."""

    forward: Callable[[float], float]
    inverse: Callable[[float], float]
    size: Callable[[float], float]


def _trend(benchmark: Benchmark, recorded: Sequence[Entry], min_change: float, last: int | None) -> Trend:
    by_commit: dict[object, list[Entry]] = {}
    for number, entry in enumerate(recorded):
        clean = entry.run.commit is not None and not entry.run.dirty  # others have a point of their own
        by_commit.setdefault(entry.run.commit if clean else number, []).append(entry)
    commits = [*by_commit.values()][-(last or 0) :]
    scale = _analysis_scale(benchmark, [entry.value for commit in commits for entry in commit])
    of_commits = ([scale.forward(entry.value) for entry in commit] for commit in commits)
    values = [found[0] if min(found) == max(found) else fmean(found) for found in of_commits]  # the same: not rounded
    # A count that differs from step to step has noise, and hardly any run gates it. Few runs do not gate another count.
    exact = benchmark.scale == "exact" and 2 * sum(entry.gated for entry in recorded) > len(recorded)
    fit = exact_change_points(values) if exact else change_points(values)
    floor = _floor(benchmark, values, min_change, max(entry.min_tolerance for entry in recorded))
    changes = (
        replace(change, size=scale.size(change.size), low=scale.size(change.low), high=scale.size(change.high))
        for change in fit.changes
    )
    return Trend(
        benchmark=benchmark,
        points=tuple(_point(commit, values, fit.levels, i, scale) for i, commit in enumerate(commits)),
        changes=tuple(change for change in changes if abs(change.size) >= floor),
        outliers=fit.outliers,
    )


def _floor(benchmark: Benchmark, values: Sequence[float], min_change: float, min_tolerance: float) -> float:
    """Returns the smallest change to report: a fraction for ratios, else an amount."""
    if benchmark.scale == "exact":
        return 0.0
    if benchmark.scale == "difference" and benchmark.unit != "1":  # seconds, bytes: a fraction of the typical value
        smallest = MIN_SECONDS if benchmark.unit == "s" else 0.0
        return max(min_change * median(map(abs, values)), smallest, min_tolerance)
    return max(min_change, min_tolerance)  # plain numbers that are subtracted are shares or lie around 1


def _analysis_scale(benchmark: Benchmark, values: Sequence[float]) -> _AnalysisScale:
    """Returns a logarithmic scale for ratios; if a value has no logarithm, a scale relative to the typical value."""
    if benchmark.scale != "ratio":
        return _AnalysisScale(float, float, float)
    if min(values) > 0:
        return _AnalysisScale(math.log, math.exp, from_log)
    typical = fmean(map(abs, values)) or 1.0
    return _AnalysisScale(float, float, lambda difference: difference / typical)


def _point(
    commit: Sequence[Entry], values: Sequence[float], levels: Sequence[float], i: int, scale: _AnalysisScale
) -> Point:
    first, single = commit[0], len(commit) == 1
    return Point(
        run=first.run,
        runs=len(commit),
        value=first.value if single else scale.inverse(values[i]),
        interval=first.interval if single else None,
        level=scale.inverse(levels[i]),
        change=scale.size(values[i] - levels[i - 1]) if i else None,
    )
