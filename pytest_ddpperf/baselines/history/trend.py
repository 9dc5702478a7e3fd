"""A metric over commits: one line for each benchmark and environment, with the places where it changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from pytest_ddpperf.baselines.history.change_points import Change, change_points, exact_change_points
from pytest_ddpperf.baselines.history.database import Benchmark, Entry, Run
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.stats.intervals import from_log

LEAST = 0.01
"""The smallest change worth telling, as a fraction of the level before; of metrics that are subtracted see `_floor`."""

LEAST_SECONDS = 1e-5
"""Of a part of a step: what is near 0 has no level to take a fraction of."""


@dataclass(frozen=True)
class Point:
    """A commit and what was measured there.

    Attributes:
        run: the first that measured it.
        runs: how many did; the value is their mean (geometric for ratios).
        interval: that of the launches of a single run; None for several runs.
        level: what the fit makes of it.
        change: of the value against the level before this point: relative for ratios, else absolute; None for the
            first one.
    """

    run: Run
    runs: int
    value: float
    interval: Interval | None
    level: float
    change: float | None


@dataclass(frozen=True)
class Trend:
    """A metric of a benchmark in an environment over commits.

    Attributes:
        points: one for each commit, in order; changed work trees and what has no commit are points of their own.
        changes: sizes are relative for ratios, else absolute; places are numbers of points.
        outliers: numbers of the points that are out of line with their neighbours.
    """

    benchmark: Benchmark
    points: tuple[Point, ...]
    changes: tuple[Change, ...]
    outliers: tuple[int, ...]

    def worsening(self, change: Change) -> float:
        """How much worse a change makes it, relative to the level before; negative for an improvement."""
        size = change.size if self.benchmark.better == "lower" else -change.size
        level = abs(self.points[change.before].level)
        if self.benchmark.scale == "exact":
            return size / level if level else math.copysign(math.inf, size)
        return size

    @property
    def worst(self) -> float:
        """The worst of its changes; negative if all are improvements."""
        return max(map(self.worsening, self.changes), default=-math.inf)


def trends(entries: Iterable[Entry], *, least: float = LEAST, last: int | None = None) -> tuple[Trend, ...]:
    """The trend of each benchmark in each environment, in the order in which they first occur.

    Args:
        entries: in the order of commits.
        least: changes that are smaller are not told, nor those below the metric's slack; any change of a count is. It
            is a fraction; for shares and other plain numbers that are subtracted it is itself what they may differ by.
        last: how many commits to look at, counted from the newest; None for all.
    """
    lines: dict[Benchmark, list[Entry]] = {}
    for entry in entries:
        lines.setdefault(entry.benchmark, []).append(entry)
    return tuple(_trend(benchmark, line, least, last) for benchmark, line in lines.items())


@dataclass(frozen=True)
class _Terms:
    """The scale of analysis of a metric: there and back, and what a difference on it is called."""

    there: Callable[[float], float]
    back: Callable[[float], float]
    size: Callable[[float], float]


def _trend(benchmark: Benchmark, line: Sequence[Entry], least: float, last: int | None) -> Trend:
    groups = _by_commit(line)[-(last or 0) :]
    terms = _terms(benchmark, [entry.value for group in groups for entry in group])
    values = [_mean([terms.there(entry.value) for entry in group]) for group in groups]
    # A count that differs from step to step has noise.
    exact = benchmark.scale == "exact" and all(entry.gated for entry in line)
    fit = exact_change_points(values) if exact else change_points(values)
    floor = _floor(benchmark, values, least, max(entry.slack for entry in line))
    changes = (_in_terms(change, terms) for change in fit.changes)
    return Trend(
        benchmark=benchmark,
        points=tuple(_point(group, values, fit.levels, i, terms) for i, group in enumerate(groups)),
        changes=tuple(change for change in changes if abs(change.size) >= floor),
        outliers=fit.outliers,
    )


def _floor(benchmark: Benchmark, values: Sequence[float], least: float, slack: float) -> float:
    """The smallest change to tell, as changes are told: a fraction for ratios, else an amount.

    A hundredth of what is subtracted is one of the typical value (seconds, bytes), but of a plain number, which lies
    around 1 or is a share already, it is 0.01.
    """
    if benchmark.scale == "exact":
        return 0.0
    amount = benchmark.scale == "difference" and benchmark.unit != "1"
    smallest = LEAST_SECONDS if benchmark.unit == "s" else 0.0
    return max(least * median(map(abs, values)), smallest, slack) if amount else max(least, slack)


def _terms(benchmark: Benchmark, values: Sequence[float]) -> _Terms:
    """Logarithms for ratios, as far as all values have one; else ratios are taken of the typical value."""
    if benchmark.scale != "ratio":
        return _Terms(float, float, float)
    if min(values) > 0:
        return _Terms(math.log, math.exp, from_log)
    typical = fmean(map(abs, values)) or 1.0
    return _Terms(float, float, lambda size: size / typical)


def _by_commit(line: Sequence[Entry]) -> list[list[Entry]]:
    """The entries of each commit, where it first occurs; changed work trees and what has no commit stay alone."""
    groups: dict[object, list[Entry]] = {}
    for number, entry in enumerate(line):
        clean = entry.run.commit is not None and not entry.run.dirty
        groups.setdefault(entry.run.commit if clean else number, []).append(entry)
    return list(groups.values())


def _mean(values: Sequence[float]) -> float:
    return values[0] if min(values) == max(values) else fmean(values)


def _in_terms(change: Change, terms: _Terms) -> Change:
    return replace(change, size=terms.size(change.size), low=terms.size(change.low), high=terms.size(change.high))


def _point(group: Sequence[Entry], values: Sequence[float], levels: Sequence[float], i: int, terms: _Terms) -> Point:
    alone = len(group) == 1
    return Point(
        run=group[0].run,
        runs=len(group),
        value=group[0].value if alone else terms.back(values[i]),
        interval=group[0].interval if alone else None,
        level=terms.back(levels[i]),
        change=terms.size(values[i] - levels[i - 1]) if i else None,
    )
