"""Tables of what real runs came to, with exact binomial intervals."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

from benchmarks.quality.project import rate_text
from benchmarks.verdicts.cells import CELLS, SUITES, Cell, Goal
from benchmarks.verdicts.outcomes import WITHIN, Outcome, Ran, SuiteOutcome
from pytest_ddpperf.reports.table import Table, render
from pytest_ddpperf.stats.rates import Rate

WIDTH = 160
NOTHING = "-"
OFTEN = 5  # benchmarks of a cell that are named as open
AnyRan = TypeVar("AnyRan", bound=Ran)


def report(outcomes: Sequence[Ran], tree: str | None = None) -> str:
    """The tables for each tree of the package and machine, and what they show of the goals."""
    groups = dict.fromkeys((each.tree, each.machine) for each in outcomes if tree in (None, each.tree))
    parts: list[str] = []
    for of_tree, machine in groups:
        same = [each for each in outcomes if (each.tree, each.machine) == (of_tree, machine)]
        programs = [each for each in same if isinstance(each, Outcome)]
        suites = [each for each in same if isinstance(each, SuiteOutcome)]
        began = sorted(each.began for each in same)
        parts += [
            f"{len(same)} runs by tree {of_tree} on {machine}, {began[0][:16]} to {began[-1][:16]}",
            *([render(table(programs), WIDTH)] if programs else []),
            *([render(suite_table(suites), WIDTH)] if suites else []),
            "\n".join(
                [*goal_lines(same), *agreement_lines(programs), *notable_lines(programs), *notable_suite_lines(suites)]
            ),
        ]
    return "\n\n".join(parts) or "there are no runs yet"


def _by_cell(outcomes: Sequence[AnyRan]) -> list[tuple[Cell, list[AnyRan]]]:
    found = [(cell, [each for each in outcomes if each.cell == name]) for name, cell in {**CELLS, **SUITES}.items()]
    return [(cell, runs) for cell, runs in found if runs]


def table(outcomes: Sequence[Outcome]) -> Table:
    """A row for each cell; changes, bounds and seconds are medians."""
    headers = (
        *("cell", "runs", "of", "left\nout", "red", "incon-\nclusive", "ok", "un-\nchanged", "other", "red, %"),
        *("truly\nslower", "told", "told beside\ntruth, most", "at\nmost", "long\ntold", "steps"),
        *("meas-\nuring s", "run\ns"),
    )
    rows = tuple(_row(cell, runs) for cell, runs in _by_cell(outcomes))
    title = (
        'runs that count, of those wanted; "truly slower": by the means of all timed steps of both sides; "steps": '
        "of a launch, at least: what is rarer is in no launch"
    )
    return Table(headers, rows, title=title, right=0)


def _row(cell: Cell, runs: Sequence[Outcome]) -> tuple[str, ...]:
    counting = [each for each in runs if each.counts]
    out = [each for each in runs if not each.counts]
    verdicts = Counter(each.verdict for each in counting)
    red = sum(each.is_red for each in counting)
    words = ("inconclusive", "ok", "unchanged")
    beside = [abs(each.change - each.true) for each in counting if each.change is not None and each.true is not None]
    return (
        cell.name,
        str(len(counting)),
        str(cell.wanted),
        f"{len(out)}" + (f", {sum(each.is_red for each in out)} red" if any(each.is_red for each in out) else ""),
        str(red),
        *(str(verdicts[word]) for word in words),
        str(len(counting) - red - sum(verdicts[word] for word in words)),
        rate_text(Rate(red, len(counting), len(counting))) if counting else NOTHING,
        _median("+.1%", (each.true for each in counting)),
        _median("+.1%", (each.change for each in counting)),
        f"{max(beside):.1%}" if beside else NOTHING,
        _median("+.1%", (each.bound for each in counting)),
        str(sum(each.long for each in counting)),
        str(min((each.steps for each in counting if each.steps), default=NOTHING)),
        _median(".0f", (each.measuring or None for each in counting)),
        _median(".0f", (each.seconds for each in counting)),
    )


def _median(form: str, figures: Iterable[float | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    return format(statistics.median(known), form) if known else NOTHING


def suite_table(outcomes: Sequence[SuiteOutcome]) -> Table:
    """A row for each cell that runs the example suite; benchmarks of all runs that count, and seconds."""
    headers = (
        *("cell", "runs", "of", "left\nout", "red", "green", "open", "planted\nfound"),
        *("truly slower,\nleast", "most", "took s,\nmedian", "most", "others,\nmost", "run\ns"),
    )
    title = (
        'runs that count, of those wanted; "red" to "open": benchmarks of all runs in which nothing was planted; '
        "intervals below take benchmarks of the same run as independent"
    )
    return Table(headers, tuple(_suite_row(cell, runs) for cell, runs in _by_cell(outcomes)), title=title, right=0)


def _suite_row(cell: Cell, runs: Sequence[SuiteOutcome]) -> tuple[str, ...]:
    counting = [each for each in runs if each.counts]
    planted = sum(len(each.planted) for each in counting)
    found = planted - sum(len(each.missed) for each in counting)
    true = [slower for each in counting for slower in each.true.values()]
    took = [each.took for each in counting if each.took is not None]
    others = [each.others for each in counting if each.others is not None]
    return (
        cell.name,
        str(len(counting)),
        str(cell.wanted),
        str(len(runs) - len(counting)),
        str(sum(len(each.red) for each in counting)),
        str(sum(len(each.green) for each in counting)),
        str(sum(len(each.open) for each in counting)),
        f"{found} of {planted}" if planted else NOTHING,
        *(f"{end(true):+.1%}" if true else NOTHING for end in (min, max)),
        _median(".0f", took),
        f"{max(took):.0f}" if took else NOTHING,
        f"{max(others):.0%}" if others else NOTHING,
        _median(".0f", (each.seconds for each in counting)),
    )


def goal_lines(outcomes: Sequence[Ran]) -> list[str]:
    """Whether each goal is reached by the runs that there are, and whether there are as many as wanted."""
    return [
        _goal_line(cell, goal, counting)
        for cell, runs in _by_cell(outcomes)
        for goal in cell.goals
        if (counting := [each for each in runs if each.counts])
    ]


def _goal_line(cell: Cell, goal: Goal, runs: Sequence[Ran]) -> str:
    found, of = (sum(figures) for figures in zip(*(each.tally(goal) for each in runs), strict=True))
    name = f"{cell.name}, {goal.test}" if goal.test else cell.name
    rate = Rate(found, of, of)
    reached = rate.value >= goal.share if goal.at_least else rate.value <= goal.share
    wanted = {0.0: "never", 1.0: "always"}.get(
        goal.share, f"{'at least' if goal.at_least else 'at most'} {goal.share:.0%}"
    )
    lacking = f", {cell.wanted - len(runs)} runs to come" if len(runs) < cell.wanted else ""
    word = "reached" if reached else "missed"
    return f"goal, {name}: {goal.what} {wanted}: {rate.found} of {rate.of}, {rate_text(rate)}, {word}{lacking}"


def agreement_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """In how many runs step time and throughput are what the result's own step times say."""
    known = [each for each in outcomes if each.apart]
    if not known:
        return []
    agreeing = sum(each.agrees for each in known)
    most = max((max(each.apart) for each in known), default=0.0)
    which = f"within {WITHIN:.0%} of what the result's own step times say"
    return [f"step time and throughput lie {which} in {agreeing} of {len(known)} runs; {most:.2%} apart at most"]


def notable_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Each run that came to something that its cell must never come to, or to nothing."""
    lines = []
    for cell, runs in _by_cell(outcomes):
        never = [goal for goal in cell.goals if goal.share == 0.0 and not goal.at_least]
        always = any(goal.at_least for goal in cell.goals)
        for each in runs:
            wrong = any(each.tally(goal)[0] for goal in never) or (always and not each.is_red)
            if each.counts and (wrong or each.verdict == "none"):
                true, said = _median("+.1%", [each.true]), each.said.strip().splitlines()[-1:] or [""]
                red = f" ({', '.join(each.red)})" if each.red else ""
                lines.append(f"  {each.cell} #{each.number}, {each.began}: {each.verdict}{red}, truly {true} {said[0]}")
    return [] if not lines else ["runs that came out otherwise than they should:", *lines]


def notable_suite_lines(outcomes: Sequence[SuiteOutcome]) -> list[str]:
    """Each run that was red for nothing, missed what was planted, or came to nothing; and what is open most often."""
    lines = []
    for cell, runs in _by_cell(outcomes):
        counting = [each for each in runs if each.counts]
        for each in counting:
            if each.red or each.missed or each.took is None:
                missed = [f"missed {test}" for test in each.missed]
                said = each.said.strip().splitlines()[-max(1, len(each.red)) :]
                lines.append(f"  {each.cell} #{each.number}, {each.began}: {'; '.join([*missed, *said])}")
        often = Counter(name for each in counting for name in each.open).most_common(OFTEN)
        if often:
            named = "; ".join(f"{name} ({times} of {len(counting)})" for name, times in often)
            lines.append(f"  {cell.name}, open most often: {named}")
    return [] if not lines else ["benchmarks of the example suite that came out otherwise than they should:", *lines]
