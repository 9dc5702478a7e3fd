"""How often verdicts are right on launches whose noise is known, by simulation.

    python benchmarks/decision.py
    python benchmarks/decision.py --max-time 20

Made-up launches go through the very code that judges real ones, beside a stored baseline and side by side: unchanged,
slower in known ways, and (side by side) faster, on machines where launches scatter by 1 to 5 %, with and without some
that are disturbed, and on two about as noisy as two cores of a shared virtual one, where alone CPU times are known.
Each comparison has launches of its own, so that the 95 % intervals (Clopper-Pearson) rest on all of them. A launch
takes 0.3 s to start and times 80 steps of 12.5 ms, side by side 40, whose noise is 5 % where nothing else is said;
beside a stored baseline either run deviates as a whole by 1 %, which is what verdicts take for granted, and alike in
all of its steps, so that their tail does not. Memory and losses are the same in all launches. Real runs have fewer
launches in their time, for the first ones are also asked where time goes; what they are like,
benchmarks/verdict_quality.py and benchmarks/against.py tell.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; the processes of a pool get it as well

from benchmarks.quality.campaign import Sides
from benchmarks.quality.rates import (
    COLUMNS,
    ONE_OF_SUITE,
    OURS,
    PAIRED,
    STORED,
    SUITE,
    Tallies,
    Tally,
    goal_lines,
    rule_rows,
    tally,
)
from benchmarks.quality.simulate import ENVIRONMENT, LAUNCH, START_UP, STEP, Machine, run_of_rounds, separate_runs
from benchmarks.quality.steps import CONDITIONS, UNCHANGED
from benchmarks.quality.verdicts import Outcome, against_partner, beside, short_launch, stored
from pytest_ddpperf.reports.table import Table, render
from pytest_ddpperf.settings import Settings

SLOWER = ("+3%", "+5%", "+10%", "1 step in 10")
UNDONE = {"+5% undone": "+5%", "+10% undone": "+10%"}  # side by side: what would be found the other way round
EFFECTS = (UNCHANGED, *SLOWER, *UNDONE)
MORE = 4  # times as many comparisons of what is unchanged: false alarms are rare
SCATTERS = (0.01, 0.02, 0.03, 0.05)
NOISY = Machine(0.01, of_steps=0.22, of_cpu=0.03)  # two gloo ranks on two shared cores: benchmarks/turns.py
MACHINES = (
    *(Machine(scatter) for scatter in SCATTERS),
    *(Machine(scatter, disturbed=0.15) for scatter in SCATTERS),
    Machine(0.02, of_rounds=0.10),
    NOISY,
    replace(NOISY, disturbed=0.15),
)
ROUND = 2 * (START_UP + short_launch(STEP, START_UP))  # s
SPARE = 1.1  # times the launches that there is time for, as some happen to be short
LABELS = tuple(label for label in COLUMNS if label != "independent")  # here all comparisons are


@dataclass(frozen=True)
class Task:
    """What one process does at a time: comparisons of one condition on one machine, whose draws depend on no other."""

    machine: Machine
    condition: str
    paired: bool  # side by side; otherwise beside stored baselines
    comparisons: int
    seed: int
    settings: Settings


def tasks(comparisons: int, seed: int, settings: Settings) -> list[Task]:
    """All that there is to do, machine by machine.

    What rounds have in common cancels out side by side, and CPU time is for partners only.
    """
    return [
        Task(machine, condition, paired, comparisons * (MORE if condition == UNCHANGED else 1), seed, settings)
        for machine in MACHINES
        for condition in EFFECTS
        for paired in (False, True)
        if paired or not (machine.of_rounds or machine.of_cpu is not None or condition in UNDONE)
    ]


def tallied(task: Task) -> dict[str, Tally]:
    """What each rule made of a task's comparisons."""
    identity = f"{task.seed} {task.machine!r} {task.condition} {task.paired}"
    draw = np.random.default_rng([*identity.encode()])
    judge = _side_by_side if task.paired else _beside_baselines
    found = [judge(task, draw) for _ in range(task.comparisons)]
    return {rule: tally([outcomes[rule] for outcomes in found], task.comparisons) for rule in found[0]}


def _side_by_side(task: Task, draw: np.random.Generator) -> dict[str, Outcome]:
    slower = UNDONE.get(task.condition)
    rounds = int(SPARE * task.settings.max_time / ROUND)
    sides = run_of_rounds(task.machine, CONDITIONS[slower or task.condition], rounds, draw)
    sides = Sides(sides.new, sides.base) if slower else sides
    return {PAIRED: against_partner(sides, ENVIRONMENT, task.settings)}


def _beside_baselines(task: Task, draw: np.random.Generator) -> dict[str, Outcome]:
    """The same two runs for both rules, so that what the error budget of a suite costs is not mixed with luck."""
    launches = int(SPARE * task.settings.max_time / LAUNCH)
    sides = separate_runs(task.machine, CONDITIONS[task.condition], launches, draw)
    record = stored(sides, ENVIRONMENT, task.settings)
    return {STORED: beside(record, sides, task.settings), ONE_OF_SUITE: beside(record, sides, task.settings, SUITE)}


def simulated(comparisons: int, seed: int, processes: int, settings: Settings) -> Iterator[tuple[Machine, Tallies]]:
    """The tallies of each machine, by rule and condition, as soon as they are there; the same for any ``processes``."""
    every = tasks(comparisons, seed, settings)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        done = zip(every, pool.map(tallied, every), strict=True)
        for machine, parts in groupby(done, lambda part: part[0].machine):
            tallies: dict[str, dict[str, Tally]] = {}
            for task, found in parts:
                for rule, counted in found.items():
                    tallies.setdefault(rule, {})[task.condition] = counted
            yield machine, tallies


def machine_text(machine: Machine, tallies: Tallies) -> str:
    """A machine's table, and its goals."""
    rows = [row for rule in OURS if rule in tallies for row in rule_rows(rule, tallies[rule], EFFECTS, LABELS)]
    table = Table(headers=("rule", *EFFECTS), rows=tuple(rows), title=str(machine))
    return "\n".join((render(table), *goal_lines(tallies)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--comparisons", type=_positive, default=250, help="for each rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing (default: %(default)s)")
    parser.add_argument("--max-time", type=float, metavar="S", help="of a benchmark (default: the plugin's own)")
    parser.add_argument("--processes", type=_positive, default=cores, help="at a time (default: the usable cores)")
    options = parser.parse_args()
    settings = Settings() if options.max_time is None else Settings(max_time=options.max_time)
    print(
        f"{options.comparisons} comparisons for each rate, {MORE * options.comparisons} of what is unchanged; "
        f"max_time {settings.max_time:g} s; seconds, launches and what could have been seen are medians",
        flush=True,
    )
    for machine, tallies in simulated(options.comparisons, options.seed, options.processes, settings):
        print(f"\n{machine_text(machine, tallies)}", flush=True)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: takes one or more")
    return number


if __name__ == "__main__":
    main()
