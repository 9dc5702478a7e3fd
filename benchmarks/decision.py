"""How often paired verdicts are right on launches whose noise is known, by simulation.

    python benchmarks/decision.py
    python benchmarks/decision.py --rows 60 --comparisons 1000

Simulated launches of both sides go through the very code that plans, judges and stops real ones: alone, and in suites
that share the budget of a session. They follow laws that the rules do not know (``quality/laws.py``). "Recorded" ones
are stretches of pairs that were recorded on a busy machine of two cores, as noisy as they were unless a row says what
pairs scatter by; of that 5 to 40 % of the variance is replaced by what launches add of their own, by skewed laws.
"Moody" ones are made up: heavy tails, load that lasts, pauses of the machine at regular or random times. "Mixed": each
benchmark is of one or the other. Pauses of the code are in each 5th, 10th or 20th step and take 5, 20 or 100 typical
steps; small ones add 10 to 40 % to the mean and are in each 5th to 30th step. Each comparison is of a benchmark of its
own, so the 95 % intervals (Clopper-Pearson) rest on all of them; benchmarks of a suite share its budget.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))  # for benchmarks.quality; the processes of a pool get it as well

from benchmarks.quality.laws import Draw, Law, Machine, Moody, Slower, replayed, scattering
from benchmarks.quality.rows import SUITE, UNCHANGED, Found, Goal, Made, Row, alarms, covers, found, green, proven
from benchmarks.quality.verdicts import PAIRED_MARGIN
from pytest_ddpperf.parsers import argument, positive_int
from pytest_ddpperf.reports.table import Table, render
from pytest_ddpperf.settings import Settings

RESOLUTION = Settings().must_detect
MORE = 5  # times as many comparisons of what is unchanged: false alarms are rare
PART = 25  # comparisons that a process makes at a time
PAUSES, EACH = (5.0, 20.0, 100.0), (5, 10, 20)  # typical steps, in one step of so many
SMALL, SELDOM = (0.1, 0.4), (5, 30)  # of the mean, in one step of so many: anything between
WORSE = 0.1  # what pauses add to the mean of the timed steps at least


def mixed(draw: Draw) -> Machine:
    """A recorded benchmark or a made-up one."""
    return replayed(draw) if draw.random() < 0.5 else Moody(draw)


def pausing(draw: Draw) -> Slower:
    """Code that pauses."""
    return Slower(pause=float(draw.choice(PAUSES)), every=int(draw.choice(EACH)))


def pausing_little(draw: Draw) -> Slower:
    """Code that pauses for less, and more seldom."""
    every = int(draw.integers(SELDOM[0], SELDOM[1] + 1))
    return Slower(pause=draw.uniform(*SMALL) * every, every=every)


COVERED = Goal("interval covers", 0.93, covers)
OF_MARGIN = Goal("unchanged", 0.07, proven, at_least=False)
OF_RESOLUTION = Goal("ok or unchanged", 0.07, green, at_least=False)
NEVER_GREEN = Goal("ok or unchanged", 0.0, green, at_least=False)
NARROW = Goal("a bound of 5 %", 0.5, lambda outcome, _: outcome.bound is not None and outcome.bound <= 0.05)
"""The median bound is no more than that."""


def _slower(setting: str, law: Law, share: float, *goals: Goal, **more: object) -> Row:
    return Row(setting, law, f"{share:+.1%}" if share else UNCHANGED, lambda _: Slower(share), goals, **more)  # type: ignore[arg-type]


def rows() -> list[Row]:
    """All rows of the table."""
    six, two, no_cpu = scattering(0.06), scattering(0.02), "60 s, pairs by 6%, no CPU times"
    return [
        *_of_suites(),
        *(row for name, law in LAWS.items() for row in _of_law(name, law)),
        *(_slower("20 s, recorded", replayed, share, max_time=20.0) for share in (0.03, 0.05, 0.10)),
        _slower("20 s, recorded", replayed, 0.50, found(1.0), max_time=20.0),
        Row("60 s, recorded, no CPU times", replayed, UNCHANGED, goals=(alarms(0.005),), cpu=False),
        Row("60 s, recorded", replayed, "its MDE", goals=(found(0.95),), at_mde=True),
        _slower("60 s, pairs by 6%", six, 0.0, alarms(0.005)),
        _slower("60 s, pairs by 6%", six, PAIRED_MARGIN, OF_MARGIN),
        _slower("60 s, pairs by 6%", six, 0.03, found(0.60), COVERED),
        _slower("60 s, pairs by 6%", six, 0.05, found(0.95)),
        Row("60 s, pairs by 6%", six, "its MDE", goals=(found(0.95),), at_mde=True),
        _slower(no_cpu, six, PAIRED_MARGIN, OF_MARGIN, cpu=False),
        _slower(no_cpu, six, 0.05, cpu=False),
        _slower("60 s, pairs by 2%", two, PAIRED_MARGIN, OF_MARGIN),
        _slower("60 s, pairs by 2%", two, 0.03, found(0.95), COVERED),
    ]


LAWS: Mapping[str, Law] = {"recorded": replayed, "moody": Moody}


def _of_suites() -> list[Row]:
    """Rows of suites that share a budget."""
    shared = f"budget of {SUITE} x 20 s"
    return [
        _slower(f"{shared}, mixed", mixed, 0.0, alarms(0.001), budget=20.0),
        _slower(f"{shared}, recorded", replayed, 0.0, alarms(0.001), Goal("green", 0.9, green), NARROW, budget=20.0),
        _slower(f"{shared}, recorded", replayed, 0.10, found(0.95), budget=20.0),
        _slower(f"{shared}, recorded", replayed, 0.50, found(1.0), budget=20.0),
    ]


def _of_law(name: str, law: Law) -> list[Row]:
    """Rows of a law: what is no worse, and what must not pass."""
    one_of_many, minute = f"20 s, one of {SUITE}, {name}", f"60 s, {name}"
    return [
        _slower(one_of_many, law, 0.0, alarms(0.001), max_time=20.0, tests=SUITE),
        _slower(f"20 s, {name}", law, 0.0, alarms(0.005), max_time=20.0),
        _slower(minute, law, 0.0, alarms(0.005)),
        _slower(minute, law, PAIRED_MARGIN, OF_MARGIN),
        _slower(minute, law, 0.03, COVERED),
        _slower(minute, law, 0.05),
        _slower(minute, law, RESOLUTION, OF_RESOLUTION),
        Row(f"20 s, both sides pause, {name}", law, UNCHANGED, pausing, (alarms(0.005),), 20.0, both=True),
        Row(f"60 s, both sides pause, {name}", law, UNCHANGED, pausing, (alarms(0.005),), both=True),
        Row(minute, law, "pauses", pausing, (found(0.95), NEVER_GREEN), least=WORSE),
        Row(minute, law, "small pauses", pausing_little, (found(0.95), NEVER_GREEN), least=WORSE),
    ]


def outcomes(seed: int, row: int, part: int, comparisons: int) -> list[Made]:
    """The outcomes of a part of a row's comparisons, which one process makes; its draws depend on no other."""
    draw = np.random.default_rng([seed, row, part])
    return list(itertools.islice(rows()[row].outcomes(draw), comparisons))


def simulated(chosen: Sequence[int], comparisons: int, seed: int, processes: int) -> Iterator[Found]:
    """What each row came to, as soon as it is there; the same for any number of ``processes``."""
    every = rows()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for number in chosen:
            row = every[number]
            wanted = max(1, comparisons * (MORE if row.slower == UNCHANGED else 1) // row.cost)
            size = SUITE if row.budget and row.slower == UNCHANGED else PART // min(row.cost, PART)
            parts = [min(wanted - start, size) for start in range(0, wanted, size)]
            every_part = pool.map(partial(outcomes, seed, number), range(len(parts)), parts)
            yield Found(row, tuple(outcome for made in every_part for outcome in made))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cores = len(os.sched_getaffinity(0))
    number = argument(positive_int)
    parser.add_argument("--comparisons", type=number, default=1000, help="for each rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing (default: %(default)s)")
    parser.add_argument("--rows", default="", help="only rows whose setting and slowdown have this text (default: all)")
    parser.add_argument("--processes", type=number, default=cores, help="at a time (default: the usable cores)")
    options = parser.parse_args()
    chosen = [number for number, row in enumerate(rows()) if options.rows in f"{row.setting}, {row.slower}"]
    print(
        f"{options.comparisons} comparisons for each rate, {MORE} times as many of what is unchanged, one in {SUITE} "
        "of a suite with a budget of which one is slower; bound, launches of a side and seconds are medians",
        flush=True,
    )
    headers = ("setting", "slower by", "n", "red", "unchanged", "ok", "at most", "bound holds", "interval covers")
    every = []
    for one in simulated(chosen, options.comparisons, options.seed, options.processes):
        every.append(one)
        print(*one.cells, sep=" | ", file=sys.stderr, flush=True)
    print(render(Table(headers=(*headers, "launches", "s"), rows=tuple(one.cells for one in every))))
    for one in every:
        for goal in one.row.goals:
            print(one.goal_text(goal))


if __name__ == "__main__":
    main()
