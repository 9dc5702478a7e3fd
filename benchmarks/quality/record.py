"""Records launches of every condition, in rounds and in random order, and writes them down as they end."""

from __future__ import annotations

import datetime as dt
import gzip
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.quality.campaign import Campaign, Cell, Recorded, append, read, write
from benchmarks.quality.steps import (
    CONDITIONS,
    ELEMENTS,
    FIRST,
    LENGTHS,
    UNCHANGED,
    Calibration,
    Condition,
    Training,
    calibrate,
    injection,
)
from benchmarks.quality.verdicts import Environment, launcher, timed_launch
from pytest_ddpperf.baselines.fingerprint import differences, environment
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.host import machine_facts
from pytest_ddpperf.launch.context import Placement
from pytest_ddpperf.launch.environment import thread_count
from pytest_ddpperf.launch.interleaving import run_interleaved
from pytest_ddpperf.launch.launcher import Launcher

CALIBRATING_LAUNCHES = 5
SELDOM = 4  # a group that shares cores gets a turn in one round of so many


@dataclass(frozen=True)
class Wanted:
    """What a campaign is to measure, and for how many seconds, calibration apart."""

    cells: tuple[Cell, ...]
    conditions: tuple[Condition, ...]
    seconds: float
    seed: int = 0


@dataclass(frozen=True)
class Turn:
    """What is launched next: one launch, or an unchanged one and one that take turns."""

    cell: Cell
    round: int
    condition: Condition
    paired: bool = False


def gather(file: Path, wanted: Wanted) -> None:
    """Measures until the time is up, adding to ``file`` if it is there."""
    if not file.parent.is_dir():
        raise SettingError(f"--data {file}: there is no folder {file.parent}")
    clock = time.monotonic
    with launcher() as first, launcher() as second:
        here = {ranks: environment_here(first, ranks) for ranks in sorted({cell.ranks for cell in wanted.cells})}
        old = read(file) if file.exists() else Campaign(_now().isoformat(), here, {})
        require_same_machine(file, old, here)
        missing = [cell for cell in wanted.cells if cell not in old.calibrations]
        calibrations = {**old.calibrations, **{cell: calibrated(first, cell) for cell in missing}}
        write(replace(old, environments={**old.environments, **here}, calibrations=calibrations), file)
        until = clock() + wanted.seconds
        offset = (_now() - dt.datetime.fromisoformat(old.began)).total_seconds() - clock()
        with gzip.open(file, "at", encoding="utf-8") as out:
            for turn in turns(wanted, old.launches):
                if clock() >= until:
                    break
                for launch in measured((first, second), calibrations[turn.cell], turn, clock() + offset):
                    append(launch, out)


def turns(wanted: Wanted, there: Sequence[Recorded] = ()) -> Iterator[Turn]:
    """Endless, after the rounds that are there: cells, and in each the conditions of a round, in random order."""
    draw = random.Random(f"{wanted.seed} {len(there)}")  # noqa: S311  no secret
    rounds = {cell: max((launch.round for launch in there if launch.cell == cell), default=-1) for cell in wanted.cells}
    fewest = min(cell.ranks for cell in wanted.cells)
    turn = 0
    while True:
        cells = [cell for cell in wanted.cells if cell.ranks == fewest or turn % SELDOM == 0]
        for cell in draw.sample(cells, len(cells)):
            rounds[cell] += 1
            next_turn = partial(Turn, cell, rounds[cell])
            alone = [next_turn(condition) for condition in wanted.conditions for _ in range(condition.launches)]
            paired = [next_turn(condition, paired=True) for condition in wanted.conditions if condition.name != FIRST]
            yield from draw.sample([*alone, *paired], len(alone) + len(paired))
        turn += 1


def measured(
    launchers: Sequence[Launcher], calibration: Calibration, turn: Turn, started: float, **options: Any
) -> tuple[Recorded, ...]:
    """The launches of a turn, the unchanged one of a pair first; ``options``: of ``timed_launch``."""
    length = LENGTHS[turn.cell.length]
    conditions = (CONDITIONS[UNCHANGED], turn.condition) if turn.paired else (turn.condition,)
    calls = [
        partial(
            timed_launch,
            launcher=started_by,
            subject=Training(length, injection(condition, calibration), condition.rank),
            steps=length.steps,
            ranks=turn.cell.ranks,
            **options,
        )
        for started_by, condition in zip(launchers, conditions, strict=False)
    ]
    order = random.Random(started).sample(range(len(calls)), len(calls))  # noqa: S311  no secret
    begun = time.monotonic()
    results = (
        run_interleaved([calls[side] for side in order], partial(abort, launchers)) if turn.paired else [calls[0](None)]
    )
    share = (time.monotonic() - begun) / len(calls)  # a pair's seconds are those of both
    sides = dict(zip(order, results, strict=True))
    return tuple(
        Recorded(
            turn.cell,
            turn.round,
            condition.name,
            started,
            share,
            step_times=tuple(map(max, zip(*(rank.step_times for rank in sides[side]), strict=True))),
            resident=tuple(rank.memory.get("peak_resident", 0.0) for rank in sides[side]),
            loss=tuple(rank.loss for rank in sides[side]),
            cpu=tuple(rank.cpu_time for rank in sides[side]),
            pair=turn.condition.name if turn.paired else None,
        )
        for side, condition in enumerate(conditions)
    )


def abort(launchers: Sequence[Launcher]) -> None:
    """Ends what these are running."""
    for started in launchers:
        started.abort()


def calibrated(launcher: Launcher, cell: Cell) -> Calibration:
    """What a cell's injections are made from: medians over launches of the slowest rank's figures."""
    launches = [
        launcher.run(
            calibrate, LENGTHS[cell.length], world_size=cell.ranks, backend="gloo", device="cpu", timeout=300
        ).values
        for _ in range(CALIBRATING_LAUNCHES)
    ]

    def slowest(figure: Callable[[Calibration], float]) -> float:
        return statistics.median(max(map(figure, ranks)) for ranks in launches)

    reduces = {elements: slowest(lambda rank, sent=elements: rank.reduces[sent]) for elements in ELEMENTS}  # type: ignore[misc]
    return Calibration(slowest(lambda rank: rank.step), slowest(lambda rank: rank.product), reduces)


def environment_here(launcher: Launcher, ranks: int) -> Environment:
    """This machine with groups of so many ranks."""
    return environment(
        machine_facts(),
        launcher.machine(gpus=False),
        Placement("cpu", "gloo"),
        ranks,
        threads=thread_count(dict(os.environ)),
    )


def require_same_machine(file: Path, old: Campaign, here: Mapping[int, Environment]) -> None:
    """Refuse to add to launches that these could not be compared with."""
    for ranks, env in here.items():
        differs = differences(old.environments.get(ranks, env), env)
        if differs:
            raise SettingError(f"{file} is from another machine ({', '.join(differs)}): give --data another file")


def _now() -> dt.datetime:
    return dt.datetime.now(tz=dt.timezone.utc)
