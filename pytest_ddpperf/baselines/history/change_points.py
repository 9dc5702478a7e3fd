"""The changes of a metric over commits: steps and linear creeps, with sizes, positions and confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pytest_ddpperf.baselines.history.shifts import (
    MIN_SIDE,
    PenalisedSeries,
    Shift,
    ShiftKind,
    best_shift,
    criterion,
    curves,
    find_shifts,
    fitted,
    likely_steps,
    penalised,
    residual,
    t_reach,
)

ALPHA = 0.005
"""Largest probability of finding a change in a series that consists only of normal noise."""

MIN_POINTS = 2 * MIN_SIDE
"""The least number of points: a shorter series cannot show a change beyond noise."""

CONFIDENCE = 0.95
OUTLIER_DISTANCE = 4.0  # standard deviations from the median of the neighbours
NEIGHBOURS = 3  # on either side
PLACE_QUANTILE = 7.35
"""A position of a step is in the 95 % interval if its squares add up to at most this many variances above the least:
Hansen, "Sample splitting and threshold estimation" (2000), table I."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrendChange:
    """A lasting change of a series from an old level to a new level: its position, size and confidence."""

    kind: ShiftKind  # a step between two neighbouring points, or a creep, linear over many
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
    data = penalised(y, ALPHA)
    shifts = find_shifts(data)
    levels = tuple(map(float, fitted(data, shifts)))
    return Fit(levels, tuple(_described(data, shifts)), outliers)


def exact_change_points(values: Sequence[float]) -> Fit:
    """Finds the changes of a series without noise, such as a count, in which every difference is a change."""
    steps = [(Shift(i, i + 1), new - old) for i, (old, new) in enumerate(pairwise(values)) if new != old]
    return Fit(tuple(values), tuple(_change(shift, size, 0.0, shift, None) for shift, size in steps), ())


def _change(shift: Shift, size: float, half: float, place: tuple[int, int], evidence: float | None) -> TrendChange:
    """Returns a change whose 95 % interval is ``size`` plus or minus ``half``; ``place``: earliest and latest point."""
    return TrendChange(
        kind=shift.kind,
        before=shift.before,
        after=shift.after,
        size=size,
        low=size - half,
        high=size + half,
        earliest=place[0],
        latest=place[1],
        evidence=evidence,
    )


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


def _described(data: PenalisedSeries, shifts: list[Shift]) -> list[TrendChange]:
    """Describes the shifts: their sizes, the points at which they may lie, and the evidence for step or creep."""
    import numpy as np

    shapes = curves(shifts, len(data.y))
    normal = np.linalg.inv(shapes @ shapes.T)
    sizes = normal @ shapes @ data.y
    df = max(1, len(data.y) - 1 - 2 * len(shifts))  # a height and a place each
    variance = residual(data, shifts) / df
    halves = t_reach(CONFIDENCE, df) * np.sqrt(np.diag(normal) * variance)
    changes = []
    for i, shift in enumerate(shifts):
        others = [*shifts[:i], *shifts[i + 1 :]]
        other_kind = best_shift(data, others, ("creep" if shift.kind == "step" else "step",))
        evidence = criterion(data, [*others, other_kind]) - criterion(data, shifts)
        place: tuple[int, int] = shift
        if shift.kind == "step":
            likely = likely_steps(data, others, PLACE_QUANTILE * variance)
            place = int(likely[0]), int(likely[-1]) + 1
        changes.append(_change(shift, float(sizes[i + 1]), float(halves[i + 1]), place, evidence))
    return changes
