"""Every rule on comparisons drawn from one campaign: how often it alarms, how long it takes, what it could see."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.quality.candidates import Scatter, ratios, scatters
from benchmarks.quality.conditions import CONDITIONS, FIRST, UNCHANGED
from benchmarks.quality.launches import Campaign, Cell, Recorded
from benchmarks.quality.peers import RULES
from benchmarks.quality.replay import Outcome, against_baseline, against_partner, seconds_of, steps_of
from benchmarks.quality.resampling import (
    Sides,
    TooFew,
    of_cell,
    one_each,
    partners,
    separate,
    side_by_side,
    with_first,
)
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.stats.rates import Rate
from pytest_ddpperf.stats.summaries import typical

STORED = "stored baseline"
PAIRED = "side by side"
SUITE = 50
ONE_OF_SUITE = f"stored baseline, 1 of {SUITE}"  # benchmarks of a suite, which share the false alarms it may raise
OURS = (STORED, ONE_OF_SUITE, PAIRED)


@dataclass(frozen=True)
class Tally:
    """What a rule made of one condition.

    Attributes:
        alarms: how often it was called slower.
        inconclusive: how often it could not be told; None for rules that always can.
        improved: how often it was called faster; None for rules that never do.
        seconds: of measuring, median; None for rules without a run of their own. ``launches`` likewise.
        mde: the smallest slowdown that a run could have seen, median.
    """

    alarms: Rate
    inconclusive: Rate | None = None
    seconds: float | None = None
    launches: float | None = None
    mde: float | None = None
    improved: Rate | None = None


@dataclass(frozen=True)
class Effect:
    """By how much a condition's launches are slower than their round's unchanged ones: of typical and mean step."""

    typical: float
    mean: float
    interval: Interval | None  # of the typical one


@dataclass(frozen=True)
class CellFindings:
    """One length of steps in groups of one size.

    Attributes:
        step: seconds of a typical unchanged one.
        rounds: recorded.
        scatter: of launches, by what their steps could be reduced to.
        effects: by condition; without the unchanged one.
        tallies: by rule, then by condition.
    """

    cell: Cell
    step: float
    rounds: int
    scatter: Mapping[str, Scatter]
    effects: Mapping[str, Effect]
    tallies: Mapping[str, Mapping[str, Tally]]


@dataclass(frozen=True)
class Findings:
    """What a campaign amounts to."""

    campaign: Campaign
    comparisons: int
    cells: tuple[CellFindings, ...]


def judged(campaign: Campaign, comparisons: int, seed: int, settings: Settings | None = None) -> Findings:
    """The findings of ``comparisons`` drawn for each rule, condition and cell; the same ones for the same seed.

    Args:
        campaign: with any number of launches; what these do not suffice for is left out.
        comparisons: of every rate.
        seed: of the drawing.
        settings: that the plugin is run with (default: its own).
    """
    cells = sorted({one.cell for one in campaign.launches}, key=lambda cell: (cell.ranks, cell.length))
    return Findings(
        campaign,
        comparisons,
        tuple(_cell(campaign, cell, comparisons, seed, settings or Settings()) for cell in cells),
    )


def _cell(campaign: Campaign, cell: Cell, comparisons: int, seed: int, settings: Settings) -> CellFindings:
    launches, env = campaign.launches, campaign.environments[cell.ranks]
    unchanged = of_cell(launches, cell, UNCHANGED)
    draws = {condition: _Draws(launches, cell, condition, settings) for condition in CONDITIONS}
    ours: dict[str, tuple[Callable[[_Draws, random.Random], Sides], Callable[[Sides], Outcome]]] = {
        STORED: (_Draws.separate, lambda sides: against_baseline(sides, env, settings)),
        ONE_OF_SUITE: (_Draws.separate, lambda sides: against_baseline(sides, env, settings, tests=SUITE)),
        PAIRED: (_Draws.together, lambda sides: against_partner(sides, env, settings)),
    }
    tallies: dict[str, dict[str, Tally]] = {rule: {} for rule in (*ours, *RULES)}
    for condition, drawn in draws.items():
        draw = random.Random(f"{seed} {cell} {condition}")  # noqa: S311  no secret
        for rule, (sides, replay) in ours.items():
            with suppress(TooFew):
                outcomes = [replay(sides(drawn, draw)) for _ in range(comparisons)]
                used = statistics.median(one.launches for one in outcomes)
                tallies[rule][condition] = tally(outcomes, drawn.independent(used, paired=rule == PAIRED))
        with suppress(TooFew):
            pairs = [drawn.launches(draw) for _ in range(comparisons)]
            for rule, slower in RULES.items():
                found = sum(slower(pair.new[0].step_times, pair.base[0].step_times) for pair in pairs)
                tallies[rule][condition] = Tally(Rate(found, comparisons, drawn.independent_launches))
    return CellFindings(
        cell=cell,
        step=statistics.median(typical(one.step_times) for one in unchanged) if unchanged else float("nan"),
        rounds=len({one.round for one in launches if one.cell == cell}),
        scatter=scatters(launches, cell),
        effects={name: effect for name in CONDITIONS if (effect := effect_of(launches, cell, name)) is not None},
        tallies=tallies,
    )


class _Draws:
    """The launches of one condition and how comparisons are drawn from them."""

    def __init__(self, launches: Sequence[Recorded], cell: Cell, condition: str, settings: Settings) -> None:
        self.base = of_cell(launches, cell, UNCHANGED)
        self.first = of_cell(launches, cell, condition) if condition == FIRST else []
        self.run = self.base if condition in (FIRST, UNCHANGED) else of_cell(launches, cell, condition)
        self.pairs = partners(launches, cell, condition)
        self.same = self.run is self.base
        self.wanted = self._wanted(settings)
        self.rounds = self._wanted(settings, paired=True) // 2 + 1

    def _wanted(self, settings: Settings, *, paired: bool = False) -> int:
        """How many launches there is time for."""
        if not self.base:
            return 3
        steps = steps_of(self.base[0], paired=paired)
        each = statistics.fmean(seconds_of(one, steps) for one in self.base)
        return int(settings.max_time / each) + 2  # a pilot, and the last one, which may run over

    def separate(self, draw: random.Random) -> Sides:
        """Two separate runs."""
        sides = separate(self.base, self.run, (self.wanted, self.wanted), draw)
        return with_first(sides, self.first, draw) if self.first else sides

    def together(self, draw: random.Random) -> Sides:
        """One run that measured both sides."""
        sides = side_by_side(self.pairs, self.rounds, draw)
        return with_first(sides, self.first, draw) if self.first else sides

    def launches(self, draw: random.Random) -> Sides:
        """One launch of either side."""
        return one_each(self.base, self.first or self.run, draw)

    @property
    def independent_launches(self) -> int:
        """Pairs of launches without a common one."""
        return len(self.base) // 2 if self.same else min(len(self.base), len(self.first or self.run))

    def independent(self, used: float, *, paired: bool) -> int:
        """Comparisons without a common launch, of which each uses so many of the new side."""
        if paired:
            return int(len(self.pairs) / used)
        stored = min(self.wanted, len(self.base) // 2)
        if self.same:
            return int(len(self.base) / (stored + used))
        return int(min(len(self.base) / stored, len(self.run) / used))


def tally(outcomes: Sequence[Outcome], independent: int) -> Tally:
    """What the outcomes of one rule in one condition come to; so many of them have no launch in common."""
    verdicts = [one.verdict for one in outcomes]
    seen = [one.mde for one in outcomes if one.mde is not None]
    return Tally(
        alarms=Rate(verdicts.count(Verdict.REGRESSED), len(outcomes), independent),
        inconclusive=Rate(verdicts.count(Verdict.INCONCLUSIVE), len(outcomes), independent),
        seconds=statistics.median(one.seconds for one in outcomes),
        launches=statistics.median(one.launches for one in outcomes),
        mde=statistics.median(seen) if seen else None,
        improved=Rate(verdicts.count(Verdict.IMPROVED), len(outcomes), independent),
    )


def effect_of(launches: Sequence[Recorded], cell: Cell, condition: str) -> Effect | None:
    """By how much a condition was really slower, beside the unchanged launches that it took turns with.

    Geometric means over rounds; None where no round tells, and for what is no slowdown of every launch.
    """
    pairs = [] if condition in (UNCHANGED, FIRST) else partners(launches, cell, condition)
    if not pairs:
        return None

    low, interval = center(ratios(pairs), "ratio")
    mean, _ = center([new.mean / base.mean for base, new in pairs], "ratio")
    ends = None if interval is None else Interval(interval.low - 1, interval.high - 1, interval.confidence)
    return Effect(low - 1, mean - 1, ends)
