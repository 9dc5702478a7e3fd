"""What a row of ``benchmarks/decision.py`` simulates, what its outcomes are to be, and what they came to."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from benchmarks.quality.laws import SAME, Draw, Law, Slower, World
from benchmarks.quality.verdicts import Outcome, against_partner, in_suite
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.intervals import clopper_pearson

SUITE = 26
UNCHANGED = "unchanged"

Made: TypeAlias = "tuple[Outcome, float]"
"""What was told, and by how much the new side is slower."""


@dataclass(frozen=True)
class Goal:
    """What a share of the outcomes is to be."""

    what: str
    share: float
    of: Callable[[Outcome, float], bool]  # whether an outcome counts, for what is slower by a fraction
    at_least: bool = True


def red(outcome: Outcome, _slower: float) -> bool:
    return outcome.verdict is Verdict.REGRESSED


def proven(outcome: Outcome, _slower: float) -> bool:
    return outcome.verdict is Verdict.UNCHANGED


def green(outcome: Outcome, _slower: float) -> bool:
    return outcome.verdict in {Verdict.UNCHANGED, Verdict.OK, Verdict.IMPROVED}


def covers(outcome: Outcome, slower: float) -> bool:
    """Whether the printed interval has the truth in it."""
    return outcome.interval is not None and outcome.interval.low <= slower <= outcome.interval.high


def bounds(outcome: Outcome, slower: float) -> bool:
    return outcome.bound is not None and slower <= outcome.bound


def alarms(share: float) -> Goal:
    return Goal("red", share, red, at_least=False)


def found(share: float) -> Goal:
    return Goal("red", share, red)


@dataclass(frozen=True)
class Row:
    """One rate: a setting, what is slower by how much, and its goals."""

    setting: str
    law: Law
    slower: str
    new: Callable[[Draw], Slower] = lambda _: SAME
    goals: tuple[Goal, ...] = ()
    max_time: float = 60.0
    tests: int = 1  # of the suite that it is one of, without a budget
    budget: float | None = None  # s for each of the benchmarks of a suite that shares them
    both: bool = False  # whether the reference is as slow
    cpu: bool = True  # whether CPU times are known
    at_mde: bool = False  # slower by what an unchanged run of the same benchmark says that it would find
    least: float = 0.0  # comparisons of what is slower by less are left out

    @property
    def cost(self) -> int:
        """One comparison is made for so many."""
        return SUITE if self.budget and self.slower != UNCHANGED else 1

    def outcomes(self, draw: Draw) -> Iterator[Made]:
        """One outcome after the other, each of another benchmark."""
        while True:
            made = self._of_suite(draw) if self.budget else [self._alone(draw)]
            yield from (each for each in made if each[1] >= self.least)

    def _alone(self, draw: Draw) -> Made:
        settings, machine = Settings(max_time=self.max_time), self.law(draw)
        new = self.new(draw)
        if self.at_mde:
            mde = None
            while mde is None or not math.isfinite(mde):
                mde = against_partner(World(machine, cpu=self.cpu), settings, self.tests).mde
            new = Slower(mde)
        world = World(machine, new, new if self.both else SAME, cpu=self.cpu)
        return against_partner(world, settings, self.tests), world.slower

    def _of_suite(self, draw: Draw) -> list[Made]:
        """The outcomes of a suite; if one of its benchmarks is slower, in a random place, that one's."""
        seconds = (self.budget or 0.0) * SUITE
        suite = [World(self.law(draw)) for _ in range(SUITE)]
        if self.slower == UNCHANGED:
            return [(outcome, 0.0) for outcome in in_suite(suite, Settings(), seconds)]
        place = int(draw.integers(SUITE))
        suite[place] = World(self.law(draw), self.new(draw))
        return [(in_suite(suite, Settings(), seconds)[place], suite[place].slower)]


@dataclass(frozen=True)
class Found:
    """What a row came to."""

    row: Row
    made: Sequence[Made] = field(repr=False)

    def hits(self, of: Callable[[Outcome, float], bool]) -> int:
        """The outcomes that count."""
        return sum(of(*each) for each in self.made)

    @property
    def cells(self) -> tuple[str, ...]:
        """A row of the table."""

        def share(of: Callable[[Outcome, float], bool]) -> str:
            return f"{self.hits(of) / len(self.made):.1%}"

        told = [outcome for outcome, _ in self.made]
        return (
            self.row.setting,
            self.row.slower,
            str(len(self.made)),
            f"{self.hits(red) / len(self.made):.2%}",
            share(proven),
            share(lambda outcome, _: outcome.verdict is Verdict.OK),
            f"{statistics.median(math.inf if outcome.bound is None else outcome.bound for outcome in told):+.1%}",
            share(bounds),
            share(covers),
            f"{statistics.median(outcome.launches for outcome in told):.0f}",
            f"{statistics.median(outcome.seconds for outcome in told):.0f}",
        )

    def goal_text(self, goal: Goal) -> str:
        """Says whether a goal is reached, and whether for certain."""
        hits, number = self.hits(goal.of), len(self.made)
        interval = clopper_pearson(hits, number)
        rate, sign = hits / number, "at least" if goal.at_least else "at most"
        reached = rate >= goal.share if goal.at_least else rate <= goal.share
        certain = interval.low >= goal.share if goal.at_least else interval.high <= goal.share
        word = "missed" if not reached else "reached" if certain else "reached, though not for certain"
        return (
            f"goal, {self.row.setting}, {self.row.slower}: {goal.what} {sign} {goal.share:.1%}: "
            f"{hits} of {number}, {rate:.2%} [{interval.low:.2%} .. {interval.high:.2%}], {word}"
        )
