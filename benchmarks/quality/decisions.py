"""Our rules on made-up launches: how often they alarm, find and leave open, on machines whose noise is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby
from multiprocessing import get_context
from typing import Any

from benchmarks.quality.conditions import CONDITIONS, UNCHANGED
from benchmarks.quality.judging import ONE_OF_SUITE, OURS, PAIRED, STORED, SUITE, Tally, tally
from benchmarks.quality.replay import Outcome, against_partner, beside, stored
from benchmarks.quality.report import COLUMNS, goal_lines, rule_rows, tally_data
from benchmarks.quality.resampling import Sides
from benchmarks.quality.simulated import (
    ENVIRONMENT,
    LAUNCH,
    START_UP,
    STEP,
    Machine,
    run_of_rounds,
    separate_runs,
)
from pytest_ddpperf.reports.table import Table
from pytest_ddpperf.reports.terminal import render
from pytest_ddpperf.run.pilot import short_launch
from pytest_ddpperf.settings import Settings

SCHEMA = "pytest-ddpperf/decision/1"
SLOWER = ("+3%", "+5%", "+10%", "1 step in 10")
UNDONE = {"+5% undone": "+5%", "+10% undone": "+10%"}  # side by side: what would be found the other way round
EFFECTS = (UNCHANGED, *SLOWER, *UNDONE)
MORE = 4  # times as many comparisons of what is unchanged: false alarms are rare
SCATTERS = (0.01, 0.02, 0.03, 0.05)
IN_TURNS = Machine(0.01, of_steps=0.22, of_cpu=0.03)  # two gloo ranks on two shared cores: benchmarks/turns.py
MACHINES = (
    *(Machine(scatter) for scatter in SCATTERS),
    *(Machine(scatter, disturbed=0.15) for scatter in SCATTERS),
    Machine(0.02, of_rounds=0.10),
    IN_TURNS,
    replace(IN_TURNS, disturbed=0.15),
)
MAX_TIME = Settings().max_time
ROUND = 2 * (START_UP + short_launch(STEP, START_UP))  # s
SPARE = 1.1  # times the launches that there is time for, as some happen to be short
LABELS = tuple(label for label in COLUMNS if label != "independent")  # here all comparisons are

Tallies = Mapping[str, Mapping[str, Tally]]


@dataclass(frozen=True)
class Task:
    """What one process does at a time: so many comparisons of one condition on one machine.

    Attributes:
        paired: side by side; otherwise beside stored baselines.
        seed: of all tasks; each one's draws depend on it and on what the task is, not on where it runs.
        max_time: seconds that measuring may take.
    """

    machine: Machine
    condition: str
    paired: bool
    comparisons: int
    seed: int
    max_time: float = MAX_TIME

    @property
    def settings(self) -> Settings:
        """Those of the test."""
        return Settings(max_time=self.max_time)


def tasks(comparisons: int, seed: int, max_time: float = MAX_TIME) -> list[Task]:
    """All that there is to do, machine by machine.

    What rounds have in common cancels out side by side, and CPU time is for partners only.
    """
    return [
        Task(machine, condition, paired, comparisons * (MORE if condition == UNCHANGED else 1), seed, max_time)
        for machine in MACHINES
        for condition in EFFECTS
        for paired in (False, True)
        if paired or not (machine.of_rounds or machine.of_cpu is not None or condition in UNDONE)
    ]


def tallied(task: Task) -> dict[str, Tally]:
    """What each rule made of a task's comparisons."""
    import numpy as np

    identity = f"{task.seed} {task.machine!r} {task.condition} {task.paired}"
    draw = np.random.default_rng([*identity.encode()])
    judge = _side_by_side if task.paired else _beside_baselines
    found = [judge(task, draw) for _ in range(task.comparisons)]
    return {rule: tally([one[rule] for one in found], task.comparisons) for rule in found[0]}


def _side_by_side(task: Task, draw: Any) -> dict[str, Outcome]:
    slower = UNDONE.get(task.condition)
    rounds = int(SPARE * task.max_time / ROUND)
    sides = run_of_rounds(task.machine, CONDITIONS[slower or task.condition], rounds, draw)
    sides = Sides(sides.new, sides.base) if slower else sides
    return {PAIRED: against_partner(sides, ENVIRONMENT, task.settings)}


def _beside_baselines(task: Task, draw: Any) -> dict[str, Outcome]:
    """The same two runs for both rules, so that what the error budget of a suite costs is not mixed with luck."""
    settings = task.settings
    sides = separate_runs(task.machine, CONDITIONS[task.condition], int(SPARE * task.max_time / LAUNCH), draw)
    judged = partial(beside, stored(sides.base, ENVIRONMENT, settings), sides.new, ENVIRONMENT, settings)
    return {STORED: judged(), ONE_OF_SUITE: judged(SUITE)}


def simulated(
    comparisons: int, seed: int, processes: int, max_time: float = MAX_TIME
) -> Iterator[tuple[Machine, Tallies]]:
    """The tallies of each machine, by rule and condition, as soon as they are there; the same for any ``processes``."""
    every = tasks(comparisons, seed, max_time)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        done = zip(every, pool.map(tallied, every), strict=True)
        for machine, parts in groupby(done, lambda part: part[0].machine):
            tallies: dict[str, dict[str, Tally]] = {}
            for task, found in parts:
                for rule, one in found.items():
                    tallies.setdefault(rule, {})[task.condition] = one
            yield machine, tallies


def machine_text(machine: Machine, tallies: Tallies) -> str:
    """A machine's table, and its goals."""
    rows = [row for rule in OURS if rule in tallies for row in rule_rows(rule, tallies[rule], EFFECTS, LABELS)]
    table = Table(headers=("rule", *EFFECTS), rows=tuple(rows), title=str(machine))
    return "\n".join((render(table), *goal_lines(tallies)))


def document(
    found: Sequence[tuple[Machine, Tallies]], comparisons: int, seed: int, max_time: float = MAX_TIME
) -> dict[str, Any]:
    """The figures, for a JSON file."""
    return {
        "schema": SCHEMA,
        "comparisons": comparisons,
        "seed": seed,
        "max_time": max_time,
        "machines": [
            {
                **asdict(machine),
                "rules": {
                    rule: {condition: tally_data(one) for condition, one in by_condition.items()}
                    for rule, by_condition in tallies.items()
                },
            }
            for machine, tallies in found
        ],
    }
