"""Launches of every condition, in rounds and in random order, written down as they end."""

from __future__ import annotations

import datetime as dt
import gzip
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.quality.conditions import CONDITIONS, FIRST, LENGTHS, UNCHANGED, Calibration, Condition, injection
from benchmarks.quality.launches import WARMUP, Campaign, Cell, Recorded, append, read, write
from pytest_ddpperf.baselines.fingerprint import differences, environment
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.host import machine_facts
from pytest_ddpperf.launch.environment import thread_count
from pytest_ddpperf.launch.interleaving import Turns, in_turns
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.measurement import Environment, Plan, RankLaunch
from pytest_ddpperf.run.session import PRELOADED
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.summaries import typical
from pytest_ddpperf.training.job import LaunchJob
from pytest_ddpperf.training.loop import run_launch

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
    """What is launched next.

    Attributes:
        paired: whether it takes turns with an unchanged launch.
    """

    cell: Cell
    round: int
    condition: Condition
    paired: bool = False


def gather(file: Path, wanted: Wanted, *, environ: dict[str, str]) -> Campaign:
    """Measures until the time is up, adding to ``file`` if it is there; the campaign without its new launches.

    Raises:
        SettingError: the file is from another machine, or its folder does not exist.
        BrokenFile: it is none of ours.
    """
    if not file.parent.is_dir():
        raise SettingError(f"--data {file}: there is no folder {file.parent}")
    clock = time.monotonic
    preload = (*PRELOADED, "benchmarks.quality.steps")
    with Launcher(preload=preload) as launcher, Launcher(preload=preload) as other:
        here = _environments(launcher, wanted, thread_count(environ))
        old = read(file) if file.exists() else Campaign(_now().isoformat(), here, {})
        require_same_machine(file, old, here)
        missing = [cell for cell in wanted.cells if cell not in old.calibrations]
        calibrations = {**old.calibrations, **{cell: calibrated(launcher, cell) for cell in missing}}
        campaign = replace(old, environments={**old.environments, **here}, calibrations=calibrations)
        write(campaign, file)  # also mends a file that was cut off
        until = clock() + wanted.seconds
        offset = (_now() - dt.datetime.fromisoformat(old.began)).total_seconds() - clock()
        with gzip.open(file, "at", encoding="utf-8") as out:
            for turn in turns(wanted, campaign.launches):
                if clock() >= until:
                    break
                calibration, started = campaign.calibrations[turn.cell], clock() + offset
                launchers = (launcher, other) if turn.paired else (launcher,)
                for one in measured(launchers, calibration, turn, started):
                    append(one, out)
    return campaign


def turns(wanted: Wanted, there: Sequence[Recorded] = ()) -> Iterator[Turn]:
    """Endless: which cell, which of its rounds, and which condition comes next.

    Args:
        wanted: the conditions of a round are in random order, and so are the cells.
        there: launches that the rounds come after.
    """
    draw = random.Random(f"{wanted.seed} {len(there)}")  # noqa: S311  no secret
    last = {cell: max((one.round for one in there if one.cell == cell), default=-1) for cell in wanted.cells}
    fewest = min(cell.ranks for cell in wanted.cells)
    turn = 0
    while True:
        cells = [cell for cell in wanted.cells if cell.ranks == fewest or turn % SELDOM == 0]
        for cell in draw.sample(cells, len(cells)):
            last[cell] += 1
            alone = [Turn(cell, last[cell], one) for one in wanted.conditions for _ in range(one.launches)]
            paired = [Turn(cell, last[cell], one, paired=True) for one in wanted.conditions if one.name != FIRST]
            yield from draw.sample([*alone, *paired], len(alone) + len(paired))
        turn += 1


def measured(
    launchers: Sequence[Launcher], calibration: Calibration, turn: Turn, started: float
) -> tuple[Recorded, ...]:
    """One launch, run as the plugin runs its own, or an unchanged one and one that take turns, in this order.

    Args:
        launchers: one, or two for launches that take turns.
        calibration: of the cell.
        turn: what to launch.
        started: seconds since the campaign began.
    """
    unchanged = replace(turn, condition=CONDITIONS[UNCHANGED])
    both = (unchanged, turn) if turn.paired else (turn,)
    order = random.Random(started).sample(range(len(both)), len(both))  # noqa: S311  no secret
    calls = [partial(_launched, launchers[i], both[i], calibration) for i in order]
    begun = time.monotonic()
    results = in_turns(calls, partial(_abort, launchers)) if turn.paired else [calls[0](None)]
    share = (time.monotonic() - begun) / len(both)  # a pair's seconds are those of both
    found = dict(zip(order, results, strict=True))
    pair = turn.condition.name if turn.paired else None
    return tuple(
        Recorded(
            cell=one.cell,
            round=one.round,
            condition=one.condition.name,
            started=started,
            seconds=share,
            step_times=tuple(map(max, zip(*(rank.step_times for rank in found[i]), strict=True))),
            typical=tuple(typical(rank.step_times) for rank in found[i]),
            resident=tuple(rank.memory.get("peak_resident", 0.0) for rank in found[i]),
            loss=tuple(rank.loss for rank in found[i]),
            cpu=tuple(rank.cpu_time for rank in found[i]),
            pair=pair,
        )
        for i, one in enumerate(both)
    )


def _abort(launchers: Sequence[Launcher]) -> None:
    for one in launchers:
        one.abort()


def _launched(launcher: Launcher, turn: Turn, calibration: Calibration, turns: Turns | None) -> tuple[RankLaunch, ...]:
    from benchmarks.quality.steps import Training

    length = LENGTHS[turn.cell.length]
    subject = Training(length, injection(turn.condition, calibration), turn.condition.rank)
    job = LaunchJob(subject, None, Settings(), Plan(WARMUP, length.steps), diagnosed=False, turns=turns)
    return launcher.run(run_launch, job, world_size=turn.cell.ranks, backend="gloo", device="cpu", timeout=300).values


def calibrated(launcher: Launcher, cell: Cell) -> Calibration:
    """What a cell's injections are made from: medians over launches of the slowest rank's figures."""
    from benchmarks.quality.steps import ELEMENTS, Costs, calibrate

    def slowest(figure: Callable[[Costs], float]) -> float:
        return statistics.median(max(map(figure, ranks)) for ranks in launches)

    launches = [
        launcher.run(
            calibrate, LENGTHS[cell.length], world_size=cell.ranks, backend="gloo", device="cpu", timeout=300
        ).values
        for _ in range(CALIBRATING_LAUNCHES)
    ]
    by_size = zip(
        *([max(sent) for sent in zip(*(r.reduces for r in ranks), strict=True)] for ranks in launches), strict=True
    )
    reduces = dict(zip(ELEMENTS, map(statistics.median, by_size), strict=True))
    return Calibration(slowest(lambda costs: costs.step), slowest(lambda costs: costs.product), reduces)


def _environments(launcher: Launcher, wanted: Wanted, threads: int) -> dict[int, Environment]:
    torch = launcher.machine()
    return {
        ranks: environment(
            machine_facts(), device="cpu", backend="gloo", world_size=ranks, threads=threads, torch_version=torch.torch
        )
        for ranks in sorted({cell.ranks for cell in wanted.cells})
    }


def require_same_machine(file: Path, old: Campaign, here: Mapping[int, Environment]) -> None:
    """Refuse to add to launches that these could not be compared with.

    Raises:
        SettingError: a keyed fact of the environment differs.
    """
    for ranks, env in here.items():
        there = old.environments.get(ranks)
        differs = () if there is None else differences(there, env)
        if differs:
            raise SettingError(f"{file} is from another machine ({', '.join(differs)}): give --data another file")


def _now() -> dt.datetime:
    return dt.datetime.now(tz=dt.timezone.utc)
