"""A series as a constant plus events, each a step or a linear creep: the search for those that describe it best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from pytest_ddpperf.baselines.history.tails import t_reach

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Indices = NDArray[np.int64]

FEWEST = 3  # points on either side of a step: fewer cannot be told from outliers
SHORTEST_CREEP = 5  # points from its start to its end: what is shorter is a step
LENGTHS = 1.3  # a creep's length is sought in steps of this factor first, then finely
LENGTH_PRICE = 2  # what a creep has to explain more than a step, in logarithms of the number of points
CANDIDATES = 2  # independent ones for each point, by their rate of false alarms
SWEEPS = 10
ROUNDING = 1e-6  # share of a curve that must be news beside the others
NOTHING = 1e-20  # share of the squares of a series that may be left over by rounding alone

Kind = Literal["step", "creep"]
KINDS: tuple[Kind, ...] = ("step", "creep")


class Event(NamedTuple):
    """0 up to point ``before``, 1 from point ``after`` on, linear in between."""

    before: int
    after: int

    @property
    def kind(self) -> Kind:
        """What it is told as."""
        return "step" if self.after == self.before + 1 else "creep"


STEP, CREEP = Event(0, 1), Event(0, SHORTEST_CREEP)  # where a search begins


@dataclass(frozen=True, eq=False)
class Series:
    """The values to describe, and what an event has to explain of them.

    Attributes:
        price: by how much an event must lower n log(residual sum of squares) to be accepted.
    """

    y: Array
    price: float

    @property
    def n(self) -> int:
        """How many points it has."""
        return len(self.y)


class _Part(NamedTuple):
    """Candidates of one form: their places, and the squared length of each one's curve."""

    before: Indices
    after: Indices
    norm: Array
    bump: bool

    def event(self, i: int) -> list[Event]:
        """A candidate as events: a bump is two steps."""
        first, last = int(self.before[i]), int(self.after[i])
        return [Event(first, first + 1), Event(last, last + 1)] if self.bump else [Event(first, last)]


def series(y: Array, alpha: float) -> Series:
    """The values, with the price that makes ``alpha`` the probability, at most, of any event in normal noise.

    The price of an event is what a t test asks of it whose level is shared among all candidates (Bonferroni). There
    are dozens for each point, but they overlap so much that they count as two: benchmarks/trend.py measures that.
    """
    df = len(y) - 2
    t = t_reach(1 - alpha / (CANDIDATES * len(y)), df)
    return Series(y, len(y) * math.log1p(t * t / df))


def find_events(data: Series) -> list[Event]:
    """The events that describe the series best, in order.

    They are added one by one, the best first; after each, the places of all are sought again, given the others. Steps
    are also sought in pairs, so that one that is soon taken back is not missed (circular binary segmentation, Olshen
    et al. 2004).
    """
    events: list[Event] = []
    while True:
        more = _added(data, events)
        if len(more) <= len(events):
            return events
        # One by one may lead into a blind alley, such as a long creep in the place of some steps.
        models = [more, *_alternatives(data, len(more) + 1)]
        best = min((_pruned(data, model) for model in models), key=lambda model: criterion(data, model))
        if criterion(data, best) >= criterion(data, events):
            return events
        events = sorted(best)


def criterion(data: Series, events: list[Event]) -> float:
    """What a good description makes small: n log(residual sum of squares), and the price of each event.

    The form is that of the Bayesian information criterion (Schwarz 1978) with a price for change points of its own, as
    in Zhang and Siegmund (2007): their places are sought among many, and so are no ordinary parameters.
    """
    return _criterion(data, residual(data, events), events)


def best_event(data: Series, others: list[Event], now: Event, kinds: Sequence[Kind] = KINDS) -> Event:
    """The best place of an event, given the others: as a step or as a creep, whichever is the better."""
    rest = residual(data, others)
    steps, creeps, _ = _grid(data.n)
    parts = ([steps] if "step" in kinds else []) + ([creeps, _near(data.n, now)] if "creep" in kinds else [])
    best = (math.inf, now)
    for part in parts:
        gain = _gains(data, others, part)
        if len(gain):
            i = int(gain.argmax())
            (event,) = part.event(i)
            best = min(best, (_criterion(data, rest - float(gain[i]), [event]), event))
    return best[1]


def likely_steps(data: Series, others: list[Event], excess: float) -> Indices:
    """The points after which a step may lie, given the others: there it leaves at most ``excess`` over the least."""
    steps = _grid(data.n)[0]
    gains = _gains(data, others, steps)
    likely: Indices = steps.before[gains >= gains.max() - excess]
    return likely


def curves(events: list[Event], n: int) -> Array:
    """A constant and the curve of each event, a row each."""
    import numpy as np

    t = np.arange(n)
    return np.array([np.ones(n), *(np.clip((t - e.before) / (e.after - e.before), 0, 1) for e in events)])


def fitted(data: Series, events: list[Event]) -> Array:
    """The series as the events describe it, by least squares."""
    basis = _basis(events, data.n)
    levels: Array = basis.T @ (basis @ data.y)
    return levels


def residual(data: Series, events: list[Event]) -> float:
    """The sum of squares that the events leave over; what is left of rounding counts as nothing."""
    rest = data.y - fitted(data, events)
    squares = float(rest @ rest)
    return squares if squares > NOTHING * float(data.y @ data.y) else 0.0


def _added(data: Series, events: list[Event]) -> list[Event]:
    """The events and what best explains what they leave over, if it is worth its price: an event, or two for a bump."""
    rest = residual(data, events)
    best = (criterion(data, events), events)
    for part in _grid(data.n):
        gain = _gains(data, events, part)
        if len(gain):
            i = int(gain.argmax())
            more = [*events, *part.event(i)]
            best = min(best, (_criterion(data, rest - float(gain[i]), more), more))
    return best[1] if len(best[1]) == len(events) else _pruned(data, _settled(data, best[1]))


def _alternatives(data: Series, most: int) -> list[list[Event]]:
    """Models to try instead: steps alone, and a creep with steps, up to ``most`` events; as they are and settled."""
    models = []
    for start in ([], [best_event(data, [], CREEP, ("creep",))]):
        events = list(start)
        while len(events) < most:
            events = _settled(data, [*events, best_event(data, events, STEP, ("step",))], keep=True)
            models += [events, _settled(data, events)]
    return models


def _settled(data: Series, events: list[Event], *, keep: bool = False) -> list[Event]:
    """The events with their places sought again, each given the others, until none moves.

    ``keep``: a step stays a step and a creep a creep.
    """
    events = sorted(events)
    for _ in range(SWEEPS):
        before = list(events)
        for i, event in enumerate(before):
            others = [*events[:i], *events[i + 1 :]]
            events[i] = best_event(data, others, event, (event.kind,) if keep else KINDS)
        events.sort()
        if events == before:
            break
    return events


def _pruned(data: Series, events: list[Event]) -> list[Event]:
    """The events without those that are not worth their price beside the others, the weakest dropped first."""
    events = sorted(set(events))
    while events:
        fewer = min(
            ([other for other in events if other != event] for event in events), key=lambda rest: criterion(data, rest)
        )
        if criterion(data, fewer) > criterion(data, events):
            break
        events = fewer
    return events


def _criterion(data: Series, rest: float, events: list[Event]) -> float:
    # A fit without any residual is as good as one that leaves over what rounding does.
    least = NOTHING * max(float(data.y @ data.y), 1e-280)
    creeps = sum(event.kind == "creep" for event in events)
    price = len(events) * data.price + creeps * LENGTH_PRICE * math.log(data.n)
    return data.n * math.log(max(rest, least)) + price


@lru_cache(maxsize=8)
def _grid(n: int) -> tuple[_Part, _Part, _Part]:
    """All steps, creeps and bumps to look at first in a series of ``n`` points."""
    import numpy as np

    before = np.arange(FEWEST - 1, n - FEWEST)
    steps = _ramps(before, before + 1, n)
    lengths = [SHORTEST_CREEP]
    while lengths[-1] < n - 1:
        lengths.append(max(lengths[-1] + 1, round(lengths[-1] * LENGTHS)))
    creeps = _ramps(*_places([min(length, n - 1) for length in lengths], n), n)
    first, last = _places([FEWEST, *lengths], n - FEWEST)
    inside = first >= FEWEST - 1
    first, last = first[inside], last[inside]
    return steps, creeps, _Part(first, last, (last - first).astype(float), bump=True)


def _near(n: int, event: Event) -> _Part:
    """Creeps of about the length of an event, at a fine spacing."""
    import numpy as np

    length = event.after - event.before
    low, high = max(SHORTEST_CREEP, length / LENGTHS), min(n - 1, length * LENGTHS)
    lengths = sorted({round(x) for x in np.linspace(low, high, 40)}) if high >= low else []
    return _ramps(*_places(lengths, n), n)


def _places(lengths: Sequence[int], n: int) -> tuple[Indices, Indices]:
    """All spans of these lengths within ``n`` points: first and last point of each."""
    import numpy as np

    spans = [(np.arange(n - length), length) for length in dict.fromkeys(lengths) if length < n]
    none = np.empty(0, dtype=np.int64)
    first = np.concatenate([none, *(span for span, _ in spans)])
    return first, np.concatenate([none, *(span + length for span, length in spans)])


def _ramps(before: Indices, after: Indices, n: int) -> _Part:
    length = after - before
    # The sum of (j / length)^2 for j up to length - 1, and a 1 for each point from then on.
    return _Part(before, after, (length - 1) * (2 * length - 1) / (6 * length) + (n - after), bump=False)


def _gains(data: Series, events: list[Event], part: _Part) -> Array:
    """By how much each candidate, added to the events, would lower the residual sum of squares."""
    import numpy as np

    basis = _basis(events, data.n)
    rows = np.vstack([data.y - basis.T @ (basis @ data.y), basis])
    # The inner product of each row with each step; that with a creep is their mean over the creep's span.
    steps = np.cumsum(rows[:, ::-1], axis=1)[:, ::-1][:, 1:]
    if part.bump:
        products = steps[:, part.before] - steps[:, part.after]
    else:
        sums = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(steps, axis=1)], axis=1)
        products = (sums[:, part.after] - sums[:, part.before]) / (part.after - part.before)
    new = part.norm - (products[1:] ** 2).sum(axis=0)  # what of the candidate the events do not explain
    possible = new > ROUNDING * part.norm
    for event in events:
        if event.kind == "creep" and not part.bump:  # two creeps at once could not be told apart
            possible &= (part.after - part.before == 1) | (part.after <= event.before) | (part.before >= event.after)
    return np.where(possible, products[0] ** 2 / np.where(possible, new, 1.0), 0.0)


def _basis(events: list[Event], n: int) -> Array:
    """An orthonormal basis of what the events can describe, a row each."""
    import numpy as np

    return np.ascontiguousarray(np.linalg.qr(curves(events, n).T)[0].T)
