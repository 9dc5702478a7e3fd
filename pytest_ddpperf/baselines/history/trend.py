"""A metric over commits: one trend for each benchmark and environment, with its steps and linear creeps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from pytest_ddpperf.baselines.history import shifts
from pytest_ddpperf.baselines.history.database import Benchmark, Entry, HistoryRun
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.stats.intervals import from_log

ALPHA = 0.005
"""Largest probability of finding a change in a series that consists only of normal noise."""

MIN_POINTS = 2 * shifts.MIN_SIDE
"""The least number of points: a shorter series cannot show a change beyond noise."""

CONFIDENCE = 0.95
OUTLIER_DISTANCE = 4.0  # standard deviations from the median of the neighbours
NEIGHBOURS = 3  # on either side
PLACE_QUANTILE = 7.35
"""A step's position is in the 95 % interval if its squared residuals add up to at most the least sum + 7.35 variances:
Hansen, "Sample splitting and threshold estimation" (2000), table I."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrendChange:
    """A lasting change of a series from an old level to a new level: its position, size and confidence."""

    kind: shifts.ShiftKind  # a step between two neighbouring points, or a creep, linear over many
    before: int  # the last point of the old level
    after: int  # the first point of the new level
    size: float  # new level minus old
    low: float  # lower end of the 95 % interval of the size at this place
    high: float
    earliest: int  # with 95 % confidence a step lies after this point and not after ``latest``; a creep has ``before``
    latest: int  # a creep has ``after``
    # How much worse the best change of the other kind fits, as a difference of the criterion, which is twice a log
    # likelihood: above 10 there is little doubt.
    evidence: float | None  # None for counts, which have no noise


@dataclass(frozen=True, slots=True)
class Fit:
    """The description of a series of values by constant levels, with changes between the levels."""

    levels: tuple[float, ...]  # the fitted value at each point
    changes: tuple[TrendChange, ...]
    outliers: tuple[int, ...]  # indices of points far from their neighbours; the fit uses values nearer to these


def change_points(values: Sequence[float]) -> Fit:
    """Finds steps and creeps (linear changes) in a series of independent values with noise of constant size.

    If the size of the noise is proportional to the values, give their logarithms.
    """
    import numpy as np

    clipped, outliers = _clipped(values)
    y = np.asarray(clipped, dtype=np.float64)
    if len(y) < MIN_POINTS:
        return Fit((float(y.mean()),) * len(y) if len(y) else (), (), outliers)
    data = shifts.penalised(y, ALPHA)
    found = shifts.find_shifts(data)
    levels = tuple(map(float, shifts.fitted(data, found)))
    return Fit(levels, tuple(_described(data, found)), outliers)


def exact_change_points(values: Sequence[float]) -> Fit:
    """Finds the changes of a series without noise, such as a count, in which every difference is a change."""
    steps = [(shifts.Shift(i, i + 1), new - old) for i, (old, new) in enumerate(pairwise(values)) if new != old]
    return Fit(tuple(values), tuple(_change(shift, size, 0.0, shift, None) for shift, size in steps), ())


def _change(
    shift: shifts.Shift, size: float, half: float, place: tuple[int, int], evidence: float | None
) -> TrendChange:
    """Returns a change of ``size`` plus or minus ``half`` (95 % interval) between the two points in ``place``."""
    ends: dict[str, Any] = {"low": size - half, "high": size + half, "earliest": place[0], "latest": place[1]}
    return TrendChange(kind=shift.kind, **shift._asdict(), size=size, **ends, evidence=evidence)


def _clipped(values: Sequence[float]) -> tuple[list[float], tuple[int, ...]]:
    """Returns the values with outliers moved towards neighbours, and the outliers' indices (the Hampel identifier)."""
    # Davies and Gather 1993. A few changes of level hardly move the median of these differences.
    differences = [abs(new - old) for old, new in pairwise(values)]
    reach = OUTLIER_DISTANCE * 1.4826 / math.sqrt(2) * median(differences) if differences else 0.0
    if reach == 0:
        return list(values), ()
    clipped, outliers = list(values), []
    for i, value in enumerate(values):
        middle = median(values[max(0, i - NEIGHBOURS) : i + NEIGHBOURS + 1])
        if abs(value - middle) > reach:
            clipped[i] = middle + math.copysign(reach, value - middle)
            outliers.append(i)
    return clipped, tuple(outliers)


def _described(data: shifts.PenalisedSeries, found: list[shifts.Shift]) -> list[TrendChange]:
    """Describes the shifts: their sizes, the points at which they may lie, and the evidence for step or creep."""
    import numpy as np

    shapes = shifts.curves(found, len(data.y))
    normal = np.linalg.inv(shapes @ shapes.T)
    sizes = normal @ shapes @ data.y
    df = max(1, len(data.y) - 1 - 2 * len(found))  # a height and a place each
    variance = shifts.residual(data, found) / df
    halves = shifts.t_reach(CONFIDENCE, df) * np.sqrt(np.diag(normal) * variance)
    changes = []
    for i, shift in enumerate(found):
        others = [*found[:i], *found[i + 1 :]]
        other_kind = shifts.best_shift(data, others, ("creep" if shift.kind == "step" else "step",))
        evidence = shifts.criterion(data, [*others, other_kind]) - shifts.criterion(data, found)
        place: tuple[int, int] = shift
        if shift.kind == "step":
            likely = shifts.likely_steps(data, others, PLACE_QUANTILE * variance)
            place = int(likely[0]), int(likely[-1]) + 1
        changes.append(_change(shift, float(sizes[i + 1]), float(halves[i + 1]), place, evidence))
    return changes


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
    """A metric of a benchmark in one environment: its values by commit, and the changes that were found in them."""

    benchmark: Benchmark
    points: tuple[Point, ...]  # one for each commit, and one for each run of changed files or without a commit
    changes: tuple[TrendChange, ...]  # sizes are relative for ratios, else absolute; places are indices of points
    outliers: tuple[int, ...]  # indices of points that are far from their neighbours

    def worsening(self, change: TrendChange) -> float:
        """Returns by how much a change made the metric worse; negative for an improvement."""
        size = change.size if self.benchmark.better == "lower" else -change.size
        level = abs(self.points[change.before].level)
        if self.benchmark.scale == "exact":
            return size / level if level else math.copysign(math.inf, size)
        return size

    @property
    def worst(self) -> float:
        """Returns the largest worsening among the changes; negative if all changes are improvements."""
        return max(map(self.worsening, self.changes), default=-math.inf)


def trends(entries: Iterable[Entry], *, min_change: float = MIN_CHANGE, last: int | None = None) -> tuple[Trend, ...]:
    """Returns the trend of each benchmark in each environment, in the order in which they first occur.

    ``entries`` are in the order of commits; only the newest ``last`` commits count. Changes below the fraction
    ``min_change`` or the metric's ``min_tolerance`` are omitted, except for counts.
    """
    by_benchmark: dict[Benchmark, list[Entry]] = {}
    for entry in entries:
        by_benchmark.setdefault(entry.benchmark, []).append(entry)
    return tuple(_trend(benchmark, recorded, min_change, last) for benchmark, recorded in by_benchmark.items())


def _trend(benchmark: Benchmark, recorded: Sequence[Entry], min_change: float, last: int | None) -> Trend:
    by_commit: dict[object, list[Entry]] = {}
    for number, entry in enumerate(recorded):
        clean = entry.run.commit is not None and not entry.run.dirty  # others have a point of their own
        by_commit.setdefault(entry.run.commit if clean else number, []).append(entry)
    commits = [*by_commit.values()][-(last or 0) :]
    forward, inverse, size = _analysis_scale(benchmark, [entry.value for commit in commits for entry in commit])
    of_commits = ([forward(entry.value) for entry in commit] for commit in commits)
    values = [found[0] if min(found) == max(found) else fmean(found) for found in of_commits]  # the same: not rounded
    # A count that differs from step to step has noise, and hardly any run gates it. Few runs do not gate another count.
    exact = benchmark.scale == "exact" and 2 * sum(entry.gated for entry in recorded) > len(recorded)
    fit = exact_change_points(values) if exact else change_points(values)
    floor = _floor(benchmark, values, min_change, max(entry.min_tolerance for entry in recorded))
    changes = (
        replace(change, size=size(change.size), low=size(change.low), high=size(change.high)) for change in fit.changes
    )
    points = []
    for i, commit in enumerate(commits):
        first, single = commit[0], len(commit) == 1
        point = Point(
            run=first.run,
            runs=len(commit),
            value=first.value if single else inverse(values[i]),
            interval=first.interval if single else None,
            level=inverse(fit.levels[i]),
            change=size(values[i] - fit.levels[i - 1]) if i else None,
        )
        points.append(point)
    return Trend(
        benchmark=benchmark,
        points=tuple(points),
        changes=tuple(change for change in changes if abs(change.size) >= floor),
        outliers=fit.outliers,
    )


def _floor(benchmark: Benchmark, values: Sequence[float], min_change: float, min_tolerance: float) -> float:
    """Returns the smallest change to report, in the unit of the benchmark's changes: a fraction or an amount."""
    if benchmark.scale == "exact":
        return 0.0
    if benchmark.scale == "difference" and benchmark.unit != "1":  # seconds, bytes: a fraction of the typical value
        smallest = MIN_SECONDS if benchmark.unit == "s" else 0.0
        return max(min_change * median(map(abs, values)), smallest, min_tolerance)
    return max(min_change, min_tolerance)  # plain numbers that are subtracted are shares or lie around 1


def _analysis_scale(benchmark: Benchmark, values: Sequence[float]) -> tuple[Callable[[float], float], ...]:
    """Returns three functions, for an analysis on a scale with constant noise.

    The first function converts a value to this scale, the second converts it back, and the third converts a difference
    on this scale to a change (a fraction if values are compared by their ratio, else an amount). The scale is
    logarithmic if values are compared by their ratio and all are above 0; else it is linear.
    """
    if benchmark.scale != "ratio":
        return float, float, float
    if min(values) > 0:
        return math.log, math.exp, from_log
    typical = fmean(map(abs, values)) or 1.0
    return float, float, lambda difference: difference / typical
