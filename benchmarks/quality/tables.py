"""Rates as rows of tables, and beside their goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.quality.rates import ONE_OF_SUITE, PAIRED, STORED, SUITE, Tally
from benchmarks.quality.steps import CONDITIONS, FIRST, UNCHANGED
from pytest_ddpperf.stats.rates import Rate, suite_rate

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


def goal_lines(tallies: Mapping[str, Mapping[str, Tally]]) -> list[str]:
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
