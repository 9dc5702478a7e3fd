"""How often verdicts are right on launches whose noise is known, by simulation.

    python benchmarks/decision.py
    python benchmarks/decision.py --rows 60 --comparisons 1000

Made-up launches go through the very code that judges real ones: side by side, in suites that share the budget of a
session, and beside stored baselines. Of these, what rows named "settled" leave open is measured side by side with the
baseline's commit, as in a run in a repository; of the others nothing is. The machine is a virtual one, of which the
rules assume that runs differ by 5 %. Launches and runs deviate by figures that the rules do not know. Of each benchmark
these are drawn anew: the part of the scatter that launches add of their own (5 to 40 % of its variance), the power to
which its times follow the control step (skewed: half of them by 0.90 to 1.05, one in twenty by less than 0.70), and
what its runs deviate by besides (0.18 of what the machine does in the middle, 0.08 to 0.4 in 90 % of benchmarks). Each
comparison has launches of its own, so the 95 % intervals (Clopper-Pearson) rest on all of them; benchmarks of a suite
share its budget. A launch takes 0.27 s besides its steps of 12.5 ms, so a round of both sides takes 1.6 s.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeAlias

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; the processes of a pool get it as well

from benchmarks.quality.campaign import Sides
from benchmarks.quality.simulate import ENVIRONMENT, LAUNCH, START_UP, STEP, Machine, of_pairs, run_alone, run_of_rounds
from benchmarks.quality.steps import CONDITIONS, UNCHANGED, Condition
from benchmarks.quality.verdicts import (
    BaselineRecord,
    Noise,
    Outcome,
    Verdict,
    against_partner,
    beside,
    in_suite,
    noise_by,
    of_runs,
    short_launch,
    stored,
)
from pytest_ddpperf.reports.table import Table, render
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.rates import clopper_pearson

MARGIN = 0.025  # the equivalence margin, side by side
MORE = 4  # times as many comparisons of what is unchanged: false alarms are rare
ROUND = 2 * (START_UP + short_launch(STEP, START_UP))  # s
SPARE = 1.2  # times the launches that there is time for
OWN = (0.05, 0.4)  # of the variance of pairs: what launches add of their own
POWERS, LAG = (1.08, 0.06), 0.12  # to which times follow the control step: normal, less what an exponential law draws
BEYOND, BEYOND_SPREAD = 0.18, 0.5  # of what the machine deviates by: what times deviate by besides, lognormal
SUITE = 26
RUNS = 5  # of a baseline
PAIRS = 0.06  # what pairs scatter by where a comparison is settled side by side
SHARED = replace(ENVIRONMENT, recorded={"machine": "virtual"})

Draw: TypeAlias = np.random.Generator
Simulated: TypeAlias = "Callable[[float, Draw], Outcome]"
"""An outcome for what is slower by a fraction."""


@dataclass(frozen=True)
class Goal:
    """What a share of the outcomes is to be."""

    what: str
    share: float
    of: Callable[[Outcome, float], bool]  # whether an outcome counts, for what is slower by a fraction
    at_least: bool = True


def red(outcome: Outcome, _slower: float) -> bool:
    return outcome.verdict is Verdict.REGRESSED


def proven(outcome: Outcome, _slower: float) -> bool:
    return outcome.verdict is Verdict.UNCHANGED


def green(outcome: Outcome, _slower: float) -> bool:
    return outcome.verdict in {Verdict.UNCHANGED, Verdict.OK, Verdict.IMPROVED}


def covers(outcome: Outcome, slower: float) -> bool:
    """Whether the printed interval has the truth in it."""
    return outcome.interval is not None and outcome.interval.low <= slower <= outcome.interval.high


def bounds(outcome: Outcome, slower: float) -> bool:
    return outcome.bound is not None and slower <= outcome.bound


def alarms(share: float) -> tuple[Goal, ...]:
    return (Goal("red", share, red, at_least=False),)


def found(share: float) -> Goal:
    return Goal("red", share, red)


NARROW = Goal("a bound of 5 %", 0.5, lambda outcome, _: outcome.bound is not None and outcome.bound <= 0.05)
"""The median bound is no more than that."""


def side_by_side(scatter: float, max_time: float, *, cpu: bool = True) -> Simulated:
    """Outcomes beside another revision, where interleaved launches scatter by so much."""

    def simulated(slower: float, draw: Draw) -> Outcome:
        machine = of_pairs(scatter, draw.uniform(*OWN), cpu=cpu)
        rounds = int(SPARE * max_time / ROUND) + 2
        sides = run_of_rounds(machine, _slower_by(slower), rounds, draw)
        return against_partner(sides, ENVIRONMENT, Settings(max_time=max_time))

    return simulated


def in_budget(scatter: float, seconds: float) -> Simulated:
    """Outcomes in a suite whose session has a budget of so many seconds for each benchmark.

    If it is to be slower, one benchmark of the suite is, in a random place, and the outcome is that one's.
    """
    unchanged: list[Outcome] = []

    def suite_of(slower: float, place: int | None, draw: Draw) -> list[Outcome]:
        sides = []
        for number in range(SUITE):
            machine = of_pairs(scatter, draw.uniform(*OWN))
            by = slower if number == place else 0.0
            sides.append(run_of_rounds(machine, _slower_by(by), int(SPARE * Settings().max_time / ROUND) + 2, draw))
        return in_suite(sides, ENVIRONMENT, Settings(), seconds * SUITE, place)

    def simulated(slower: float, draw: Draw) -> Outcome:
        if slower:
            return suite_of(slower, int(draw.integers(SUITE)), draw)[-1]
        if not unchanged:
            unchanged.extend(suite_of(0.0, None, draw))
        return unchanged.pop()

    return simulated


def at_its_mde(scatter: float, max_time: float) -> Simulated:
    """Outcomes of what is slower by the MDE that an unchanged run of the same benchmark has printed."""

    def simulated(_slower: float, draw: Draw) -> Outcome:
        machine = of_pairs(scatter, draw.uniform(*OWN))
        rounds, settings = int(SPARE * max_time / ROUND) + 2, Settings(max_time=max_time)
        mde = None
        while mde is None or not math.isfinite(mde):
            unchanged = run_of_rounds(machine, _slower_by(0.0), rounds, draw)
            mde = against_partner(unchanged, ENVIRONMENT, settings).mde
        return against_partner(run_of_rounds(machine, _slower_by(mde), rounds, draw), ENVIRONMENT, settings)

    return simulated


def beside_baseline(
    of_machine: float, *, control: bool = False, runs: int = 1, suite: int = 1, settled: float | None = None
) -> Simulated:
    """Outcomes beside a stored baseline on a virtual machine that deviates by so much from run to run.

    ``suite``: the number of benchmarks whose baselines of several runs tell by how much. All but the first one of them
    are drawn once for many comparisons. What is left open is settled side by side, where pairs scatter by ``settled``.
    """
    others: list[BaselineRecord] = []

    def simulated(slower: float, draw: Draw) -> Outcome:
        settings = Settings()
        if not others:
            machines = [_benchmark(of_machine, draw, control=control) for _ in range(suite - 1)]
            others.extend(_baseline(machine, runs, settings, draw) for machine in machines)
        machine = _benchmark(of_machine, draw, control=control)
        record = _baseline(machine, runs, settings, draw)
        noise: Noise | None = noise_by([record, *others]) if runs > 1 else None
        new = run_alone(machine, _slower_by(slower), _launches(settings), draw)

        of_rounds = None if settled is None else of_pairs(settled, draw.uniform(*OWN))
        rounds = int(SPARE * settings.max_time / ROUND) + 2
        pairs = None if of_rounds is None else run_of_rounds(of_rounds, _slower_by(slower), rounds, draw)
        return beside(record, Sides(new, new), settings, noise=noise, pairs=pairs)

    return simulated


def _benchmark(of_machine: float, draw: Draw, *, control: bool) -> Machine:
    power = draw.normal(*POWERS) - draw.exponential(LAG) if control else None
    return Machine(
        0.02, of_runs=of_machine, beyond=draw.lognormal(math.log(BEYOND), BEYOND_SPREAD) * of_machine, power=power
    )


def _baseline(machine: Machine, runs: int, settings: Settings, draw: Draw) -> BaselineRecord:
    launches = [run_alone(machine, CONDITIONS[UNCHANGED], _launches(settings), draw) for _ in range(runs)]
    return of_runs([stored(Sides(run, run), SHARED, settings) for run in launches])


def _launches(settings: Settings) -> int:
    return int(SPARE * settings.max_time / LAUNCH)


def _slower_by(share: float) -> Condition:
    return Condition("slower", work=share) if share else CONDITIONS[UNCHANGED]


@dataclass(frozen=True)
class Row:
    """One rate: a setting, what is slower by how much, and its goals."""

    setting: str
    simulated: Simulated
    slower: float
    goals: tuple[Goal, ...] = ()
    cost: int = 1  # one comparison is made for so many

    @property
    def condition(self) -> str:
        """By how much it is slower, in words."""
        return f"{self.slower:+.1%}" if self.slower else UNCHANGED


def rows() -> list[Row]:
    """All rows of the table."""
    sixty, quiet = side_by_side(0.06, 60.0), side_by_side(0.02, 60.0)
    of_gpu, short, twenty = side_by_side(0.06, 60.0, cpu=False), side_by_side(0.08, 24.0), in_budget(0.08, 20.0)
    margin = Goal("unchanged", 0.07, proven, at_least=False)
    made = [
        Row("60 s, pairs by 6%", sixty, 0.0, alarms(0.005)),
        Row("60 s, pairs by 6%", sixty, MARGIN, (margin,)),
        Row("60 s, pairs by 6%", sixty, 0.03, (found(0.60), Goal("covered", 0.93, covers))),
        Row("60 s, pairs by 6%", sixty, 0.05, (found(0.95),)),
        Row("60 s, pairs by 6%, at the MDE", at_its_mde(0.06, 60.0), 0.0, (found(0.95),), cost=MORE),
        Row("60 s, pairs by 6%, no CPU times", of_gpu, 0.0, alarms(0.005)),
        Row("60 s, pairs by 6%, no CPU times", of_gpu, MARGIN, (margin,)),
        Row("60 s, pairs by 6%, no CPU times", of_gpu, 0.03, (Goal("covered", 0.93, covers),)),
        Row("60 s, pairs by 6%, no CPU times", of_gpu, 0.05),
        Row("60 s, pairs by 2%", quiet, 0.0, alarms(0.005)),
        Row("60 s, pairs by 2%", quiet, MARGIN, (margin,)),
        Row("60 s, pairs by 2%", quiet, 0.03, (found(0.95), Goal("covered", 0.93, covers))),
        Row("24 s, pairs by 8%", short, 0.0, alarms(0.005)),
        Row("24 s, pairs by 8%", short, 0.08),
        Row(f"budget of {SUITE} x 20 s, pairs by 8%", twenty, 0.0, (*alarms(0.001), Goal("green", 0.9, green), NARROW)),
        Row(f"budget of {SUITE} x 20 s, pairs by 8%", twenty, 0.10, (found(0.95),)),
        Row(f"budget of {SUITE} x 20 s, pairs by 8%", twenty, 0.50, (found(1.0),)),
    ]
    for spread in (0.01, 0.02, 0.03, 0.05):
        plain, one = beside_baseline(spread), beside_baseline(spread, control=True)
        several = beside_baseline(spread, control=True, runs=RUNS, suite=SUITE)
        made += [
            Row(f"stored, runs by {spread:.0%}", plain, 0.0, alarms(0.005)),
            Row(f"stored, runs by {spread:.0%}, control", one, 0.0, alarms(0.005)),
            Row(f"stored, runs by {spread:.0%}, control", one, 0.10),
            Row(f"stored, runs by {spread:.0%}, control, {RUNS} runs", several, 0.0, alarms(0.005), cost=MORE),
            Row(f"stored, runs by {spread:.0%}, control, {RUNS} runs", several, 0.05, (found(0.90),), cost=MORE),
            Row(f"stored, runs by {spread:.0%}, control, {RUNS} runs", several, 0.10, (found(0.99),), cost=MORE),
        ]
    for spread in (0.03, 0.05):
        one = beside_baseline(spread, control=True, settled=PAIRS)
        several = beside_baseline(spread, control=True, runs=RUNS, suite=SUITE, settled=PAIRS)
        made += [
            Row(f"settled, runs by {spread:.0%}, control", one, 0.0, alarms(0.005)),
            Row(f"settled, runs by {spread:.0%}, control", one, 0.05),
            Row(f"settled, runs by {spread:.0%}, control", one, 0.10, (found(0.99),)),
            Row(f"settled, runs by {spread:.0%}, control, {RUNS} runs", several, 0.0, alarms(0.005)),
            Row(f"settled, runs by {spread:.0%}, control, {RUNS} runs", several, 0.05, (found(0.90),)),
            Row(f"settled, runs by {spread:.0%}, control, {RUNS} runs", several, 0.10, (found(0.99),)),
        ]
    return made


@dataclass(frozen=True)
class Task:
    """What one process does at a time: comparisons of a row, whose draws depend on no other."""

    row: int
    part: int
    comparisons: int
    seed: int


def outcomes(task: Task) -> list[Outcome]:
    """The outcomes of a task's comparisons."""
    row = rows()[task.row]
    draw = np.random.default_rng([task.seed, task.row, task.part])
    return [row.simulated(row.slower, draw) for _ in range(task.comparisons)]


def simulated(
    chosen: Sequence[int], comparisons: int, seed: int, processes: int
) -> Iterator[tuple[Row, tuple[Outcome, ...]]]:
    """The outcomes of each row, as soon as they are there; the same for any number of ``processes``."""
    every = rows()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for number in chosen:
            row = every[number]
            wanted = max(1, comparisons * (MORE if row.condition == UNCHANGED else 1) // row.cost)
            parts = [min(wanted - start, 25) for start in range(0, wanted, 25)]
            tasks = [Task(number, part, size, seed) for part, size in enumerate(parts)]
            yield row, tuple(outcome for made in pool.map(outcomes, tasks) for outcome in made)


def cells(row: Row, made: Sequence[Outcome]) -> tuple[str, ...]:
    """A row of the table."""

    def share(of: Callable[[Outcome, float], bool]) -> str:
        return f"{statistics.fmean(of(outcome, row.slower) for outcome in made):.1%}"

    bound = statistics.median(math.inf if outcome.bound is None else outcome.bound for outcome in made)
    return (
        row.setting,
        row.condition,
        str(len(made)),
        share(red),
        share(proven),
        share(lambda outcome, _: outcome.verdict is Verdict.OK),
        share(lambda outcome, _: outcome.settled),
        f"{bound:+.1%}",
        share(bounds) if "MDE" not in row.setting else "-",
        share(covers) if "MDE" not in row.setting else "-",
        f"{statistics.median(outcome.seconds for outcome in made):.0f}",
    )


def goal_text(row: Row, goal: Goal, made: Sequence[Outcome]) -> str:
    """Whether a goal is reached, and whether for certain."""
    hits = sum(goal.of(outcome, row.slower) for outcome in made)
    interval = clopper_pearson(hits, len(made))
    rate, sign = hits / len(made), "at least" if goal.at_least else "at most"
    reached = rate >= goal.share if goal.at_least else rate <= goal.share
    certain = interval.low >= goal.share if goal.at_least else interval.high <= goal.share
    word = "missed" if not reached else "reached" if certain else "reached, though not for certain"
    return (
        f"goal, {row.setting}, {row.condition}: {goal.what} {sign} {goal.share:.1%}: "
        f"{rate:.1%} [{interval.low:.1%} .. {interval.high:.1%}], {word}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--comparisons", type=_positive, default=400, help="for each rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing (default: %(default)s)")
    parser.add_argument("--rows", default="", help="only rows whose setting and slowdown have this text (default: all)")
    parser.add_argument("--processes", type=_positive, default=cores, help="at a time (default: the usable cores)")
    options = parser.parse_args()
    chosen = [number for number, row in enumerate(rows()) if options.rows in f"{row.setting}, {row.condition}"]
    print(
        f"{options.comparisons} comparisons for each rate, {MORE} times as many of what is unchanged, but for "
        f"baselines of {RUNS} runs of {SUITE} benchmarks that nothing settles a quarter of that; bound and seconds "
        "are medians",
        flush=True,
    )
    headers = (
        "setting",
        "slower by",
        "n",
        "red",
        "unchanged",
        "ok",
        "settled",
        "at most",
        "bound holds",
        "interval covers",
        "s",
    )
    made = []
    for row, found_here in simulated(chosen, options.comparisons, options.seed, options.processes):
        made.append((row, found_here))
        print(*cells(row, found_here), sep=" | ", file=sys.stderr, flush=True)
    print(render(Table(headers=headers, rows=tuple(cells(row, one) for row, one in made))))
    for row, one in made:
        for goal in row.goals:
            print(goal_text(row, goal, one))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: takes one or more")
    return number


if __name__ == "__main__":
    main()
