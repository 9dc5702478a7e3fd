"""Comparisons drawn from a campaign: stretches of launches in the order they were recorded, so that drift stays in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.quality.conditions import FIRST, UNCHANGED
from benchmarks.quality.launches import Cell, Recorded

SIDES = 2


@dataclass(frozen=True)
class Sides:
    """The launches that one comparison may use, in order, those of the pilots first."""

    base: tuple[Recorded, ...]
    new: tuple[Recorded, ...]


class TooFew(ValueError):
    """There are not enough launches for any comparison of this kind."""


def of_cell(launches: Sequence[Recorded], cell: Cell, condition: str) -> list[Recorded]:
    """The launches of a cell in one condition that ran alone, in the order recorded."""
    return [one for one in launches if one.cell == cell and one.condition == condition and one.pair is None]


def separate(base: Sequence[Recorded], new: Sequence[Recorded], wanted: tuple[int, int], draw: random.Random) -> Sides:
    """Two separate runs: a baseline from the first half of ``base``, and a later stretch of ``new``.

    Args:
        base: launches, in order.
        new: launches, in order; those of the baseline itself never come after it, so both may be the same ones.
        wanted: launches of either side; at most half of those that there are is taken.
        draw: chooses where the stretches begin.

    Raises:
        TooFew: a side would have none.
    """
    half = len(base) // 2
    length = min(wanted[0], half)
    if length < 1:
        raise TooFew(f"{len(base)} launches leave none for a baseline")
    first = draw.randrange(half - length + 1)
    stored = base[first : first + length]
    later = [one for one in new if one.started > stored[-1].started]
    rest = min(wanted[1], max(1, len(new) // 2), len(later))
    if rest < 1:
        raise TooFew("no launch comes after the baseline")
    begin = draw.randrange(len(later) - rest + 1)
    return Sides(tuple(stored), tuple(later[begin : begin + rest]))


def with_first(sides: Sides, first: Sequence[Recorded], draw: random.Random) -> Sides:
    """The same, with the first launch of the new run taken from ``first``."""
    return Sides(sides.base, (draw.choice(first), *sides.new[1:]))


def side_by_side(pairs: Sequence[tuple[Recorded, Recorded]], wanted: int, draw: random.Random) -> Sides:
    """One run that measured both: a stretch of rounds, each with a launch of either side.

    Raises:
        TooFew: there are no pairs.
    """
    if not pairs:
        raise TooFew("no round has both sides")
    length = min(wanted, len(pairs))
    begin = draw.randrange(len(pairs) - length + 1)
    chosen = pairs[begin : begin + length]
    return Sides(tuple(base for base, _ in chosen), tuple(new for _, new in chosen))


def partners(launches: Sequence[Recorded], cell: Cell, condition: str) -> list[tuple[Recorded, Recorded]]:
    """The launches that took turns: an unchanged one, and one in ``condition``. Of a slow first launch, as of none."""
    about = UNCHANGED if condition == FIRST else condition
    both = [one for one in launches if one.cell == cell and one.pair == about]
    rounds: dict[int, list[Recorded]] = {}
    for one in both:
        rounds.setdefault(one.round, []).append(one)
    return [(same[0], same[1]) for same in rounds.values() if len(same) == SIDES]


def one_each(base: Sequence[Recorded], new: Sequence[Recorded], draw: random.Random) -> Sides:
    """One launch of either side, the new one later.

    Raises:
        TooFew: no launch of ``new`` comes after one of ``base``.
    """
    early = [one for one in base if new and one.started < new[-1].started]
    if not early:
        raise TooFew("no launch comes after another one")
    old = draw.choice(early)
    return Sides((old,), (draw.choice([one for one in new if one.started > old.started]),))
