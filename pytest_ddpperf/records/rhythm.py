"""Describes work that is not in every step, such as a log in every 10th step: its period, and its mean per step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from pytest_ddpperf.units import format_number

_SURE = 2.58  # standard errors in half a 99 % interval, for the share of independent steps


Components: TypeAlias = tuple[tuple[float, ...], ...]
"""The varying components of a count: for each, the values of consecutive steps, which repeat with a separate period."""


class Rhythm(NamedTuple):
    """The mean of a count over the counted steps, and bounds (``low``, ``high``) of its mean over all steps."""

    mean: float
    low: float
    high: float
    irregular: bool = False  # whether steps have more than two values, which do not repeat


def period_of(steps: Sequence[object]) -> int:
    """Returns the number of steps after which values repeat; 0 if ``steps`` do not contain two full periods."""
    number = len(steps)
    periods = range(1, number // 2 + 1)
    return next((each for each in periods if all(steps[i] == steps[i - each] for i in range(each, number))), 0)


def rhythm_of(values: Sequence[float]) -> Rhythm:
    """Returns the mean of a count in consecutive steps, with bounds for the mean over all steps.

    If ``values`` contain two full periods, the mean is exact. Otherwise, with two different values, the bounds allow
    for one occurrence more or less of the rarer value if it occurs at regular distances, and else are a 99 % binomial
    interval. With more than two different values, the bounds are the smallest and the largest value.
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
    """Groups the parts of a count that vary in the same steps; returns each group's sum in each step (a component).

    Work in every 5th step and work in every 9th step have short periods, but their sum repeats only after 45 steps. A
    component that repeats is rotated to begin with its largest value, so that the first counted step does not matter.
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
    """Returns the rhythm of the sum of all components; the sum is 0 if there are no components."""
    means, lows, highs, irregular = zip(*map(rhythm_of, components), strict=True) if components else ((), (), (), ())
    return Rhythm(math.fsum(means), math.fsum(lows), math.fsum(highs), any(irregular))


def in_few_periods(components: Components, steps: int) -> float:
    """Returns the growth of the mean if each component with fewer than three periods had its peak in one more step."""
    periods = ((values, period_of(values)) for values in components)
    return math.fsum((max(values) - min(values)) / steps for values, each in periods if 0 < steps < 3 * each)


def unusual_of(components: Components) -> tuple[list[list[float]], float, float, float]:
    """Returns how steps deviate from a usual step, in which each component has its most frequent value.

    The four results are: each component's sorted deviations other than 0; the mean deviation of a step; the smallest
    deviation that a step can have; and the largest possible fraction of steps whose value exceeds a usual step's.
    """
    more = [sorted(value - max(values, key=values.count) for value in values) for values in components]
    mean, above = (math.fsum(math.fsum(map(of, each)) / len(each) for each in more) for of in (float, (0.0).__lt__))
    return sorted([*filter(None, each)] for each in more), mean, math.fsum(each[0] for each in more), above


class Levels(NamedTuple):
    """The more and the less frequent of a count's two values, the number of steps with the latter, and of all steps."""

    usual: float
    other: float
    times: int
    of: int


def levels_of(values: Sequence[float], mean: float) -> Levels:
    """Returns the Levels of a count with this ``mean``; ``values`` of steps may lack a constant part of the count."""
    period, rest = period_of(values), round(mean - rhythm_of(values).mean, 6)  # of sums of fractions
    seen = values[:period] if period else values
    at = _rarer(seen)
    usual = next(value for place, value in enumerate(seen) if place not in at)
    return Levels(rest + usual, rest + seen[at[0]], len(at), len(seen))


def rhythm_text(values: Sequence[float]) -> str:
    """Returns a text on the steps that differ from the usual ones: ``more in 1 of 10 steps``."""
    if len(set(values)) > 2:  # noqa: PLR2004
        if period := period_of(values):
            return f"the same again after {period} steps"
        return f"from {format_number(min(values))} to {format_number(max(values))}"
    levels = levels_of(values, 0.0)
    return f"{'more' if levels.other > levels.usual else 'less'} in {levels.times} of {levels.of} steps"


def _rarer(values: Sequence[float]) -> list[int]:
    """Returns the indices of the rarer of two values, or of the larger one if both are equally frequent."""
    rare = min((max(values), min(values)), key=values.count)
    return [place for place, value in enumerate(values) if value == rare]
