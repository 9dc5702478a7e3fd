"""How often each rule alarms, ours and those of other tools, on comparisons drawn from one campaign; and its goals."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.quality.campaign import Campaign, Cell, Recorded, Sides, of_cell, partners
from benchmarks.quality.steps import CONDITIONS, FIRST, UNCHANGED
from benchmarks.quality.verdicts import Outcome, Verdict, of_recorded, seconds_of, steps_of
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.rates import Rate

OURS = "side by side"

UNSURE = ", though not for certain"
NOTHING = "-"
MANY = 200  # independent comparisons, whose interval deserves a decimal
GOALS = (  # of a condition: at most that, or at least that where it is slower
    (UNCHANGED, 0.005),
    (FIRST, 0.005),
    ("+5%", 0.95),
    ("+10%", 0.995),
    ("1 step in 10", 0.95),
)

Steps: TypeAlias = "Sequence[float]"
Tallies: TypeAlias = "Mapping[str, Mapping[str, Tally]]"  # by rule, then by condition
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
    tallies: dict[str, dict[str, Tally]] = {rule: {} for rule in (OURS, *RULES)}
    for condition in CONDITIONS:
        draws = Draws(launches, cell, condition, settings)
        draw = random.Random(f"{seed} {cell} {condition}")  # noqa: S311  no secret
        with suppress(TooFew):
            outcomes = [of_recorded(draws.paired(draw), env, settings) for _ in range(comparisons)]
            used = statistics.median(outcome.launches for outcome in outcomes)
            tallies[OURS][condition] = tally(outcomes, int(len(draws.pairs) / used))
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
        self.rounds = self._affordable((settings or Settings()).max_time)

    def _affordable(self, max_time: float) -> int:
        """How many rounds there is time for."""
        if not self.base:
            return 3
        steps = steps_of(self.base[0])
        each = statistics.fmean(seconds_of(launch, steps) for launch in self.base)
        return int(max_time / each / 2) + 2  # a pilot, and the last one, which may run over

    def paired(self, draw: random.Random) -> Sides:
        """One run that measured both: a stretch of rounds, each with a launch of either side."""
        if not self.pairs:
            raise TooFew("no round has both sides")
        length = min(self.rounds, len(self.pairs))
        begin = draw.randrange(len(self.pairs) - length + 1)
        base, new = zip(*self.pairs[begin : begin + length], strict=True)
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
    for condition, limit in GOALS:
        tally = tallies.get(OURS, {}).get(condition)
        if tally is not None:
            words = "found, at least" if CONDITIONS[condition].alarm else "false alarms, at most"
            outcome = _reached(tally.alarms, limit, at_least=CONDITIONS[condition].alarm)
            lines.append(f"goal, {OURS}: {condition} {words} {limit:.1%}: {rate_text(tally.alarms)}, {outcome}")
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
