"""Projects to throw away, runs of pytest in them and what came out, and processes that keep the machine busy."""

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
from xml.etree import ElementTree as ET

from pytest_ddpperf.against.git import git
from pytest_ddpperf.launch.processes import finished
from pytest_ddpperf.stats.intervals import Rate

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
AS_NOBODY = (  # nothing of the user's own git settings
    *("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"),
    *("-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"),
)
NOT_OURS = ("PYTEST_ADDOPTS", "PERF_TESTS_SLOW")  # of the shell's environment: they would change what is measured
DAY = 86400.0  # seconds, in which any run of pytest ends
END_SECONDS = 60.0  # for a pytest that is interrupted to end its ranks and to remove its checkouts
ENDED = (0, 1, 10)  # pytest's exit status: nothing is wrong, a test failed, a benchmark could not be measured
MANY = 200  # independent comparisons, whose interval deserves a decimal

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


class BrokenFile(ValueError):
    """A file does not hold what it should; the message names it and what is wrong."""


class RunError(RuntimeError):
    """Pytest came to no result; the message holds what it printed."""


@dataclass(frozen=True)
class Ran:
    """A run of pytest that has ended."""

    status: int
    printed: str
    results: list[dict[str, Any]]  # of the JSON report
    tests: dict[str, ET.Element]  # of the JUnit file, by "class::name"


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes texts into files of a folder, which is made if it is not there."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def repository(folder: Path, files: Mapping[str, str], branch: str = "main") -> None:
    """Makes a git repository of one commit with these files."""
    write(folder, {"pytest.ini": "[pytest]\n", ".gitignore": "__pycache__\n", **files})
    git(folder, "init", "-q", "-b", branch)
    commit(folder, branch)


def commit(folder: Path, message: str) -> None:
    """Commits all changes."""
    git(folder, "add", "-A")
    git(folder, *AS_NOBODY, "commit", "-q", "-m", message)


def pytest_run(folder: Path, arguments: Sequence[str], *, paths: Sequence[Path] = (ROOT,), seconds: float = DAY) -> Ran:
    """Runs pytest in a folder; it finds modules in ``paths``.

    Raises:
        TimeoutExpired: it took longer than these seconds, and was ended.
    """
    with tempfile.TemporaryDirectory() as aside:
        report, junit, printed = (Path(aside) / name for name in ("results.json", "junit.xml", "printed"))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
        command += [f"--ddpperf-report=json:{report}", f"--junit-xml={junit}"]
        with printed.open("wb") as output:
            how: dict[str, Any] = {
                "cwd": folder,
                "env": environ_of(paths),
                "stdout": output,
                "stderr": subprocess.STDOUT,
            }
            status = finished(command, seconds, patience=END_SECONDS, **how).returncode
        results = json.loads(report.read_text(encoding="utf-8"))["results"] if report.exists() else []
        cases = ET.parse(junit).iter("testcase") if junit.exists() else ()  # noqa: S314  pytest has just written it
        tests = {f"{case.get('classname')}::{case.get('name')}": case for case in cases}
        return Ran(status, printed.read_text(encoding="utf-8", errors="replace"), results, tests)


def pytest_results(folder: Path, arguments: Sequence[str], paths: Sequence[Path] = (ROOT,)) -> list[dict[str, Any]]:
    """Returns the results of a run of pytest; RunError if there are none."""
    ran = pytest_run(folder, arguments, paths=paths)
    if ran.status not in ENDED or not ran.results:
        raise RunError(f"pytest ended with status {ran.status}\n{ran.printed}")
    return ran.results


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Keeps so many processes computing meanwhile, with short rests; they end with this one, however it ends."""
    with ExitStack() as ending:
        for _ in range(number):
            # Killed as a process, it dies with this thread. In a session of its own it hears no Ctrl-C.
            command = [sys.executable, "-c", BUSY, str(os.getpid())]
            process = ending.enter_context(subprocess.Popen(command, env=environ_of((ROOT,)), start_new_session=True))
            ending.callback(process.kill)
        yield


def environ_of(paths: Sequence[Path]) -> dict[str, str]:
    """Returns the environment of a run of pytest that finds modules in ``paths``."""
    ours = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    before = [ours["PYTHONPATH"]] if ours.get("PYTHONPATH") else []
    return {**ours, "PYTHONPATH": os.pathsep.join([*map(str, paths), *before])}


def rate_text(found: int, of: int) -> str:
    """Returns a rate in per cent, with its 95 % interval."""
    rate, decimals = Rate(found, of), 0 if of < MANY else 1
    ends = rate.interval
    return f"{100 * rate.value:.1f} % [{100 * ends.low:.{decimals}f} .. {100 * ends.high:.{decimals}f}]"
