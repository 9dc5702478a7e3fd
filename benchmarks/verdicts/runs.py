"""Makes real runs of pytest, one after the other, and keeps what each came to."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common.project import RunError, busy, commit, pytest_results, write
from benchmarks.verdicts.cells import PLANTED, Cell, Suite
from benchmarks.verdicts.outcomes import QUIET, Outcome, append, others_of, read, runs_of, told, why_left_out
from benchmarks.verdicts.programs import AFTER, BASELINES, BEFORE, TESTS, make_project
from pytest_ddpperf.against.git import git
from pytest_ddpperf.baselines.fingerprint import environment, environment_key
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments.host import machine_facts
from pytest_ddpperf.launch.context import Placement
from pytest_ddpperf.launch.environment import thread_count
from pytest_ddpperf.launch.launcher import Launcher

PACKAGE, SUITE = "pytest_ddpperf", "perf_tests"
RANKS = 2
LOAD = 2  # busy processes
PATIENCE = 30.0  # s, after which it is looked again
CLONE_SECONDS = 300.0
WATCHED = 3.0  # s, in which nobody else may be busy before a run that takes a quiet machine
SLOWER_MODULE = "test_language_model.py"  # whose tests are PLANTED
IMPORTED = "from .language_model import LARGER, SMALL, language_model\n"
INSTEAD = "from .language_model import LARGER, SMALL\nfrom .planted import language_model\n"
PLANT = '''\
"""The language model with extra work in each step; each side finds its own by the name of a function."""

from dataclasses import replace
from functools import partial

from . import language_model as plain
from .extra_work import ExtraWork

SHARE = {share}  # of a step


def slower(build):
    model = build()
    model.register_forward_pre_hook(ExtraWork(SHARE))
    return model


def language_model(size, batch_size):
    workload = plain.language_model(size, batch_size)
    return replace(workload, model=partial(slower, workload.model))
'''


@dataclass(frozen=True)
class Bench:
    """Where runs are made and kept."""

    file: Path
    package: Path  # the folder that holds the package
    tree: str
    machine: str
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Ticks:
    """Time of all cores since the start of the machine, and of children of this process that have ended."""

    whole: int
    idle: int
    own: float

    @classmethod
    def now(cls, stat: Path = Path("/proc/stat")) -> Ticks:
        """Reads them; all are zero if the system does not tell."""
        if not stat.exists():
            return cls(0, 0, 0.0)
        cores = [int(tick) for tick in stat.read_text(encoding="ascii").splitlines()[0].split()[1:9]]
        ended = os.times()
        own = (ended.children_user + ended.children_system) * os.sysconf("SC_CLK_TCK")
        return cls(sum(cores), cores[3] + cores[4], own)  # idle, and waiting for a disk

    def others(self, later: Ticks) -> float:
        """Returns the share of the cores that neither was idle until then nor went to children that ended meanwhile."""
        used = later.whole - self.whole - (later.idle - self.idle) - (later.own - self.own)
        return max(0.0, used / max(1, later.whole - self.whole))


def others_now(seconds: float = WATCHED) -> float:
    """Returns the share of the cores that is in use now; 0 if the system does not tell."""
    before = Ticks.now()
    time.sleep(seconds)
    return before.others(Ticks.now())


def tree_of(package: Path) -> str:
    """Returns git's name of the package; SettingError if it has changes: runs of other rules must be told apart."""
    if git(package, "status", "--porcelain", "--", PACKAGE):
        raise SettingError(f"{package / PACKAGE} has changes: commit them, or give --package the folder of a checkout")
    return git(package, "rev-parse", "--short", f"HEAD:{PACKAGE}")


def machine_here() -> str:
    """Returns the key of this machine's environment with two ranks."""
    with Launcher() as ranks:
        threads = thread_count(dict(os.environ))
        here = environment(machine_facts(), ranks.machine(gpus=False), Placement("cpu", "gloo"), RANKS, threads=threads)
        return environment_key(here)


def made(bench: Bench, cells: Sequence[Cell], until: float, number: int | None = None) -> Iterator[list[Outcome]]:
    """Makes runs of these cells, of the one that lacks most, until the time is up or each has what is wanted.

    ``number``: so many runs that count of each in place of those, whatever there is. If others use the machine, runs
    that take a quiet one wait.
    """
    left = {cell.name: cell.wanted if number is None else number for cell in cells}
    if number is None:
        kept = [each for each in read(bench.file) if each.tree == bench.tree and not each.left_out]
        for name in left:
            left[name] -= len(runs_of(each for each in kept if each.cell == name))
    while bench.clock() < until and (lacking := [cell for cell in cells if left[cell.name] > 0]):
        busy_machine = any(cell.quiet for cell in lacking) and others_now() > QUIET
        possible = [cell for cell in lacking if not (cell.quiet and busy_machine)]
        if not possible:
            time.sleep(PATIENCE)
            continue
        cell = max(possible, key=lambda cell: left[cell.name] / cell.wanted)
        outcomes = run_next(bench, cell)
        left[cell.name] -= not outcomes[0].left_out
        yield outcomes


def run_next(bench: Bench, cell: Cell) -> list[Outcome]:
    """Makes the next run of a cell, and keeps it."""
    start, now = bench.clock(), dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
    number = len(runs_of(each for each in read(bench.file) if (each.cell, each.tree) == (cell.name, bench.tree)))
    ran = Outcome(cell=cell.name, number=number, tree=bench.tree, machine=bench.machine, began=now)
    with tempfile.TemporaryDirectory(prefix="ddpperf-verdicts-") as folder:
        project = Path(folder) / "project"
        try:
            if isinstance(cell.measured, Suite):
                found = suite_run(bench.package, project, cell, cell.measured)
            else:
                before, after = cell.drawn(number)
                ran = replace(ran, programs={"before": vars(before), "after": vars(after)})
                make_project(project, before.text, after.text)
                found = [compared(bench.package, project, cell)]
        except RunError as error:
            found = [{"said": str(error)[-2000:]}]
    if tree_of(bench.package) != bench.tree:
        raise SettingError(f"{bench.package / PACKAGE} changed during a run, which is not kept")
    outcomes = [replace(ran, **each, seconds=bench.clock() - start) for each in found]
    outcomes = [replace(each, left_out=why_left_out(cell, each)) for each in outcomes]
    append(bench.file, outcomes)
    return outcomes


def compared(package: Path, project: Path, cell: Cell) -> dict[str, Any]:
    """Saves what has to be saved, compares, and returns what came out, in fields of an outcome."""
    options = [f"--ddpperf-max-time={cell.max_time:g}", *_options(cell)]

    def run(*more: str, load: bool) -> Mapping[str, Any]:
        with busy(LOAD if load else 0), _without_git(project, hidden=not cell.git):
            (result,) = pytest_results(project, (TESTS, *options, *more), (package,))
        return result

    if cell.saved_busy is None:
        git(project, "checkout", "-q", AFTER)
        return told(run(f"--ddpperf-against={BEFORE}", load=cell.busy))
    git(project, "checkout", "-q", BEFORE)
    saved = run("--ddpperf-save", load=cell.saved_busy)
    if not (project / BASELINES).is_dir():
        raise RunError(f"{cell.name}: nothing was stored: {saved.get('findings')}")
    git(project, "checkout", "-q", AFTER)
    return {**told(run(load=cell.busy)), "others_saved": others_of(saved)}


def _options(cell: Cell) -> list[str]:
    given = [f"--ddpperf-world-size={RANKS}", "--ddpperf-device=cpu"]
    return given if cell.counted else [*given, "--ddpperf-counts=off"]


@contextmanager
def _without_git(project: Path, *, hidden: bool) -> Iterator[None]:
    """There is no repository meanwhile, if it is to be ``hidden``."""
    there, aside = project / ".git", project.with_name("hidden")
    if hidden:
        there.rename(aside)
    try:
        yield
    finally:
        if hidden:
            aside.rename(there)


def suite_run(package: Path, project: Path, cell: Cell, suite: Suite) -> list[dict[str, Any]]:
    """Clones the checkout, saves or plants what has to be, runs the suite, and returns what came out of each benchmark.

    Saving runs the whole suite once more, without a budget: that takes some minutes in each run of its cell.
    """
    git(package, "clone", "-q", str(package), str(project), seconds=CLONE_SECONDS)
    options, of_saved = [f"--ddpperf-budget={suite.budget}"], {}
    if cell.saved_busy is not None:
        shutil.rmtree(project / BASELINES, ignore_errors=True)  # of other machines, and maybe of another format
        before = Ticks.now()
        pytest_results(project, (SUITE, "--ddpperf-save", *_options(cell)), (project,))
        of_saved["others_saved"] = before.others(Ticks.now())
        if not (project / BASELINES).is_dir():
            raise RunError(f"{cell.name}: nothing was stored")
        touch(project)
    else:
        if suite.slower:
            plant(project, suite.slower)
        options.append("--ddpperf-against=HEAD~1" if suite.slower else "--ddpperf-against=HEAD")
    start, before = time.monotonic(), Ticks.now()
    results = pytest_results(project, (SUITE, *options, *_options(cell)), (project,))
    # Launches of several benchmarks that take turns do not know what others took.
    of_run = {**of_saved, "took": time.monotonic() - start, "others": before.others(Ticks.now())}
    return [
        {
            **(of_result := told(result)),
            "apart": of_result.get("apart", [])[:1],  # samples of a step are each test's own
            "test": f"{result['test']} {result['name']} w{result['world_size']}",
            "planted": suite.slower > 0 and result["test"].rpartition("::")[2] in PLANTED,
            **of_run,
        }
        for result in results
    ]


def plant(project: Path, share: float) -> None:
    """Commits tests whose models are called through a hook, and then work in that hook: both sides share the tests."""
    module = project / SUITE / SLOWER_MODULE
    text = module.read_text(encoding="utf-8")
    if IMPORTED not in text:
        raise RunError(f"{SUITE}/{SLOWER_MODULE} has no line '{IMPORTED.strip()}': nothing can be planted in its tests")
    write(project / SUITE, {SLOWER_MODULE: text.replace(IMPORTED, INSTEAD)})
    for of_step in (0.0, share):
        write(project / SUITE, {"planted.py": PLANT.format(share=of_step)})
        commit(project, f"extra work of {of_step:.0%}")


def touch(project: Path) -> None:
    """Commits what was saved, and then a comment in each module that is measured: another commit with the same code."""
    commit(project, BASELINES)
    for module in (project / SUITE).glob("*.py"):
        module.write_text(module.read_text(encoding="utf-8") + "# touched\n", encoding="utf-8")
    commit(project, "touched")
