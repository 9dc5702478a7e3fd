"""Tables of what real runs came to, with exact binomial intervals."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from benchmarks.quality.rates import NOTHING, rate_text
from benchmarks.verdicts.cells import CELLS, Cell, Goal
from benchmarks.verdicts.outcomes import WITHIN, Outcome
from pytest_ddpperf.reports.table import Table, render
from pytest_ddpperf.stats.rates import Rate

WIDTH = 160


def report(outcomes: Sequence[Outcome], tree: str | None = None) -> str:
    """A table for each tree of the package and machine, and what it shows of the goals."""
    groups = dict.fromkeys((each.tree, each.machine) for each in outcomes if tree in (None, each.tree))
    parts: list[str] = []
    for of_tree, machine in groups:
        same = [each for each in outcomes if (each.tree, each.machine) == (of_tree, machine)]
        began = sorted(each.began for each in same)
        parts += [
            f"{len(same)} runs by tree {of_tree} on {machine}, {began[0][:16]} to {began[-1][:16]}",
            render(table(same), WIDTH),
            "\n".join([*goal_lines(same), *agreement_lines(same), *notable_lines(same)]),
        ]
    return "\n\n".join(parts) or "there are no runs yet"


def _by_cell(outcomes: Sequence[Outcome]) -> list[tuple[Cell, list[Outcome]]]:
    found = [(cell, [each for each in outcomes if each.cell == name]) for name, cell in CELLS.items()]
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


COUNTED: dict[str, Callable[[Outcome], bool]] = {"red": lambda each: each.is_red, "green": lambda each: each.is_green}


def goal_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Whether each goal is reached by the runs that there are, and whether there are as many as wanted."""
    return [
        _goal_line(cell, goal, counting)
        for cell, runs in _by_cell(outcomes)
        for goal in cell.goals
        if (counting := [each for each in runs if each.counts])
    ]


def _goal_line(cell: Cell, goal: Goal, runs: Sequence[Outcome]) -> str:
    rate = Rate(sum(map(COUNTED[goal.what], runs)), len(runs), len(runs))
    reached = rate.value >= goal.share if goal.at_least else rate.value <= goal.share
    wanted = {0.0: "never", 1.0: "always"}.get(
        goal.share, f"{'at least' if goal.at_least else 'at most'} {goal.share:.0%}"
    )
    lacking = f", {cell.wanted - len(runs)} runs to come" if len(runs) < cell.wanted else ""
    word = "reached" if reached else "missed"
    return f"goal, {cell.name}: {goal.what} {wanted}: {rate.found} of {rate.of}, {rate_text(rate)}, {word}{lacking}"


def agreement_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """In how many runs step time and throughput are what the result's own step times say."""
    known = [each for each in outcomes if each.apart]
    agreeing = sum(each.agrees for each in known)
    most = max((max(each.apart) for each in known), default=0.0)
    which = f"within {WITHIN:.0%} of what the result's own step times say"
    return [f"step time and throughput lie {which} in {agreeing} of {len(known)} runs; {most:.2%} apart at most"]


def notable_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Each run that came to something that its cell must never come to, or to nothing."""
    lines = []
    for cell, runs in _by_cell(outcomes):
        never = [goal.what for goal in cell.goals if goal.share == 0.0 and not goal.at_least]
        always = any(goal.at_least for goal in cell.goals)
        for each in runs:
            wrong = any(COUNTED[what](each) for what in never) or (always and not each.is_red)
            if each.counts and (wrong or each.verdict == "none"):
                true, said = _median("+.1%", [each.true]), each.said.strip().splitlines()[-1:] or [""]
                red = f" ({', '.join(each.red)})" if each.red else ""
                lines.append(f"  {each.cell} #{each.number}, {each.began}: {each.verdict}{red}, truly {true} {said[0]}")
    return [] if not lines else ["runs that came out otherwise than they should:", *lines]
