"""Where a series changed: steps and creeps, each with its size, its place and how sure both are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from pytest_ddpperf.baselines.history.events import (
    FEWEST,
    Event,
    Kind,
    Series,
    best_event,
    criterion,
    curves,
    find_events,
    fitted,
    likely_steps,
    residual,
    series,
)
from pytest_ddpperf.baselines.history.tails import t_reach

ALPHA = 0.005
"""Probability of telling any change of a series that has none but normal noise, at most."""

FEWEST_POINTS = 2 * FEWEST
"""Length below which no change of a series can be told from noise."""

CONFIDENCE = 0.95
OUTLYING = 4.0  # standard deviations from the median of the neighbours
NEIGHBOURS = 3  # on either side
PLACE = 7.35
"""Excess of the residual sum of squares, in variances, up to which a step may lie elsewhere, with 95 % confidence:
Hansen, "Sample splitting and threshold estimation" (2000), table I."""


@dataclass(frozen=True)
class Change:
    """A lasting change of a series.

    Attributes:
        kind: ``step`` between two neighbouring points, or ``creep``, linear over many.
        before: number of the last point of the old level.
        after: number of the first point of the new level.
        size: new level minus old.
        low: lower end of the 95 % interval of ``size``, ``high`` its upper end; the place is taken as known.
        earliest: a step lies after this point with 95 % confidence, and at ``latest`` is over; for a creep the same
            as ``before`` and ``after``.
        evidence: by how much the best change of the other kind fits worse, as a difference of the criterion, which is
            twice a logarithm of likelihood: above 10 there is little doubt.
    """

    kind: Kind
    before: int
    after: int
    size: float
    low: float
    high: float
    earliest: int
    latest: int
    evidence: float


@dataclass(frozen=True)
class Fit:
    """A series as constant levels joined by changes.

    Attributes:
        levels: the fitted value at each point.
        outliers: numbers of the points that are out of line with their neighbours; they count as less far off.
    """

    levels: tuple[float, ...]
    changes: tuple[Change, ...]
    outliers: tuple[int, ...]


def change_points(values: Sequence[float], alpha: float = ALPHA) -> Fit:
    """The changes of a series of independent values with noise of constant size.

    Whether something is a step, a creep or some steps in a row is decided by which describes the series best, each
    charged for what it leaves free; see ``criterion``.

    Args:
        values: in the order of time; logarithms for what is compared by ratios.
        alpha: probability of finding anything in a series without change, at most.
    """
    import numpy as np

    clipped, outliers = _clipped(values)
    y = np.asarray(clipped, dtype=np.float64)
    if len(y) < FEWEST_POINTS:
        return Fit((float(y.mean()),) * len(y) if len(y) else (), (), outliers)
    data = series(y, alpha)
    events = find_events(data)
    levels = tuple(map(float, fitted(data, events)))
    return Fit(levels, tuple(_described(data, events)), outliers)


def exact_change_points(values: Sequence[float]) -> Fit:
    """The changes of a series without noise, such as counts: every difference is a step."""
    changes = tuple(
        Change("step", i, i + 1, new - old, new - old, new - old, i, i + 1, math.inf)
        for i, (old, new) in enumerate(pairwise(values))
        if new != old
    )
    return Fit(tuple(values), changes, ())


def _clipped(values: Sequence[float]) -> tuple[list[float], tuple[int, ...]]:
    """The values with outliers pulled in, and which those are: the Hampel identifier (Davies and Gather 1993).

    The noise is estimated from differences of neighbours, which a few changes of level hardly touch.
    """
    differences = [abs(b - a) for a, b in pairwise(values)]
    reach = OUTLYING * 1.4826 / math.sqrt(2) * median(differences) if differences else 0.0
    if reach == 0:
        return list(values), ()
    clipped, outliers = list(values), []
    for i, value in enumerate(values):
        middle = median(values[max(0, i - NEIGHBOURS) : i + NEIGHBOURS + 1])
        if abs(value - middle) > reach:
            clipped[i] = middle + math.copysign(reach, value - middle)
            outliers.append(i)
    return clipped, tuple(outliers)


def _described(data: Series, events: list[Event]) -> list[Change]:
    """The events with what is known about each."""
    import numpy as np

    shapes = curves(events, data.n)
    normal = np.linalg.inv(shapes @ shapes.T)
    sizes = normal @ shapes @ data.y
    df = max(1, data.n - 1 - 2 * len(events))  # a height and a place each
    variance = residual(data, events) / df
    errors = np.sqrt(np.diag(normal) * variance)
    changes = []
    for i, event in enumerate(events):
        others = [*events[:i], *events[i + 1 :]]
        other = best_event(data, others, event, ("creep" if event.kind == "step" else "step",))
        earliest, latest = event
        if event.kind == "step":
            likely = likely_steps(data, others, PLACE * variance)
            earliest, latest = int(likely[0]), int(likely[-1]) + 1
        size, half = float(sizes[i + 1]), t_reach(CONFIDENCE, df) * float(errors[i + 1])
        evidence = criterion(data, [*others, other]) - criterion(data, events)
        changes.append(Change(event.kind, *event, size, size - half, size + half, earliest, latest, evidence))
    return changes
