"""The findings as tables beside the goals, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.quality.candidates import SHOWN, Scatter
from benchmarks.quality.conditions import CONDITIONS, FIRST, UNCHANGED
from benchmarks.quality.judging import ONE_OF_SUITE, OURS, PAIRED, STORED, SUITE, CellFindings, Effect, Findings, Tally
from benchmarks.quality.peers import RULES
from pytest_ddpperf.baselines.fingerprint import environment_key
from pytest_ddpperf.records.measurement import Interval
from pytest_ddpperf.reports.table import Table
from pytest_ddpperf.reports.terminal import render
from pytest_ddpperf.stats.rates import Rate, suite_rate

SCHEMA = "pytest-ddpperf/verdict-quality/2"
UNSURE = ", though not for certain"
NOTHING = "-"
TELLING = 200  # independent comparisons, whose interval deserves a decimal
HOW = """\
Each rate is that of comparisons drawn from the same launches, in stretches that keep their order. They share launches:
the 95 % intervals (Clopper-Pearson) rest on the number of comparisons without a common launch, at most, that the data
hold ("independent"). A stored baseline comes from the first half of the campaign, the run beside it from later on; its
launches lay further apart than in a run of their own: what drifts over minutes is more alike on both sides than in two
runs a day apart, so false alarms beside a stored baseline come out too few. "first launch" means the first one of a
run: ours leaves that one out, the other rules have no other. Seconds, launches and what could have been seen are
medians. What is added to steps was calibrated by itself: "really slower by" is what it came to, beside unchanged
launches that took turns with its own. Step times are cut to the steps that the plugin would have timed, CPU times are
those of all that were recorded. Side by side rests on launches that took turns, all else on ones that ran alone.
An all-reduce takes longer in a step than by itself, and the smallest one more than 5 % of a short step. What the plugin
runs after the timed steps of the first launches, to tell where time goes, was left out: a real run has fewer launches
in its time. So has one that is drawn from few rounds: it ends with them."""


@dataclass(frozen=True)
class Goal:
    """What a rate has to be: at most ``limit``, or at least that where the condition is slower."""

    rule: str
    condition: str
    limit: float

    @property
    def text(self) -> str:
        """In words."""
        alarm = CONDITIONS[self.condition].alarm
        return (
            f"{self.rule}: {self.condition} {'found, at least' if alarm else 'false alarms, at most'} {self.limit:.1%}"
        )


GOALS = (
    Goal(STORED, UNCHANGED, 0.005),
    Goal(PAIRED, UNCHANGED, 0.005),
    Goal(STORED, FIRST, 0.005),
    Goal(PAIRED, "+3%", 0.95),
    Goal(STORED, "+5%", 0.95),
    Goal(STORED, "+10%", 0.995),
    Goal(STORED, "1 step in 10", 0.90),
)
SUITE_LIMIT = 0.02
SECONDS = 15.0  # to the verdict on an unchanged step


def report(findings: Findings) -> str:
    """All of it, as text."""
    campaign = findings.campaign
    machines = ", ".join(environment_key(env) for env in campaign.environments.values())
    head = f"{len(campaign.launches)} launches since {campaign.began} on {machines}; {findings.comparisons} comparisons"
    return "\n\n".join((head, HOW, *map(cell_text, findings.cells)))


def cell_text(found: CellFindings) -> str:
    """A cell's tables and goals."""
    rows = [
        _effect_row("really slower by, typical step", found, lambda effect: _percent(effect.typical)),
        _effect_row("95 % interval of that", found, lambda effect: _ends(effect.interval)),
        _effect_row("really slower by, mean step", found, lambda effect: _percent(effect.mean)),
    ]
    for rule in (*OURS, *RULES):
        labels = tuple(COLUMNS) if rule in OURS else ("alarms",)
        rows += rule_rows(rule, found.tallies[rule], tuple(CONDITIONS), labels)
    title = f"{found.cell}: {1e3 * found.step:.1f} ms a step, {found.rounds} rounds"
    table = Table(headers=("rule", *CONDITIONS), rows=tuple(rows), title=title)
    lines = (*goal_lines(found.tallies), *peer_lines(found))
    return "\n".join((render(table), *lines, "", render(scatter_table(found.scatter))))


def scatter_table(scatter: Mapping[str, Scatter]) -> Table:
    """How far two launches differ by each statistic that they could be reduced to."""
    return Table(
        headers=("statistic of a launch", "alone\n(sd)", "in turns\n(sd)", f"{SHOWN}\nshows as"),
        rows=tuple(
            (
                name,
                f"{math.sqrt(2) * one.alone.sd:.1%}",
                f"{one.turns.sd:.1%}",
                NOTHING if one.shown is None else _percent(one.shown),
            )
            for name, one in scatter.items()
        ),
        title="how far two launches of the same differ, by what they are reduced to",
        right=0,
    )


def rule_rows(
    rule: str, tallies: Mapping[str, Tally], conditions: Sequence[str], labels: Sequence[str]
) -> list[tuple[str, ...]]:
    """The rows of a rule, a column for each condition; those of ``labels``, see ``COLUMNS``, that say anything."""
    rows = (_row(f"{rule}: {label}", tallies, conditions, COLUMNS[label]) for label in labels)
    return [row for row in rows if set(row[1:]) != {NOTHING}]


def goal_lines(tallies: Mapping[str, Mapping[str, Tally]]) -> list[str]:
    """A line for each goal that the tallies, by rule and condition, tell of: reached, or missed by how much."""
    lines = []
    for goal in GOALS:
        tally = tallies.get(goal.rule, {}).get(goal.condition)
        if tally is not None:
            lines.append(f"goal, {goal.text}: {rate_text(tally.alarms)}, {_reached(tally.alarms, goal)}")
    same, one_of_suite = (tallies.get(rule, {}).get(UNCHANGED) for rule in (STORED, ONE_OF_SUITE))
    if one_of_suite is not None:
        ends = one_of_suite.alarms.interval
        least, rate, most = (suite_rate(one, SUITE) for one in (ends.low, one_of_suite.alarms.value, ends.high))
        missed = rate > SUITE_LIMIT
        sure = least > SUITE_LIMIT if missed else most <= SUITE_LIMIT
        lines.append(
            f"goal, a suite of {SUITE} independent benchmarks with a false alarm, at most {SUITE_LIMIT:.0%}: "
            f"{rate:.1%}, at most {most:.0%}; "
            f"{f'missed by {100 * (rate - SUITE_LIMIT):.1f} points' if missed else 'reached'}{'' if sure else UNSURE}"
        )
    if same is not None and same.seconds is not None:
        late = same.seconds - SECONDS
        lines.append(
            f"goal, seconds to the verdict on an unchanged step, at most {SECONDS:g}: {same.seconds:.1f}, "
            f"{'reached' if late <= 0 else f'missed by {late:.1f}'}"
        )
    return lines


def peer_lines(found: CellFindings) -> list[str]:
    """A line for each other rule that has fewer false alarms and finds more than a stored baseline of ours does."""
    better = []
    ours = found.tallies[STORED]
    for rule in RULES:
        theirs = found.tallies[rule]
        slower = [name for name in theirs if CONDITIONS[name].alarm and name in ours]
        if UNCHANGED in theirs and UNCHANGED in ours and slower:
            quieter = theirs[UNCHANGED].alarms.value < ours[UNCHANGED].alarms.value
            sharper = [name for name in slower if theirs[name].alarms.value > ours[name].alarms.value]
            if quieter and sharper:
                better.append(f"better than ours in false alarms and at {', '.join(sharper)}: {rule}")
    return better or ["no other rule is better than ours in both false alarms and any slowdown"]


def document(findings: Findings) -> dict[str, Any]:
    """The figures, for a JSON file."""
    campaign = findings.campaign
    return {
        "schema": SCHEMA,
        "began": campaign.began,
        "environments": [environment_key(env) for env in campaign.environments.values()],
        "launches": len(campaign.launches),
        "comparisons": findings.comparisons,
        "cells": [
            {
                "length": found.cell.length,
                "ranks": found.cell.ranks,
                "step_time": found.step,
                "rounds": found.rounds,
                "scatter": {
                    name: {"alone": one.alone.sd, "difference_in_turns": one.turns.sd, "shown": one.shown}
                    for name, one in found.scatter.items()
                },
                "effects": {
                    name: {"typical": effect.typical, "mean": effect.mean} for name, effect in found.effects.items()
                },
                "rules": {
                    rule: {name: tally_data(tally) for name, tally in tallies.items()}
                    for rule, tallies in found.tallies.items()
                },
            }
            for found in findings.cells
        ],
    }


def tally_data(tally: Tally) -> dict[str, Any]:
    """A tally for a JSON file."""
    return {
        "alarms": _rate_data(tally.alarms),
        "inconclusive": None if tally.inconclusive is None else _rate_data(tally.inconclusive),
        "improved": None if tally.improved is None else _rate_data(tally.improved),
        "seconds": tally.seconds,
        "launches": tally.launches,
        "mde": tally.mde,
    }


def _rate_data(rate: Rate) -> dict[str, Any]:
    ends = rate.interval
    return {"rate": rate.value, "low": ends.low, "high": ends.high, "of": rate.of, "independent": rate.independent}


def _row(
    label: str, tallies: Mapping[str, Tally], conditions: Sequence[str], cell: Callable[[Tally], str]
) -> tuple[str, ...]:
    return (label, *(cell(tallies[name]) if name in tallies else NOTHING for name in conditions))


def _effect_row(label: str, found: CellFindings, cell: Callable[[Effect], str]) -> tuple[str, ...]:
    return (label, *(cell(found.effects[name]) if name in found.effects else NOTHING for name in CONDITIONS))


def rate_text(rate: Rate) -> str:
    """In per cent, with its 95 % interval."""
    ends, form = rate.interval, ".0f" if rate.effective < TELLING else ".1f"
    return f"{100 * rate.value:.1f} % [{format(100 * ends.low, form)} .. {format(100 * ends.high, form)}]"


def _inconclusive(tally: Tally) -> str:
    return NOTHING if tally.inconclusive is None else rate_text(tally.inconclusive)


def _unchanged(tally: Tally) -> str:
    """How often it was shown not to be slower: of a slowdown, how often that was wrong."""
    if tally.inconclusive is None:
        return NOTHING
    others = tally.alarms.found + tally.inconclusive.found + (tally.improved.found if tally.improved else 0)
    return rate_text(Rate(tally.alarms.of - others, tally.alarms.of, tally.alarms.independent))


def _improved(tally: Tally) -> str:
    return NOTHING if tally.improved is None or not tally.improved.found else rate_text(tally.improved)


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _percent(change: float) -> str:
    return f"{100 * change:+.1f} %"


def _ends(ends: Interval | None) -> str:
    return NOTHING if ends is None else f"{100 * ends.low:+.1f} .. {100 * ends.high:+.1f}"


def _seen(tally: Tally) -> str:
    return "> 100 %" if tally.mde is not None and tally.mde > 1 else _number(tally.mde, ".1%")


def _reached(rate: Rate, goal: Goal) -> str:
    """Whether a goal is, by how much it is not, and whether the interval agrees."""
    at_least = CONDITIONS[goal.condition].alarm
    missed = goal.limit - rate.value if at_least else rate.value - goal.limit
    ends = rate.interval
    if missed > 0:
        sure = ends.high < goal.limit if at_least else ends.low > goal.limit
        return f"missed by {100 * missed:.1f} points" + ("" if sure else UNSURE)
    sure = ends.low >= goal.limit if at_least else ends.high <= goal.limit
    return "reached" + ("" if sure else UNSURE)


COLUMNS: Mapping[str, Callable[[Tally], str]] = {
    "alarms": lambda tally: rate_text(tally.alarms),
    "inconclusive": _inconclusive,
    "unchanged": _unchanged,
    "improved": _improved,
    "independent": lambda tally: str(tally.alarms.effective),
    "seconds": lambda tally: _number(tally.seconds, ".1f"),
    "launches": lambda tally: _number(tally.launches, ".0f"),
    "could have seen": _seen,
}
