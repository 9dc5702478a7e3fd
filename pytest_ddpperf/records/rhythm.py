"""How often work comes that is not in every step, and what the steps that were looked at tell of all the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from pytest_ddpperf.units import format_number

_SURE = 2.58  # standard errors of a share of independent steps, 99 %


Components: TypeAlias = tuple[tuple[float, ...], ...]
"""What a count is the sum of, if it is not the same in each step: values of consecutive steps, each with a rhythm."""


class Rhythm(NamedTuple):
    """The mean that consecutive steps have, and the means of all steps that they leave possible."""

    mean: float
    low: float
    high: float
    irregular: bool = False  # whether steps have more than two values, which do not repeat


def period_of(steps: Sequence[object]) -> int:
    """Returns the steps after which all is the same again, if that was seen through twice; 0 if nothing repeats."""
    number = len(steps)
    periods = range(1, number // 2 + 1)
    return next((each for each in periods if all(steps[i] == steps[i - each] for i in range(each, number))), 0)


def rhythm_of(values: Sequence[float]) -> Rhythm:
    """Returns what the values of consecutive steps tell of all steps.

    The mean of a period that was seen through twice is exact. Work that comes once in so many steps, and was not seen
    for two periods, is in n steps one time more or less than its rate times n, whatever its phase. If the distances
    between two kinds of steps differ, they count as drawn by chance, with the 99 % interval of a binomial share. Of
    steps with more values than two, nothing is known but the least and the most.
    """
    number, period, low, high = len(values), period_of(values), min(values), max(values)
    if period:
        exact = math.fsum(values[:period]) / period
        return Rhythm(exact, exact, exact)
    mean = math.fsum(values) / number
    if len(set(values)) > 2:  # noqa: PLR2004
        return Rhythm(mean, low, high, irregular=True)
    at = _rarer(values)
    gap = at[1] - at[0] if len(at) > 1 else number
    periodic = at[0] < gap and number - at[-1] <= gap and all(b - a == gap for a, b in pairwise(at))
    share = len(at) / number
    doubt = (high - low) * (1 / number if periodic else _SURE * math.sqrt(share * (1 - share) / number))
    return Rhythm(mean, mean - doubt, mean + doubt)


def components_of(parts: Iterable[Sequence[float]]) -> Components:
    """Returns those parts of a count that vary from step to step, and the sum of those that do so in the same steps.

    Work that comes in each 5th step and other work of each 9th have a rhythm each, and their sum has none in 20 steps.
    Of what repeats two periods stand for all steps, which begin with the most, whatever the phase.
    """
    alike: dict[tuple[int, ...], list[Sequence[float]]] = {}
    for values in parts:
        levels = sorted(set(values))
        if len(levels) > 1:
            alike.setdefault(tuple(map(levels.index, values)), []).append(values)
    sums = [tuple(map(math.fsum, zip(*same, strict=True))) for same in alike.values()]
    return tuple(sorted(map(_without_phase, sums), reverse=True))


def _without_phase(values: tuple[float, ...]) -> tuple[float, ...]:
    period = period_of(values)
    return 2 * max(values[first : first + period] for first in range(period)) if period else values


def rhythm_of_all(components: Components) -> Rhythm:
    """Returns what the values of all components tell of their sum; without any, it is 0 in each step."""
    means, lows, highs, irregular = zip(*map(rhythm_of, components), strict=True) if components else ((), (), (), ())
    return Rhythm(math.fsum(means), math.fsum(lows), math.fsum(highs), any(irregular))


def unusual_of(components: Components) -> tuple[list[list[float]], float]:
    """Returns by how much some steps differ from most, sorted, of each component; and the mean of that in all steps."""
    more = [sorted(value - max(values, key=values.count) for value in values) for values in components]
    return sorted([*filter(None, each)] for each in more), math.fsum(math.fsum(each) / len(each) for each in more)


class Levels(NamedTuple):
    """What most steps have, and what some have: so many of so many steps."""

    usual: float
    other: float
    times: int
    of: int


def levels_of(values: Sequence[float], total: float) -> Levels:
    """Returns the levels of a count with so large a mean, of which these two values are the part that varies."""
    period, rest = period_of(values), total - rhythm_of(values).mean
    seen = values[:period] if period else values
    at = _rarer(seen)
    usual = next(value for place, value in enumerate(seen) if place not in at)
    return Levels(rest + usual, rest + seen[at[0]], len(at), len(seen))


def rhythm_text(values: Sequence[float]) -> str:
    """Returns how often steps do something else, in words: ``more in 1 of 10 steps``."""
    if len(set(values)) > 2:  # noqa: PLR2004
        if period := period_of(values):
            return f"the same again after {period} steps"
        return f"from {format_number(min(values))} to {format_number(max(values))}"
    usual, other, times, of = levels_of(values, 0.0)
    return f"{'more' if other > usual else 'less'} in {times} of {of} steps"


def _rarer(values: Sequence[float]) -> list[int]:
    """The places of that one of two values which comes less often; of the larger one if both come as often."""
    rare = min((max(values), min(values)), key=values.count)
    return [place for place, value in enumerate(values) if value == rare]
