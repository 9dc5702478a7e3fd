"""Runs of pytest and what they found, files of results, and processes that keep the machine busy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pytest_ddpperf.launch.processes import finished
from pytest_ddpperf.stats.rates import Rate

ROOT = Path(__file__).parents[2]
AS_NOBODY = (  # nothing of the user's own git settings
    *("-c", "user.name=benchmark", "-c", "user.email=benchmark@localhost"),
    *("-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"),
)
NOT_OURS = ("PYTEST_ADDOPTS", "PERF_TESTS_SLOW")  # of the shell's environment: they would change what is measured
DAY = 86400.0  # seconds, in which any run of pytest ends
END_SECONDS = 60.0  # for a pytest that is interrupted to end its ranks and to remove its checkouts
MANY = 200  # independent comparisons, whose interval deserves a decimal
ENDED = (0, 1, 10)  # pytest's exit status: nothing is wrong, a test failed, a benchmark could not be measured

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
            command.append(f"--ddpperf-report=json:{report}")
            how: dict[str, Any] = {"cwd": folder, "env": environ, "stdout": output, "stderr": subprocess.STDOUT}
            status = finished(command, DAY, patience=END_SECONDS, **how).returncode
        results: list[dict[str, Any]] = []
        if report.exists():
            results = json.loads(report.read_text(encoding="utf-8"))["results"]
        if status not in ENDED or not results:
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


def rate_text(rate: Rate) -> str:
    """Returns a rate in per cent, with its 95 % interval."""
    ends, decimals = rate.interval, 0 if rate.effective < MANY else 1
    return f"{100 * rate.value:.1f} % [{100 * ends.low:.{decimals}f} .. {100 * ends.high:.{decimals}f}]"
