"""Runs of pytest in processes of their own, and others that keep the machine busy meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pytest_ddpperf.cli.bisect.processes import exit_status

ROOT = Path(__file__).parents[2]
NOT_OURS = ("PYTEST_ADDOPTS", "PERF_TESTS_SLOW")  # of the shell's environment: they would change what is measured
END_SECONDS = 60.0  # for a pytest that is interrupted to end its ranks and to remove its checkouts
FAILED = 1  # pytest's exit status where a test failed
BUSY = """\
import signal, sys
from pytest_ddpperf.launch.processes import die_with_parent
die_with_parent(signal.SIGKILL, int(sys.argv[1]))
while True:
    pass
"""


class RunError(RuntimeError):
    """Pytest came to no verdict; the message holds what it printed."""


def pytest_results(
    name: str, folder: Path, arguments: Sequence[str], paths: Sequence[Path], ranks: int
) -> list[dict[str, Any]]:
    """The results in the JSON report of a run of pytest.

    Args:
        name: of the run, for messages.
        folder: where pytest runs.
        arguments: its tests and options.
        paths: where it finds modules.
        ranks: of each benchmark.

    Raises:
        RunError: it came to none, or ended in another way than tests that pass or fail.
    """
    with tempfile.TemporaryDirectory() as aside:
        report, printed = Path(aside) / "results.json", Path(aside) / "printed"
        options = ("--ddpperf-device=cpu", "--ddpperf-backend=gloo", f"--ddpperf-world-size={ranks}")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments, *options]
        with printed.open("wb") as output:
            status = exit_status([*command, f"--ddpperf-json={report}"], output, folder, _environ(paths), END_SECONDS)
        results: list[dict[str, Any]] = []
        if report.exists():
            results = json.loads(report.read_text(encoding="utf-8"))["results"]
        if status not in (0, FAILED) or not results:
            said = printed.read_text(encoding="utf-8", errors="replace")
            raise RunError(f"{name}: pytest ended with status {status}\n{said}")
    return results


@contextmanager
def busy(number: int) -> Iterator[None]:
    """Keep so many processes computing meanwhile; they end with this one, however it ends."""
    with ExitStack() as ending:
        for _ in range(number):
            # Killed as a process, it dies with this thread. In a session of its own it hears no Ctrl-C.
            command = [sys.executable, "-c", BUSY, str(os.getpid())]
            process = ending.enter_context(subprocess.Popen(command, env=_environ((ROOT,)), start_new_session=True))
            ending.callback(process.kill)
        yield


def _environ(paths: Sequence[Path]) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    before = [ours["PYTHONPATH"]] if ours.get("PYTHONPATH") else []
    return {**ours, "PYTHONPATH": os.pathsep.join([*map(str, paths), *before])}
