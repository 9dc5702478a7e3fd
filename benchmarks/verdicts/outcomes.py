"""What real runs came to: the file that keeps them, a JSON object for each benchmark of a run, and the table."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.common.project import BrokenFile, rate_text
from benchmarks.verdicts.cells import CELLS, SUITES, Cell, Goal
from benchmarks.verdicts.programs import SAMPLES
from pytest_ddpperf.reports.table import Table, render

QUIET = 0.10  # of the cores, that others may use
WITHIN = 0.01  # of what the result's own step times say
GREEN, RED = ("unchanged", "ok", "improved"), ("regressed", "broken")
WIDTH, NOTHING = 160, "-"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One comparison: of the two programs of a run, or of a benchmark of the example suite.

    Shares are fractions, times seconds, and changes those of the step time.
    """

    cell: str
    number: int  # of the run in its cell, which decides its programs
    tree: str  # of the package, as git names it
    machine: str  # the environment's key
    began: str  # UTC, ISO 8601
    seconds: float = 0.0  # of the run, with start-up and all that is not measuring
    left_out: str = ""  # why the run does not count
    others: float | None = None  # share of the cores that other processes took
    others_saved: float | None = None  # the same of the run that saved the baseline
    said: str = ""  # by pytest, or by the report
    verdict: str = "none"  # if there was none, ``said`` tells why
    test: str = ""  # of the example suite
    planted: bool = False  # whether it is slower, in a suite
    took: float | None = None  # until pytest ended, of a suite: without the clone and the run that saves
    programs: Mapping[str, Any] = field(default_factory=dict)
    red: Sequence[str] = ()  # gated metrics
    change: float | None = None
    true: float | None = None  # by the means of all timed steps of both sides
    bound: float | None = None
    steps: int = 0  # timed, of a launch
    measuring: float = 0.0
    apart: Sequence[float] = ()  # by how much step time and throughput differ from what its own step times say


def told(result: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the result of a run says, in fields of an outcome; the JSON leaves out what is empty."""
    metrics, steps = result["metrics"], [times for times in result.get("step_times") or () if times]
    step, throughput = metrics.get("step_time", {}), metrics.get("throughput")
    if not steps or not step:
        return {"verdict": result["verdict"], "said": "; ".join(result.get("findings", ()))[-500:]}
    mean = math.fsum(map(math.fsum, steps)) / sum(map(len, steps))
    values = [(step["value"], mean), *([(throughput["value"], 2 * SAMPLES / mean)] if throughput else [])]
    base = [sample for sample in step.get("baseline_samples") or () if sample]
    worse = {name: each for name, each in metrics.items() if each.get("gated") and each["verdict"] in RED}
    return {
        "verdict": result["verdict"],
        "red": [*worse],
        "said": "; ".join(f"{name} {each.get('note') or ''}".strip() for name, each in worse.items())[-500:],
        "change": step.get("change"),
        "true": mean / statistics.fmean(base) - 1 if base else None,
        "bound": step.get("bound"),
        "steps": len(steps[0]),
        "measuring": result["seconds"],
        "others": others_of(result),
        "apart": [abs(value / own - 1) for value, own in values],
    }


def others_of(result: Mapping[str, Any]) -> float | None:
    """Returns the share of the cores that others and a hypervisor took, of the median launch; None if unknown."""
    seen = [each["cpu"] for each in result.get("health") or [] if each is not None and each.get("cpu")]
    shares = [cpu["others"] + (cpu["steal"] or 0.0) for cpu in seen if cpu["others"] is not None]
    return statistics.median(shares) if shares else None


def why_left_out(cell: Cell, outcome: Outcome) -> str:
    """Returns why a run does not count in its cell; empty if it does. A run without a verdict counts."""
    saved = (cell.saved_busy, outcome.others_saved, "saved")
    for busy, others, when in ((cell.busy, outcome.others, "compared"), saved):
        if busy is False and others is not None and others > QUIET:
            return f"not quiet: others used {others:.0%} of the cores while it was {when}"
    if cell.least is not None and outcome.true is not None and outcome.true < cell.least:
        return f"its mean step is {outcome.true:+.1%}: it takes {cell.least:+.0%}"
    return ""


def read(file: Path) -> list[Outcome]:
    """Returns what was written so far; nothing if there is no file."""
    names, found, number = {column.name for column in fields(Outcome)}, [], 0
    try:
        for number, line in enumerate(file.read_text("utf-8").splitlines() if file.exists() else (), 1):  # noqa: B007
            found.append(Outcome(**{name: value for name, value in json.loads(line).items() if name in names}))
    except (ValueError, TypeError, AttributeError) as error:
        raise BrokenFile(f"{file}, line {number}: not a real run: {type(error).__name__}: {error}") from None
    return found


def append(file: Path, outcomes: Iterable[Outcome]) -> None:
    """Adds the benchmarks of a run."""
    defaults = {column.name: column.default for column in fields(Outcome)}
    with file.open("a", encoding="utf-8") as out:
        for outcome in outcomes:
            changed = {name: each for name, each in asdict(outcome).items() if each != defaults[name]}
            out.write(json.dumps(changed, separators=(",", ":")) + "\n")


def report(outcomes: Sequence[Outcome], tree: str | None = None) -> str:
    """Returns the table for each tree of the package and machine, and what it shows of the goals."""
    parts: list[str] = []
    for of in dict.fromkeys((each.tree, each.machine) for each in outcomes if tree in (None, each.tree)):
        same = [each for each in outcomes if (each.tree, each.machine) == of]
        began = sorted(each.began for each in same)
        parts += [f"tree {of[0]} on {of[1]}, {began[0][:16]} to {began[-1][:16]}", render(table(same), WIDTH)]
        parts.append("\n".join([*goal_lines(same), *notable_lines(same)]))
    return "\n\n".join(parts) or "there are no runs yet"


def by_cell(outcomes: Sequence[Outcome]) -> list[tuple[Cell, list[Outcome]]]:
    """Returns the cells that have runs, with what these came to."""
    found = [(cell, [each for each in outcomes if each.cell == name]) for name, cell in {**CELLS, **SUITES}.items()]
    return [(cell, mine) for cell, mine in found if mine]


def runs_of(outcomes: Iterable[Outcome]) -> dict[int, Outcome]:
    """Returns one outcome of each run, by its number."""
    return {each.number: each for each in outcomes}


def table(outcomes: Sequence[Outcome]) -> Table:
    """Makes a row for each cell; changes, bounds and seconds are medians."""
    headers = (
        *("cell", "runs", "of", "left\nout", "bench-\nmarks", "red", "incon-\nclusive", "ok", "un-\nchanged", "other"),
        *("red, %", "planted\nfound", "truly\nslower", "told", "told beside\ntruth, most", "at\nmost", "steps"),
        *("meas-\nuring s", "run\ns"),
    )
    title = (
        'runs that count, of those wanted; "red" to "other": benchmarks in which nothing was planted; "truly slower": '
        'by the means of all timed steps of both sides; "steps": of a launch, at least: what is rarer is in no launch'
    )
    return Table(headers, tuple(_row(*each) for each in by_cell(outcomes)), title=title, right=0)


def _row(cell: Cell, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    counting = [each for each in outcomes if not each.left_out]
    plain, planted = ([each for each in counting if each.planted is wanted] for wanted in (False, True))
    verdicts, words = Counter(each.verdict for each in plain), ("inconclusive", "ok", "unchanged")
    red = sum(each.verdict in RED for each in plain)
    beside = [abs(each.change - each.true) for each in counting if each.change is not None and each.true is not None]
    return (
        cell.name,
        str(len(runs_of(counting))),
        str(cell.wanted),
        str(len(runs_of(outcomes)) - len(runs_of(counting))),
        str(len(plain)),
        str(red),
        *(str(verdicts[word]) for word in words),
        str(len(plain) - red - sum(verdicts[word] for word in words)),
        rate_text(red, len(plain)) if plain else NOTHING,
        f"{sum(each.verdict == 'regressed' for each in planted)} of {len(planted)}" if planted else NOTHING,
        _median("+.1%", (each.true for each in planted or plain)),
        _median("+.1%", (each.change for each in planted or plain)),
        f"{max(beside):.1%}" if beside else NOTHING,
        _median("+.1%", (each.bound for each in counting)),
        str(min((each.steps for each in counting if each.steps), default=NOTHING)),
        _median(".0f", (each.measuring or None for each in counting)),
        _median(".0f", (each.seconds for each in counting)),
    )


def _median(form: str, figures: Iterable[float | None]) -> str:
    known = [figure for figure in figures if figure is not None]
    return format(statistics.median(known), form) if known else NOTHING


def tally(goal: Goal, outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """Returns in how many cases runs came to what a goal is about, and of how many."""
    if goal.seconds is not None:
        runs = runs_of(outcomes).values()
        return sum(each.took is not None and each.took <= goal.seconds for each in runs), len(runs)
    meant = [each for each in outcomes if each.planted is goal.planted]
    # A broken benchmark is red, and shows nothing of what was planted in it.
    wanted = ("regressed",) if goal.planted else RED if goal.what == "red" else GREEN
    return sum(each.verdict in wanted for each in meant), len(meant)


def goal_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Says whether each goal is reached by the runs that there are, and whether these agree with their own steps."""
    lines = []
    for cell, mine in by_cell(outcomes):
        counting = [each for each in mine if not each.left_out]
        for goal in cell.goals if counting else ():
            found, of = tally(goal, counting)
            reached = found >= goal.share * of if goal.at_least else found <= goal.share * of
            few = f"{'at least' if goal.at_least else 'at most'} {goal.share:.0%}"
            wanted = {0.0: "never", 1.0: "always"}.get(goal.share, few)
            lacking = cell.wanted - len(runs_of(counting))
            lines.append(
                f"goal, {cell.name}: {'planted ' * goal.planted}{goal.what} {wanted}: {found} of {of}, "
                f"{rate_text(found, of) if of else NOTHING}, {'reached' if reached else 'missed'}"
                + (f", {lacking} runs to come" if lacking > 0 else "")
            )
    known = [max(each.apart) for each in outcomes if each.apart]
    if known:
        agreeing, which = sum(apart <= WITHIN for apart in known), f"within {WITHIN:.0%} of the result's own step times"
        lines.append(f"step time and throughput lie {which} in {agreeing} of {len(known)}; {max(known):.2%} at most")
    return lines


def notable_lines(outcomes: Sequence[Outcome]) -> list[str]:
    """Says which runs came to something that their cell must never come to, or to nothing."""
    lines = []
    for cell, mine in by_cell(outcomes):
        for each in mine:
            goals = [goal for goal in cell.goals if goal.planted is each.planted and goal.seconds is None]
            never = [goal for goal in goals if not goal.share and tally(goal, [each])[0]]
            missed = [goal for goal in goals if goal.at_least and goal.what == "red" and not tally(goal, [each])[0]]
            if not each.left_out and (never or missed or each.verdict == "none"):
                true, said = _median("+.1%", [each.true]), each.said.strip().splitlines()[-1:] or [""]
                name = f"{each.cell} #{each.number} {each.test}".strip()
                lines.append(f"  {name}, {each.began}: {each.verdict}, truly {true} {said[0]}")
    return ["benchmarks that came out otherwise than they should:", *lines] if lines else []
