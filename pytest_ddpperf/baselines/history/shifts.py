"""A series as a constant plus shifts, each a step or a linear creep: the search for those that describe it best."""

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

# ruptures searches for steps or for kinks, not for both at once: it makes several steps of a creep.
MIN_SIDE = 3  # points on either side of a step: fewer cannot be told from outliers
MIN_CREEP = 5  # points from its start to its end: what is shorter is a step
LENGTH_RATIO = 1.3  # between the lengths of creeps that are tried first
REFINEMENT = 5  # how much finer the places of creeps are that are tried next
CREEP_PENALTY = 2  # what a creep has to explain more than a step, in logarithms of the number of points
CANDIDATES = 2  # independent ones for each point, by their rate of false alarms
LOOK_AHEAD = 2  # shifts more than in the best description: two steps may be worth their penalty only as a pair
MAX_SWEEPS = 10
MIN_NEWS = 1e-6  # share of a curve that the other curves must leave unexplained
ROUNDING = 1e-20  # share of the squares of a series that may be left over by rounding alone

ShiftKind = Literal["step", "creep"]
KINDS: tuple[ShiftKind, ...] = ("step", "creep")


class Shift(NamedTuple):
    """A curve that is 0 up to point ``before``, 1 from point ``after`` on, and linear in between."""

    before: int
    after: int

    @property
    def kind(self) -> ShiftKind:
        """Returns what a report calls it."""
        return "step" if self.after == self.before + 1 else "creep"


@dataclass(frozen=True, eq=False, slots=True)
class PenalisedSeries:
    """The values to describe, and what a shift has to explain of them."""

    y: Array
    penalty: float  # by how much a shift must lower n log(residual sum of squares) to be accepted

    @property
    def n(self) -> int:
        """The number of points."""
        return len(self.y)


def penalised(y: Array, alpha: float) -> PenalisedSeries:
    """The values, with the penalty that makes ``alpha`` the probability, at most, of any shift in normal noise.

    The penalty is what a t test asks of a shift if its level is shared among all candidates (Bonferroni). There are
    dozens for each point, but they overlap so much that they count as two: benchmarks/trend.py measures that.
    """
    df = len(y) - 2
    t = t_reach(1 - alpha / (CANDIDATES * len(y)), df)
    return PenalisedSeries(y, len(y) * math.log1p(t * t / df))


def t_reach(confidence: float, df: float) -> float:
    """Returns how many standard errors a two-sided t interval reaches to either side.

    Wallace, "Bounds on normal approximations to Student's and the chi-square distributions" (1959), in closed form:
    the import of scipy lasts longer than the whole search.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2) * (8 * df + 3) / (8 * df + 1)
    return math.sqrt(df * math.expm1(z * z / df))


def find_shifts(data: PenalisedSeries) -> list[Shift]:
    """The shifts that describe the series best, in order.

    Steps are added one by one, once to the best creep and once to nothing. After each the places of all shifts are
    sought again, given the others: first as steps and creeps that stay such, and then as either.
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
    """Returns what a good description makes small: n log(residual sum of squares), and the penalty of each shift.

    The form is that of the Bayesian information criterion (Schwarz 1978) with a penalty for change points of its own,
    as in Zhang and Siegmund (2007): their places are sought among many, and so are no ordinary parameters.
    """
    # A fit without any residual is as good as one that leaves over what rounding does.
    least = ROUNDING * max(float(data.y @ data.y), 1e-280)
    creeps = sum(shift.kind == "creep" for shift in shifts)
    penalty = len(shifts) * data.penalty + creeps * CREEP_PENALTY * math.log(data.n)
    return data.n * math.log(max(residual(data, shifts), least)) + penalty


def best_shift(data: PenalisedSeries, others: list[Shift], kinds: Sequence[ShiftKind] = KINDS) -> Shift:
    """The best place of one more shift, given the others: as a step or as a creep, whichever is the better."""
    import numpy as np

    gains = _gains(data, others)
    shifts = []
    for kind in kinds:
        best = _best(gains, *_places(data.n, kind))
        reach = (best.after - best.before) * (LENGTH_RATIO - 1)
        while kind == "creep" and reach >= 1:
            # All creeps whose ends lie around those of the best one so far.
            offsets = np.unique(np.rint(np.linspace(-reach, reach, 2 * REFINEMENT + 1))).astype(np.int64)
            before, after = (ends.ravel() for ends in np.meshgrid(best.before + offsets, best.after + offsets))
            inside = (before >= 0) & (after < data.n) & (after - before >= MIN_CREEP)
            best = _best(gains, before[inside], after[inside])
            reach /= REFINEMENT
        shifts.append(best)
    return shifts[0] if len(shifts) == 1 else min(shifts, key=lambda shift: criterion(data, [*others, shift]))


def likely_steps(data: PenalisedSeries, others: list[Shift], excess: float) -> Indices:
    """The points after which a step may lie, given the others: there it leaves at most ``excess`` over the least."""
    before, after = _places(data.n, "step")
    gains = _gains(data, others)(before, after)
    likely: Indices = before[gains >= gains.max() - excess]
    return likely


def curves(shifts: Sequence[Shift], n: int) -> Array:
    """A constant and the curve of each shift, a row each."""
    import numpy as np

    t = np.arange(n)
    return np.array([np.ones(n), *(np.clip((t - s.before) / (s.after - s.before), 0, 1) for s in shifts)])


def fitted(data: PenalisedSeries, shifts: Sequence[Shift]) -> Array:
    """The series as the shifts describe it, by least squares."""
    basis = _basis(tuple(shifts), data.n)
    levels: Array = basis.T @ (basis @ data.y)
    return levels


def residual(data: PenalisedSeries, shifts: Sequence[Shift]) -> float:
    """The sum of squares that the shifts leave over; what is left of rounding counts as nothing."""
    rest = data.y - fitted(data, shifts)
    squares = float(rest @ rest)
    return squares if squares > ROUNDING * float(data.y @ data.y) else 0.0


def _settled(data: PenalisedSeries, shifts: list[Shift], kinds: Sequence[ShiftKind] | None = None) -> list[Shift]:
    """The shifts with their places sought again until none moves: as one of ``kinds``, or each as it is."""
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
    """The shifts without those that are not worth their penalty beside the others, the weakest dropped first."""
    shifts = sorted(set(shifts))
    while shifts:
        fewer = min(([*shifts[:i], *shifts[i + 1 :]] for i in range(len(shifts))), key=partial(criterion, data))
        if criterion(data, fewer) > criterion(data, shifts):
            break
        shifts = fewer
    return shifts


@lru_cache(maxsize=16)
def _places(n: int, kind: ShiftKind) -> tuple[Indices, Indices]:
    """Returns where all steps of a series of ``n`` points begin and end, or creeps of some lengths and all places."""
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
    """By how much candidates, each added to the shifts, would lower the sum of squares: a function of their places."""
    import numpy as np

    n, basis = data.n, _basis(tuple(shifts), data.n)
    rows = np.vstack([data.y - basis.T @ (basis @ data.y), basis])
    # The inner product of each row with each step; that with a creep is their mean over the creep's span.
    steps = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1][:, 1:]
    sums = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(steps, axis=1)], axis=1)

    def gains(before: Indices, after: Indices) -> Array:
        length = after - before
        products = (sums[:, after] - sums[:, before]) / length
        # A curve's squared length: (j / length)^2 for each j up to length - 1, and a 1 for each point from then on.
        norm = (length - 1) * (2 * length - 1) / (6 * length) + (n - after)
        news = norm - (products[1:] ** 2).sum(axis=0)  # what of the candidate the shifts do not explain
        possible = news > MIN_NEWS * norm
        for shift in shifts:
            if shift.kind == "creep":  # two creeps at once could not be told apart
                possible &= (length == 1) | (after <= shift.before) | (before >= shift.after)
        return np.where(possible, products[0] ** 2 / np.where(possible, news, 1.0), 0.0)

    return gains


@lru_cache(maxsize=64)
def _basis(shifts: tuple[Shift, ...], n: int) -> Array:
    """An orthonormal basis of what the shifts can describe, a row each."""
    import numpy as np

    return np.ascontiguousarray(np.linalg.qr(curves(shifts, n).T)[0].T)
