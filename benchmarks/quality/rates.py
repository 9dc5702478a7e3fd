"""How often each rule alarms, ours and those of other tools, on comparisons drawn from one campaign; and its goals."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from benchmarks.quality.campaign import Campaign, Cell, Recorded, Sides, of_cell, partners
from benchmarks.quality.steps import CONDITIONS, FIRST, UNCHANGED
from benchmarks.quality.verdicts import Outcome, Verdict, against_partner, beside, seconds_of, steps_of, stored
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.rates import Rate

STORED = "stored baseline"
PAIRED = "side by side"
SUITE = 50  # benchmarks of a suite, which share the false alarms it may raise
ONE_OF_SUITE = f"stored baseline, 1 of {SUITE}"
OURS = (STORED, ONE_OF_SUITE, PAIRED)

UNSURE = ", though not for certain"
NOTHING = "-"
MANY = 200  # independent comparisons, whose interval deserves a decimal
GOALS = (  # of a rule in a condition: at most that, or at least that where the condition is slower
    (STORED, UNCHANGED, 0.005),
    (PAIRED, UNCHANGED, 0.005),
    (STORED, FIRST, 0.005),
    (PAIRED, "+3%", 0.95),
    (STORED, "+5%", 0.95),
    (STORED, "+10%", 0.995),
    (STORED, "1 step in 10", 0.90),
)
SUITE_LIMIT = 0.02
SECONDS = 15.0  # to the verdict on an unchanged step

Steps: TypeAlias = "Sequence[float]"
Tallies: TypeAlias = "Mapping[str, Mapping[str, Tally]]"  # by rule, then by condition
Rule: TypeAlias = "Callable[[Steps, Steps], bool]"


def suite_rate(rate: float, benchmarks: int) -> float:
    """How often at least one of so many independent benchmarks gives an alarm."""
    return -math.expm1(benchmarks * math.log1p(-rate)) if rate < 1 else 1.0


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


@dataclass(frozen=True)
class Tally:
    """What a rule made of one condition; seconds, launches and what could have been seen are medians."""

    alarms: Rate
    inconclusive: Rate | None = None  # None for rules that always can tell
    seconds: float | None = None  # of measuring; None for rules without a run of their own
    launches: float | None = None
    mde: float | None = None
    improved: Rate | None = None  # None for rules that never call anything faster


def judged(campaign: Campaign, cell: Cell, comparisons: int, seed: int) -> Tallies:
    """What ``comparisons`` drawn for each rule and condition of a cell come to; the same for the same seed."""
    launches, env, settings = campaign.launches, campaign.environments[cell.ranks], Settings()

    def beside_baseline(sides: Sides, tests: int = 1) -> Outcome:
        return beside(stored(sides, env, settings), sides, settings, tests)

    ours: dict[str, tuple[Callable[[Draws, random.Random], Sides], Callable[[Sides], Outcome]]] = {
        STORED: (Draws.separate, beside_baseline),
        ONE_OF_SUITE: (Draws.separate, partial(beside_baseline, tests=SUITE)),
        PAIRED: (Draws.paired, lambda sides: against_partner(sides, env, settings)),
    }
    tallies: dict[str, dict[str, Tally]] = {rule: {} for rule in (*OURS, *RULES)}
    for condition in CONDITIONS:
        draws = Draws(launches, cell, condition, settings)
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
    return tallies


class TooFew(ValueError):
    """There are not enough launches for any comparison of this kind."""


class Draws:
    """Draws comparisons from the launches of one condition: stretches in the order recorded, so that drift stays in."""

    def __init__(
        self, launches: Sequence[Recorded], cell: Cell, condition: str, settings: Settings | None = None
    ) -> None:
        self.base = of_cell(launches, cell, UNCHANGED)
        self.first = of_cell(launches, cell, condition) if condition == FIRST else []
        self.run = self.base if condition in (FIRST, UNCHANGED) else of_cell(launches, cell, condition)
        self.pairs = partners(launches, cell, condition)
        max_time = (settings or Settings()).max_time
        self.wanted = self._affordable(max_time)
        self.rounds = self._affordable(max_time, paired=True) // 2 + 1

    def _affordable(self, max_time: float, *, paired: bool = False) -> int:
        """How many launches there is time for."""
        if not self.base:
            return 3
        steps = steps_of(self.base[0], paired=paired)
        each = statistics.fmean(seconds_of(launch, steps) for launch in self.base)
        return int(max_time / each) + 2  # a pilot, and the last one, which may run over

    def separate(self, draw: random.Random) -> Sides:
        """Two separate runs: a baseline from the first half of the unchanged launches, and a later stretch."""
        half = len(self.base) // 2
        length = min(self.wanted, half)
        if length < 1:
            raise TooFew(f"{len(self.base)} launches leave none for a baseline")
        first = draw.randrange(half - length + 1)
        stored = self.base[first : first + length]
        later = [launch for launch in self.run if launch.started > stored[-1].started]
        rest = min(self.wanted, max(1, len(self.run) // 2), len(later))
        if rest < 1:
            raise TooFew("no launch comes after the baseline")
        begin = draw.randrange(len(later) - rest + 1)
        return self._with_first(stored, later[begin : begin + rest], draw)

    def paired(self, draw: random.Random) -> Sides:
        """One run that measured both: a stretch of rounds, each with a launch of either side."""
        if not self.pairs:
            raise TooFew("no round has both sides")
        length = min(self.rounds, len(self.pairs))
        begin = draw.randrange(len(self.pairs) - length + 1)
        base, new = zip(*self.pairs[begin : begin + length], strict=True)
        return self._with_first(base, new, draw)

    def _with_first(self, base: Sequence[Recorded], new: Sequence[Recorded], draw: random.Random) -> Sides:
        """Both sides, the new one with a slow first launch where the condition is about that."""
        return Sides(tuple(base), (draw.choice(self.first), *new[1:]) if self.first else tuple(new))

    def single(self, draw: random.Random) -> Sides:
        """One launch of either side, the new one later."""
        new = self.first or self.run
        early = [launch for launch in self.base if new and launch.started < new[-1].started]
        if not early:
            raise TooFew("no launch comes after another one")
        base = draw.choice(early)
        return Sides((base,), (draw.choice([launch for launch in new if launch.started > base.started]),))

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


def rate_text(rate: Rate) -> str:
    """In per cent, with its 95 % interval."""
    ends, decimals = rate.interval, 0 if rate.effective < MANY else 1
    return f"{100 * rate.value:.1f} % [{100 * ends.low:.{decimals}f} .. {100 * ends.high:.{decimals}f}]"


def _not_slower(tally: Tally) -> Rate | None:
    """How often it was shown not to be slower: of a slowdown, how often that was wrong."""
    if tally.inconclusive is None:
        return None
    others = tally.alarms.found + tally.inconclusive.found + (tally.improved.found if tally.improved else 0)
    return Rate(tally.alarms.of - others, tally.alarms.of, tally.alarms.independent)


def _text(figure: Rate | float | None, form: str = "") -> str:
    if figure is None:
        return NOTHING
    return rate_text(figure) if isinstance(figure, Rate) else format(figure, form)


COLUMNS: Mapping[str, Callable[[Tally], str]] = {
    "alarms": lambda tally: _text(tally.alarms),
    "inconclusive": lambda tally: _text(tally.inconclusive),
    "unchanged": lambda tally: _text(_not_slower(tally)),
    "improved": lambda tally: _text(tally.improved if tally.improved and tally.improved.found else None),
    "independent": lambda tally: str(tally.alarms.effective),
    "seconds": lambda tally: _text(tally.seconds, ".1f"),
    "launches": lambda tally: _text(tally.launches, ".0f"),
    "could have seen": lambda tally: "> 100 %" if tally.mde is not None and tally.mde > 1 else _text(tally.mde, ".1%"),
}


def rule_rows(
    rule: str, tallies: Mapping[str, Tally], conditions: Sequence[str], labels: Sequence[str]
) -> list[tuple[str, ...]]:
    """The rows of a rule, a column for each condition; those of ``labels``, see ``COLUMNS``, that say anything."""
    rows = [
        (
            f"{rule}: {label}",
            *(COLUMNS[label](tallies[condition]) if condition in tallies else NOTHING for condition in conditions),
        )
        for label in labels
    ]
    return [row for row in rows if set(row[1:]) != {NOTHING}]


def goal_lines(tallies: Tallies) -> list[str]:
    """A line for each goal that the tallies, by rule and condition, tell of: reached, or missed by how much."""
    lines = []
    for rule, condition, limit in GOALS:
        tally = tallies.get(rule, {}).get(condition)
        if tally is not None:
            words = "found, at least" if CONDITIONS[condition].alarm else "false alarms, at most"
            outcome = _reached(tally.alarms, limit, at_least=CONDITIONS[condition].alarm)
            lines.append(f"goal, {rule}: {condition} {words} {limit:.1%}: {rate_text(tally.alarms)}, {outcome}")
    same, one_of_suite = (tallies.get(rule, {}).get(UNCHANGED) for rule in (STORED, ONE_OF_SUITE))
    if one_of_suite is not None:
        ends = one_of_suite.alarms.interval
        low, rate, high = (suite_rate(alarms, SUITE) for alarms in (ends.low, one_of_suite.alarms.value, ends.high))
        missed = rate > SUITE_LIMIT
        sure = low > SUITE_LIMIT if missed else high <= SUITE_LIMIT
        lines.append(
            f"goal, a suite of {SUITE} independent benchmarks with a false alarm, at most {SUITE_LIMIT:.0%}: "
            f"{rate:.1%}, at most {high:.0%}; "
            f"{f'missed by {100 * (rate - SUITE_LIMIT):.1f} points' if missed else 'reached'}{'' if sure else UNSURE}"
        )
    if same is not None and same.seconds is not None:
        late = same.seconds - SECONDS
        lines.append(
            f"goal, seconds to the verdict on an unchanged step, at most {SECONDS:g}: {same.seconds:.1f}, "
            f"{'reached' if late <= 0 else f'missed by {late:.1f}'}"
        )
    return lines


def _reached(rate: Rate, limit: float, *, at_least: bool) -> str:
    """Whether a goal is, by how much it is not, and whether the interval agrees."""
    ends = rate.interval
    missed = limit - rate.value if at_least else rate.value - limit
    if missed > 0:
        sure = ends.high < limit if at_least else ends.low > limit
        return f"missed by {100 * missed:.1f} points" + ("" if sure else UNSURE)
    sure = ends.low >= limit if at_least else ends.high <= limit
    return "reached" + ("" if sure else UNSURE)
