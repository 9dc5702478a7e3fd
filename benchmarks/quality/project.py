"""A throw-away git project whose branches differ in one way each, and runs of pytest in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.quality.steps import CONDITIONS, UNCHANGED, Calibration, Injection, injection
from pytest_ddpperf.against.git import git
from pytest_ddpperf.cli.bisect.processes import exit_status
from pytest_ddpperf.errors import SettingError

ROOT = Path(__file__).parents[2]
BASE = "base"
TESTS = "perf"
SUITE = "perf_tests"
AS_NOBODY = (  # nothing of the user's own git settings
    *("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"),
    *("-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"),
)
SMALLEST = 16  # elements of an all-reduce that adds a call and next to no bytes
HELD = 12 * 2**20  # bytes
NOT_OURS = ("PYTEST_ADDOPTS", "PERF_TESTS_SLOW")  # of the shell's environment: they would change what is measured
END_SECONDS = 60.0  # for a pytest that is interrupted to end its ranks and to remove its checkouts
FAILED = 1  # pytest's exit status where a test failed

TRAINING = """\
import torch
from benchmarks.quality.steps import LENGTHS, Injection, Training

HELD = {held}  # bytes


def build(ctx):
    step = Training(LENGTHS[{length!r}], {injection!r})(ctx)
    step.held = torch.ones(HELD // 4)
    return step
"""
TEST = """\
from training import build


def test_step(ddpperf):
    ddpperf.check(build)
"""
WORKLOAD = """\
from benchmarks.quality.steps import LENGTHS, workload

WORK = workload(LENGTHS[{length!r}])
"""
WORKLOAD_TEST = """\
from training import WORK


def test_step(ddpperf):
    ddpperf.check(WORK, strategy="ddp")
"""
BUSY = """\
import random, signal, sys, time
from pytest_ddpperf.launch.processes import die_with_parent
die_with_parent(signal.SIGKILL, int(sys.argv[1]))
while True:
    until = time.monotonic() + random.uniform(0.05, 0.5)
    while time.monotonic() < until:
        pass
    time.sleep(random.uniform(0.001, 0.02))
"""


@dataclass(frozen=True)
class Change:
    """What is measured here against what, and what has to come out."""

    name: str
    here: str  # branch that is checked out
    against: str  # branch that it is held against
    expected: str = "regressed"
    times_only: bool = False  # nothing is counted: the operators of the work that is added would tell at once
    weight: int = 1  # runs in a round of all changes


CHANGES: Mapping[str, Change] = {
    change.name: change
    for change in (
        Change(UNCHANGED, BASE, BASE, "unchanged", weight=3),
        Change("+10%", "slower", BASE, times_only=True),
        Change("+10% undone", BASE, "slower", "improved", times_only=True),
        Change("all-reduce", "all-reduce", BASE),
        Change("all-reduce undone", BASE, "all-reduce", "improved"),
        Change("12 MiB held", "memory", BASE),
        Change("12 MiB undone", BASE, "memory", "improved"),
    )
}


def picked(names: Sequence[str] | None) -> list[str]:
    """The changes of these names; None for all of the throw-away project."""
    for name in names or ():
        if name not in CHANGES and name != SUITE:
            there = ", ".join(map(repr, (*CHANGES, SUITE)))
            raise SettingError(f"--changes {name!r}: there are {there}")
    return list(dict.fromkeys(names or CHANGES))


def branches(length: str, calibration: Calibration) -> dict[str, str]:
    """The module that each branch trains with; ``calibration`` tells how much work makes steps longer."""

    def training(injected: Injection, held: int = 0) -> str:
        return TRAINING.format(length=length, injection=injected, held=held)

    return {
        BASE: training(Injection()),
        "all-reduce": training(Injection(elements=SMALLEST)),
        "memory": training(Injection(), HELD),
        "slower": training(injection(CONDITIONS["+10%"], calibration)),
    }


def make_project(folder: Path, length: str, calibration: Calibration) -> None:
    """A git repository with a branch for each variation, whose ``perf`` benchmarks a step of this length."""
    _commit(folder, TEST, branches(length, calibration))


def make_workload_project(folder: Path, length: str) -> None:
    """A git repository of one commit, whose ``perf`` benchmarks a workload with a step of this length under DDP."""
    _commit(folder, WORKLOAD_TEST, {BASE: WORKLOAD.format(length=length)})


def _commit(folder: Path, test: str, modules: Mapping[str, str]) -> None:
    """Make the repository: the same ``test`` in all branches, of which each has a module of its own to train."""
    for path in (folder / "src", folder / TESTS):
        path.mkdir(parents=True)
    (folder / TESTS / "test_training.py").write_text(test, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    (folder / ".gitignore").write_text("__pycache__\nbaselines\n", encoding="utf-8")
    git(folder, "init", "-q", "-b", BASE)
    for branch, text in modules.items():
        if branch != BASE:
            git(folder, "checkout", "-q", "-b", branch, BASE)
        (folder / "src" / "training.py").write_text(text, encoding="utf-8")
        git(folder, "add", "-A")
        git(folder, *AS_NOBODY, "commit", "-q", "-m", branch)


def check_out(folder: Path, branch: str) -> None:
    """Make ``branch`` the one that is measured here."""
    git(folder, "checkout", "-q", branch)


class RunError(RuntimeError):
    """Pytest came to no verdict; the message holds what it printed."""


def pytest_results(
    name: str,
    folder: Path,
    arguments: Sequence[str],
    paths: Sequence[Path],
    ranks: int,
    *,
    device: str = "cpu",
    backend: str = "gloo",
    variables: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """The results in the JSON report of a run of pytest in ``folder``, which finds modules in ``paths``.

    ``variables`` are added to its environment.
    """
    with tempfile.TemporaryDirectory() as aside:
        report, printed = Path(aside) / "results.json", Path(aside) / "printed"
        options = (f"--ddpperf-device={device}", f"--ddpperf-backend={backend}", f"--ddpperf-world-size={ranks}")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments, *options]
        environ = {**environ_of(paths), **(variables or {})}
        with printed.open("wb") as output:
            status = exit_status([*command, f"--ddpperf-json={report}"], output, folder, environ, END_SECONDS)
        results: list[dict[str, Any]] = []
        if report.exists():
            results = json.loads(report.read_text(encoding="utf-8"))["results"]
        if status not in (0, FAILED) or not results:
            said = printed.read_text(encoding="utf-8", errors="replace")
            raise RunError(f"{name}: pytest ended with status {status}\n{said}")
    return results


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Keep so many processes computing meanwhile, with short rests; they end with this one, however it ends."""
    with ExitStack() as ending:
        for _ in range(number):
            # Killed as a process, it dies with this thread. In a session of its own it hears no Ctrl-C.
            command = [sys.executable, "-c", BUSY, str(os.getpid())]
            process = ending.enter_context(subprocess.Popen(command, env=environ_of((ROOT,)), start_new_session=True))
            ending.callback(process.kill)
        yield


def environ_of(paths: Sequence[Path]) -> dict[str, str]:
    """The environment of a run of pytest that finds modules in ``paths``."""
    ours = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    before = [ours["PYTHONPATH"]] if ours.get("PYTHONPATH") else []
    return {**ours, "PYTHONPATH": os.pathsep.join([*map(str, paths), *before])}
