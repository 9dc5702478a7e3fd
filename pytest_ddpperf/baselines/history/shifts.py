"""Fits a series by a constant plus shifts of its level: steps, and creeps, which are linear over many points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Indices = NDArray[np.int64]
    Gains = Callable[[Indices, Indices], Array]

# ruptures searches for steps or for kinks, not for both at once: it describes a creep by several steps.
MIN_SIDE = 3  # points on either side of a step: fewer may be outliers
MIN_CREEP = 5  # points from its start to its end: a shorter one is a step
LENGTH_RATIO = 1.3  # ratio of successive lengths of creeps in the first, coarse search
REFINEMENT = 5  # each finer search for the places of a creep has steps smaller by this factor
CREEP_PENALTY = 2  # the additional penalty of a creep, in logarithms of the number of points
CANDIDATES = 2  # number of independent candidates for each point that have the same rate of false alarms
LOOK_AHEAD = 2  # shifts beyond the best description: two steps may be worth their penalty only as a pair
MAX_SWEEPS = 10
MIN_NEWS = 1e-6  # the least share of a curve that is no combination of the other curves
ROUNDING = 1e-20  # share of the squares of a series that rounding alone may leave

ShiftKind = Literal["step", "creep"]
KINDS: tuple[ShiftKind, ...] = ("step", "creep")


class Shift(NamedTuple):
    """A curve that is 0 up to point ``before``, 1 from point ``after`` on, and linear in between."""

    before: int
    after: int

    @property
    def kind(self) -> ShiftKind:
        """Returns ``step`` if the level changes between neighbouring points, else ``creep``."""
        return "step" if self.after == self.before + 1 else "creep"


@dataclass(frozen=True, eq=False, slots=True)
class PenalisedSeries:
    """A series of values, and the penalty for each shift of the level in a fit of the series."""

    y: Array
    penalty: float  # by how much a shift must lower n log(residual sum of squares) to be accepted


def penalised(y: Array, alpha: float) -> PenalisedSeries:
    """Returns the series with a penalty so high that pure normal noise has a shift with probability at most ``alpha``.

    The penalty is the threshold of a t test, with a Bonferroni correction for two candidate shifts per point. There are
    more candidates, but they overlap: in simulated histories, this correction gives the level ``alpha``.
    """
    df = len(y) - 2
    t = t_reach(1 - alpha / (CANDIDATES * len(y)), df)
    return PenalisedSeries(y, len(y) * math.log1p(t * t / df))


def t_reach(confidence: float, df: float) -> float:
    """Returns the half width of a two-sided t interval, in standard errors.

    The formula is from Wallace, "Bounds on normal approximations to Student's and the chi-square distributions" (1959).
    To import scipy would take longer than the whole search.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2) * (8 * df + 3) / (8 * df + 1)
    return math.sqrt(df * math.expm1(z * z / df))


def find_shifts(data: PenalisedSeries) -> list[Shift]:
    """Returns the shifts that describe the series best, in order.

    The search runs twice: it starts once with the best creep, and once without shifts. It adds steps one by one, and
    improves all shifts after each step.
    """
    best: list[Shift] = []
    for start in ([best_shift(data, [], ("creep",))], []):
        shifts = start
        while len(shifts) < len(best) + LOOK_AHEAD:
            shifts = _settled(data, [*shifts, best_shift(data, shifts, ("step",))])
            models = (_pruned(data, model) for model in (shifts, _settled(data, shifts, KINDS)))
            best = min(best, *models, key=partial(criterion, data))
    return best


def criterion(data: PenalisedSeries, shifts: Sequence[Shift]) -> float:
    """Returns the number that the best description minimises: n log(residual sum of squares) plus each shift's penalty.

    This is a Bayesian information criterion (Schwarz 1978) with a penalty for change points, as in Zhang and Siegmund
    (2007). The penalty is higher than for ordinary parameters, because positions are chosen among many.
    """
    # A fit without any residual is no better than one with the residual of rounding.
    least = ROUNDING * max(float(data.y @ data.y), 1e-280)
    creeps = sum(shift.kind == "creep" for shift in shifts)
    penalty = len(shifts) * data.penalty + creeps * CREEP_PENALTY * math.log(len(data.y))
    return len(data.y) * math.log(max(residual(data, shifts), least)) + penalty


def best_shift(data: PenalisedSeries, others: list[Shift], kinds: Sequence[ShiftKind] = KINDS) -> Shift:
    """Returns the shift that best describes the series in addition to ``others``: a step or a creep."""
    import numpy as np

    gains = _gains(data, others)
    shifts = []
    for kind in kinds:
        best = _best(gains, *_places(len(data.y), kind))
        reach = (best.after - best.before) * (LENGTH_RATIO - 1)
        while kind == "creep" and reach >= 1:
            # All creeps whose ends lie near the ends of the best creep so far.
            offsets = np.unique(np.rint(np.linspace(-reach, reach, 2 * REFINEMENT + 1))).astype(np.int64)
            before, after = (ends.ravel() for ends in np.meshgrid(best.before + offsets, best.after + offsets))
            inside = (before >= 0) & (after < len(data.y)) & (after - before >= MIN_CREEP)
            best = _best(gains, before[inside], after[inside])
            reach /= REFINEMENT
        shifts.append(best)
    return shifts[0] if len(shifts) == 1 else min(shifts, key=lambda shift: criterion(data, [*others, shift]))


def likely_steps(data: PenalisedSeries, others: list[Shift], excess: float) -> Indices:
    """Returns the index before each step of the level whose residual is at most the least residual + ``excess``."""
    before, after = _places(len(data.y), "step")
    gains = _gains(data, others)(before, after)
    likely: Indices = before[gains >= gains.max() - excess]
    return likely


def curves(shifts: Sequence[Shift], n: int) -> Array:
    """Returns a constant and the curve of each shift, one per row."""
    import numpy as np

    t = np.arange(n)
    return np.array([np.ones(n), *(np.clip((t - s.before) / (s.after - s.before), 0, 1) for s in shifts)])


def fitted(data: PenalisedSeries, shifts: Sequence[Shift]) -> Array:
    """Returns the values of the least-squares fit of a constant and the shifts to the series."""
    basis = _basis(tuple(shifts), len(data.y))
    levels: Array = basis.T @ (basis @ data.y)
    return levels


def residual(data: PenalisedSeries, shifts: Sequence[Shift]) -> float:
    """Returns the sum of squared residuals of the fit; 0 if rounding explains it."""
    rest = data.y - fitted(data, shifts)
    squares = float(rest @ rest)
    return squares if squares > ROUNDING * float(data.y @ data.y) else 0.0


def _settled(data: PenalisedSeries, shifts: list[Shift], kinds: Sequence[ShiftKind] | None = None) -> list[Shift]:
    """Replaces each shift by the best shift of ``kinds`` (None: of the same kind), until no shift changes any more."""
    shifts = sorted(shifts)
    for _ in range(MAX_SWEEPS):
        before = list(shifts)
        for i, shift in enumerate(before):
            others = [*shifts[:i], *shifts[i + 1 :]]
            shifts[i] = best_shift(data, others, kinds or (shift.kind,))
        shifts.sort()
        if shifts == before:
            break
    return shifts


def _pruned(data: PenalisedSeries, shifts: list[Shift]) -> list[Shift]:
    """Removes the weakest shift again and again, as long as this does not increase ``criterion``."""
    shifts = sorted(set(shifts))
    while shifts:
        fewer = min(([*shifts[:i], *shifts[i + 1 :]] for i in range(len(shifts))), key=partial(criterion, data))
        if criterion(data, fewer) > criterion(data, shifts):
            break
        shifts = fewer
    return shifts


@lru_cache(maxsize=16)
def _places(n: int, kind: ShiftKind) -> tuple[Indices, Indices]:
    """Returns the points before and after each candidate shift of a kind in a series of ``n`` points."""
    import numpy as np

    if kind == "step":
        before = np.arange(MIN_SIDE - 1, n - MIN_SIDE)
        return before, before + 1
    lengths = [MIN_CREEP]
    while lengths[-1] < n - 1:
        lengths.append(min(n - 1, max(lengths[-1] + 1, round(lengths[-1] * LENGTH_RATIO))))
    before = np.concatenate([np.arange(n - length) for length in lengths])
    return before, before + np.repeat(lengths, [n - length for length in lengths])


def _best(gains: Gains, before: Indices, after: Indices) -> Shift:
    i = int(gains(before, after).argmax())
    return Shift(int(before[i]), int(after[i]))


def _gains(data: PenalisedSeries, shifts: list[Shift]) -> Gains:
    """Returns a function that computes by how much one more shift, at given points, lowers the sum of squares."""
    import numpy as np

    n, basis = len(data.y), _basis(tuple(shifts), len(data.y))
    rows = np.vstack([data.y - basis.T @ (basis @ data.y), basis])
    # The inner product of each row with each step; with a creep it is the mean over the creep's span.
    steps = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1][:, 1:]
    sums = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(steps, axis=1)], axis=1)

    def gains(before: Indices, after: Indices) -> Array:
        length = after - before
        products = (sums[:, after] - sums[:, before]) / length
        # A curve's squared length: (j / length)^2 for each j up to length - 1, and a 1 for each point from then on.
        norm = (length - 1) * (2 * length - 1) / (6 * length) + (n - after)
        news = norm - (products[1:] ** 2).sum(axis=0)  # the part of the candidate that the shifts do not explain
        possible = news > MIN_NEWS * norm
        for shift in shifts:
            if shift.kind == "creep":  # two overlapping creeps could not be separated
                possible &= (length == 1) | (after <= shift.before) | (before >= shift.after)
        return np.where(possible, products[0] ** 2 / np.where(possible, news, 1.0), 0.0)

    return gains


@lru_cache(maxsize=64)
def _basis(shifts: tuple[Shift, ...], n: int) -> Array:
    """Returns an orthonormal basis of the space of a constant and the curves of shifts, one vector per row."""
    import numpy as np

    return np.ascontiguousarray(np.linalg.qr(curves(shifts, n).T)[0].T)
