"""How often each rule alarms: our verdicts and the rules of other tools, on comparisons drawn from one campaign."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from benchmarks.quality.launches import (
    Campaign,
    Cell,
    Recorded,
    Sides,
    TooFew,
    of_cell,
    one_each,
    partners,
    separate,
    side_by_side,
    with_first,
)
from benchmarks.quality.steps import CONDITIONS, FIRST, UNCHANGED
from benchmarks.quality.verdicts import Outcome, Verdict, against_partner, beside, seconds_of, steps_of, stored
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.intervals import center
from pytest_ddpperf.stats.rates import Rate
from pytest_ddpperf.stats.spreads import pooled
from pytest_ddpperf.stats.summaries import quantile, typical

STORED = "stored baseline"
PAIRED = "side by side"
SUITE = 50  # benchmarks of a suite, which share the false alarms it may raise
ONE_OF_SUITE = f"stored baseline, 1 of {SUITE}"
OURS = (STORED, ONE_OF_SUITE, PAIRED)

Steps: TypeAlias = "Sequence[float]"
Rule: TypeAlias = "Callable[[Steps, Steps], bool]"


def _slower_by(factor: float, statistic: Callable[[Steps], float]) -> Rule:
    return lambda new, base: statistic(new) > factor * statistic(base)


def _t_test(new: Steps, base: Steps) -> bool:
    """Whether the mean is higher by Welch's test, steps taken as independent."""
    from scipy.stats import ttest_ind

    return statistics.fmean(new) > statistics.fmean(base) and bool(ttest_ind(new, base, equal_var=False).pvalue < 0.05)


def _mann_whitney(new: Steps, base: Steps, level: float = 0.05) -> bool:
    """Whether the median is higher by the Mann-Whitney test."""
    from scipy.stats import mannwhitneyu

    return statistics.median(new) > statistics.median(base) and bool(mannwhitneyu(new, base).pvalue < level)


def _asv(new: Steps, base: Steps) -> bool:
    return _mann_whitney(new, base, 0.002) and _slower_by(1.1, statistics.median)(new, base)


RULES: Mapping[str, Rule] = {  # of other tools: whether the steps of a launch are slower than those of another
    "mean:5% (pytest-benchmark)": _slower_by(1.05, statistics.fmean),
    "min:5% (pytest-benchmark)": _slower_by(1.05, min),
    "median + 5%": _slower_by(1.05, statistics.median),
    "t-test p<0.05": _t_test,
    "Mann-Whitney p<0.05": _mann_whitney,
    "Mann-Whitney p<0.002, 1.1x (asv)": _asv,
}


def _faster(steps: Steps, share: float) -> float:
    return statistics.fmean(sorted(steps)[: max(1, round(share * len(steps)))])


TYPICAL, CPU_TIME = "typical step", "CPU time"
STATISTICS: Mapping[str, Callable[[Steps], float]] = {  # what a launch's steps could be reduced to
    TYPICAL: typical,
    "minimum": min,
    "lower tenth": partial(quantile, q=0.1),
    "lower quartile": partial(quantile, q=0.25),
    "median": statistics.median,
    "mean of the faster half": partial(_faster, share=0.5),
    "mean of the faster 90%": partial(_faster, share=0.9),
    "mean": statistics.fmean,
    "harmonic mean": statistics.harmonic_mean,
}
SHOWN = "+10%"


@dataclass(frozen=True)
class Scatter:
    """How far launches of one condition differ by a statistic: standard deviations on the scale of logarithms."""

    alone: float  # of single launches
    paired: float  # of the differences of two launches that took turns
    shown: float | None  # by how much steps that are 10 % slower are slower by it


@dataclass(frozen=True)
class Tally:
    """What a rule made of one condition; seconds, launches and what could have been seen are medians."""

    alarms: Rate
    inconclusive: Rate | None = None  # None for rules that always can tell
    seconds: float | None = None  # of measuring; None for rules without a run of their own
    launches: float | None = None
    mde: float | None = None
    improved: Rate | None = None  # None for rules that never call anything faster


@dataclass(frozen=True)
class Effect:
    """By how much a condition's launches are slower than their round's unchanged ones: of typical and mean step."""

    typical: float
    mean: float
    interval: tuple[float, float] | None  # 95 %, of the typical one


@dataclass(frozen=True)
class CellFindings:
    """One length of steps in groups of one size."""

    cell: Cell
    step: float  # seconds of a typical unchanged one
    rounds: int
    scatter: Mapping[str, Scatter]  # by statistic
    effects: Mapping[str, Effect]  # by condition
    tallies: Mapping[str, Mapping[str, Tally]]  # by rule, then by condition


def judged(
    campaign: Campaign, comparisons: int, seed: int, settings: Settings | None = None
) -> tuple[CellFindings, ...]:
    """What ``comparisons`` drawn for each rule, condition and cell come to; the same for the same seed."""
    cells = sorted({launch.cell for launch in campaign.launches}, key=lambda cell: (cell.ranks, cell.length))
    return tuple(_judged_cell(campaign, cell, comparisons, seed, settings or Settings()) for cell in cells)


def _judged_cell(campaign: Campaign, cell: Cell, comparisons: int, seed: int, settings: Settings) -> CellFindings:
    launches, env = campaign.launches, campaign.environments[cell.ranks]
    unchanged = of_cell(launches, cell, UNCHANGED)

    def beside_baseline(sides: Sides, tests: int = 1) -> Outcome:
        return beside(stored(sides, env, settings), sides, settings, tests)

    ours: dict[str, tuple[Callable[[_Draws, random.Random], Sides], Callable[[Sides], Outcome]]] = {
        STORED: (_Draws.separate, beside_baseline),
        ONE_OF_SUITE: (_Draws.separate, partial(beside_baseline, tests=SUITE)),
        PAIRED: (_Draws.paired, lambda sides: against_partner(sides, env, settings)),
    }
    tallies: dict[str, dict[str, Tally]] = {rule: {} for rule in (*OURS, *RULES)}
    for condition in CONDITIONS:
        draws = _Draws(launches, cell, condition, settings)
        draw = random.Random(f"{seed} {cell} {condition}")  # noqa: S311  no secret
        for rule, (sides, replay) in ours.items():
            with suppress(TooFew):
                outcomes = [replay(sides(draws, draw)) for _ in range(comparisons)]
                used = statistics.median(outcome.launches for outcome in outcomes)
                tallies[rule][condition] = tally(outcomes, draws.independent(used, paired=rule == PAIRED))
        with suppress(TooFew):
            pairs = [draws.single(draw) for _ in range(comparisons)]
            for rule, slower in RULES.items():
                found = sum(slower(pair.new[0].step_times, pair.base[0].step_times) for pair in pairs)
                tallies[rule][condition] = Tally(Rate(found, comparisons, draws.independent_launches))
    return CellFindings(
        cell=cell,
        step=statistics.median(typical(launch.step_times) for launch in unchanged) if unchanged else float("nan"),
        rounds=len({launch.round for launch in launches if launch.cell == cell}),
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
        self.wanted = self._affordable(settings)
        self.rounds = self._affordable(settings, paired=True) // 2 + 1

    def _affordable(self, settings: Settings, *, paired: bool = False) -> int:
        """How many launches there is time for."""
        if not self.base:
            return 3
        steps = steps_of(self.base[0], paired=paired)
        each = statistics.fmean(seconds_of(launch, steps) for launch in self.base)
        return int(settings.max_time / each) + 2  # a pilot, and the last one, which may run over

    def separate(self, draw: random.Random) -> Sides:
        """Two separate runs."""
        sides = separate(self.base, self.run, self.wanted, draw)
        return with_first(sides, self.first, draw) if self.first else sides

    def paired(self, draw: random.Random) -> Sides:
        """One run that measured both sides."""
        sides = side_by_side(self.pairs, self.rounds, draw)
        return with_first(sides, self.first, draw) if self.first else sides

    def single(self, draw: random.Random) -> Sides:
        """One launch of either side."""
        return one_each(self.base, self.first or self.run, draw)

    @property
    def independent_launches(self) -> int:
        """Pairs of launches without a common one."""
        same = self.run is self.base
        return len(self.base) // 2 if same else min(len(self.base), len(self.first or self.run))

    def independent(self, used: float, *, paired: bool) -> int:
        """Comparisons without a common launch, of which each uses so many of the new side."""
        if paired:
            return int(len(self.pairs) / used)
        stored = min(self.wanted, len(self.base) // 2)
        if self.run is self.base:
            return int(len(self.base) / (stored + used))
        return int(min(len(self.base) / stored, len(self.run) / used))


def tally(outcomes: Sequence[Outcome], independent: int) -> Tally:
    """What the outcomes of one rule in one condition come to; so many of them have no launch in common."""

    def rate(verdict: Verdict) -> Rate:
        return Rate(sum(outcome.verdict is verdict for outcome in outcomes), len(outcomes), independent)

    seen = [outcome.mde for outcome in outcomes if outcome.mde is not None]
    return Tally(
        alarms=rate(Verdict.REGRESSED),
        inconclusive=rate(Verdict.INCONCLUSIVE),
        seconds=statistics.median(outcome.seconds for outcome in outcomes),
        launches=statistics.median(outcome.launches for outcome in outcomes),
        mde=statistics.median(seen) if seen else None,
        improved=rate(Verdict.IMPROVED),
    )


def effect_of(launches: Sequence[Recorded], cell: Cell, condition: str) -> Effect | None:
    """By how much a condition was really slower than the unchanged launches that it took turns with (geometric)."""
    pairs = [] if condition in (UNCHANGED, FIRST) else partners(launches, cell, condition)
    if not pairs:
        return None
    ratio, interval = center(_ratios(pairs, _typical), "ratio")
    mean, _ = center([new.mean / base.mean for base, new in pairs], "ratio")
    return Effect(ratio - 1, mean - 1, None if interval is None else (interval.low - 1, interval.high - 1))


def scatters(launches: Sequence[Recorded], cell: Cell) -> dict[str, Scatter]:
    """How far a cell's launches differ, by statistic, and by the busiest rank's CPU time where that is known."""
    alone = [of_cell(launches, cell, condition) for condition in CONDITIONS]
    paired = [partners(launches, cell, condition) for condition in CONDITIONS if condition != FIRST]
    slower = partners(launches, cell, SHOWN)
    figures = {name: partial(_of_steps, statistic) for name, statistic in STATISTICS.items()}
    if all(None not in launch.cpu for launch in launches if launch.cell == cell):
        figures[CPU_TIME] = partial(_cpu_time)
    return {
        name: Scatter(
            alone=pooled([[figure(launch) for launch in same] for same in alone]).sd,
            paired=pooled([_ratios(pairs, figure) for pairs in paired]).sd,
            shown=center(_ratios(slower, figure), "ratio")[0] - 1 if slower else None,
        )
        for name, figure in figures.items()
    }


def _ratios(pairs: Sequence[tuple[Recorded, Recorded]], figure: Callable[[Recorded], float]) -> list[float]:
    return [figure(new) / figure(base) for base, new in pairs]


def _of_steps(statistic: Callable[[Steps], float], launch: Recorded) -> float:
    return statistic(launch.step_times)


def _typical(launch: Recorded) -> float:
    return typical(launch.step_times)


def _cpu_time(launch: Recorded) -> float:
    return max(seconds for seconds in launch.cpu if seconds is not None)
