"""Makes real runs of pytest, one after the other, and keeps what each came to."""

from __future__ import annotations

import datetime as dt
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.quality.project import RunError, busy, pytest_results
from benchmarks.quality.steps import LENGTHS, Calibration, calibrated
from benchmarks.quality.verdicts import launcher
from benchmarks.verdicts.cells import CELLS, SUITES, Cell, Suite
from benchmarks.verdicts.machine import others_now
from benchmarks.verdicts.outcomes import (
    QUIET,
    Kept,
    Outcome,
    Ran,
    SuiteOutcome,
    append,
    append_calibration,
    others_of,
    read,
    told,
    why_left_out,
)
from benchmarks.verdicts.programs import AFTER, BASELINES, BEFORE, TESTS, Program, check_out, make_project
from benchmarks.verdicts.suites import planted_by, suite_run
from pytest_ddpperf.against.git import git
from pytest_ddpperf.baselines.fingerprint import environment, environment_key
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.host import machine_facts
from pytest_ddpperf.launch.context import Placement
from pytest_ddpperf.launch.environment import thread_count

PACKAGE = "pytest_ddpperf"
RANKS = 2
LOAD = 2  # busy processes
PATIENCE = 30.0  # s, after which it is looked again


class NotQuietError(RuntimeError):
    """Others use the machine, and so much of it that runs of cells have to wait."""

    def __init__(self, used: float, waiting: Sequence[str]) -> None:
        super().__init__(f"not quiet: others use {used:.0%} of the cores; waiting: {', '.join(waiting)}")
        self.waiting = tuple(waiting)


@dataclass(frozen=True)
class Bench:
    """Where runs are made and kept."""

    file: Path
    package: Path  # the folder that holds the package
    tree: str
    machine: str
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic


def tree_of(package: Path) -> str:
    """The package as git names it; SettingError if it has changes, since runs of other rules must be told apart."""
    if git(package, "status", "--porcelain", "--", PACKAGE):
        raise SettingError(f"{package / PACKAGE} has changes: commit them, or give --package the folder of a checkout")
    return git(package, "rev-parse", "--short", f"HEAD:{PACKAGE}")


def machine_here() -> str:
    """The key of this machine's environment with two ranks."""
    with launcher() as ranks:
        threads = thread_count(dict(os.environ))
        here = environment(machine_facts(), ranks.machine(gpus=False), Placement("cpu", "gloo"), RANKS, threads=threads)
        return environment_key(here)


def made(bench: Bench, cells: Sequence[Cell], until: float, number: int | None = None) -> Iterator[Ran]:
    """Runs of these cells, in turn the one that lacks most, until the time is up or each has what is wanted.

    ``number``: so many runs that count of each in place of those, whatever there is. If others use the machine, runs
    that take a quiet one wait while there are others.
    """
    left = {cell.name: cell.wanted if number is None else number for cell in cells}
    if number is None:
        for outcome in read(bench.file).outcomes:
            if outcome.tree == bench.tree and outcome.counts and outcome.cell in left:
                left[outcome.cell] -= 1
    waiting: tuple[str, ...] = ()
    while bench.clock() < until and any(lacking > 0 for lacking in left.values()):
        lacking = sorted(
            (cell for cell in cells if left[cell.name] > 0), key=lambda cell: -left[cell.name] / cell.wanted
        )
        try:
            cell = _possible(bench, lacking)
        except NotQuietError as error:
            if error.waiting != waiting:
                bench.say(str(error))
            waiting = error.waiting
            time.sleep(max(0.0, min(PATIENCE, until - bench.clock())))
            continue
        outcome = run_next(bench, cell)
        left[cell.name] -= outcome.counts
        yield outcome


def _possible(bench: Bench, cells: Sequence[Cell]) -> Cell:
    """The first of these that the machine is quiet enough for; what steps take is found out on a quiet machine too."""
    known = {length for machine, length in read(bench.file).calibrations if machine == bench.machine}
    waits = {cell.name: cell.quiet or not cell.lengths <= known for cell in cells}
    used = others_now() if any(waits.values()) else 0.0
    for cell in cells:
        if not waits[cell.name] or used <= QUIET:
            return cell
    raise NotQuietError(used, [cell.name for cell in cells])


def run_next(bench: Bench, cell: Cell) -> Ran:
    """Make the next run of a cell, and keep it."""
    kept = read(bench.file)
    with tempfile.TemporaryDirectory(prefix="ddpperf-verdicts-") as folder:
        outcome, measure = _prepared(bench, kept, cell, Path(folder) / "project")
        start = bench.clock()
        try:
            outcome = replace(outcome, **measure())
        except RunError as error:
            outcome = replace(outcome, said=str(error)[-2000:])
    if tree_of(bench.package) != bench.tree:
        raise SettingError(f"{bench.package / PACKAGE} changed during a run, which is not kept")
    outcome = replace(outcome, seconds=bench.clock() - start)
    outcome = replace(outcome, left_out=why_left_out(cell, outcome))
    append(bench.file, outcome)
    return outcome


def _prepared(bench: Bench, kept: Kept, cell: Cell, project: Path) -> tuple[Ran, Callable[[], dict[str, Any]]]:
    """What is kept of a run that comes to nothing, and what makes the run and tells fields of it."""
    ran: dict[str, Any] = {
        "cell": cell.name,
        "number": len(kept.of(cell.name, bench.tree)),
        "tree": bench.tree,
        "machine": bench.machine,
        "began": dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds"),
        "seconds": 0.0,
    }
    if isinstance(cell.measured, Suite):
        nothing = SuiteOutcome(**ran, planted=dict.fromkeys(planted_by(cell.measured), "none"))
        return nothing, partial(suite_run, bench.package, project, cell, cell.measured, RANKS)
    before, after = cell.drawn(ran["number"])
    calibrations = _calibrations(bench, kept, (before, after))
    make_project(project, before.text(calibrations), after.text(calibrations))
    programs = {"before": _changed(before), "after": _changed(after)}
    return Outcome(**ran, verdict="none", programs=programs), partial(compared, bench.package, project, cell)


def compared(package: Path, project: Path, cell: Cell) -> dict[str, Any]:
    """Save what has to be saved, compare, and tell what came out, in fields of an outcome."""
    options = ["--ddpperf-max-time", f"{cell.max_time:g}", *([] if cell.counted else ["--ddpperf-counts=off"])]

    def run(*more: str, load: bool) -> Mapping[str, Any]:
        with _load(load):
            (result,) = pytest_results(cell.name, project, (TESTS, *options, *more), (package,), RANKS)
        return result

    if cell.saved_busy is None:
        check_out(project, AFTER)
        return told(run(f"--ddpperf-against={BEFORE}", load=cell.busy))
    check_out(project, BEFORE)
    with _without_git(project, hidden=not cell.git):
        saved = run("--ddpperf-save", load=cell.saved_busy)
    if not (project / BASELINES).is_dir():
        raise RunError(f"{cell.name}: nothing was stored: {saved['findings']}")
    check_out(project, AFTER)
    with _without_git(project, hidden=not cell.git):
        result = run(load=cell.busy)
    return {**told(result), "others_saved": others_of(saved)}


@contextmanager
def _load(wanted: bool) -> Iterator[None]:  # noqa: FBT001  what a cell says
    with busy(LOAD if wanted else 0):
        yield


@contextmanager
def _without_git(project: Path, *, hidden: bool) -> Iterator[None]:
    """Have no repository meanwhile, if it is to be ``hidden``."""
    there, aside = project / ".git", project.with_name("hidden")
    if hidden:
        there.rename(aside)
    try:
        yield
    finally:
        if hidden:
            aside.rename(there)


def _calibrations(bench: Bench, kept: Kept, programs: Sequence[Program]) -> dict[str, Calibration]:
    """What the steps of these programs take here; what is not known is measured, and kept."""
    found: dict[str, Calibration] = {}
    for length in dict.fromkeys(each.length for each in programs if each.calibrated):
        if (bench.machine, length) not in kept.calibrations:
            with launcher() as ranks:
                found[length] = calibrated(ranks, LENGTHS[length], RANKS)
            append_calibration(bench.file, bench.machine, length, found[length])
        else:
            found[length] = kept.calibrations[bench.machine, length]
    return found


def _changed(program: Program) -> dict[str, Any]:
    """What of a program is not the default."""
    defaults = {column.name: column.default for column in fields(Program)}
    return {name: value for name, value in asdict(program).items() if name == "length" or value != defaults[name]}


def chosen(name: str | None, *, suites: bool = False) -> list[Cell]:
    """The cell of this name, or all; those that run the example suite only if ``suites`` asks for them."""
    every = {**CELLS, **SUITES}
    if name is None:
        return list(every.values() if suites else CELLS.values())
    if name not in every:
        raise SettingError(f"--cell {name!r}: there are {', '.join(every)}")
    return [every[name]]
