"""Starting a probe as a pytest run of its own, and seeing it through."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.run.probe import Outcome, Probe
from pytest_ddpperf.settings import KNOBS

FOLDER = "ddpperf-bisect-"  # names of folders begin with it
TEST_OPTION = "--ddpperf-bisect-test"  # of that plugin
_ONE_TEST = "pytest_ddpperf.cli.bisect.select_test"  # a plugin; not imported here, for pytest wants to do that
_END_SECONDS = 30.0  # for a probe that is interrupted to end its ranks and remove its checkouts
_UNUSABLE = {4, 5}  # pytest's exit status where its arguments are wrong, and where they name no test
_ERROR = re.compile(r"^(?:ERROR:? |E +|\S+: error: )(?!usage:)(.*)", re.MULTILINE)


@dataclass(frozen=True)
class Started:
    """What all probes of a search have in common.

    Attributes:
        good: full hash of the commit that is held against.
        arguments: for pytest, as the user gave them.
        test: node id of the only test to run, of those that they name; None for all.
    """

    good: str
    arguments: tuple[str, ...]
    test: str | None = None


def run_probe(probe: Probe, started: Started) -> Outcome:
    """What came of a probe. It leaves neither process nor checkout behind, also where it is interrupted.

    Raises:
        SettingError: pytest cannot be run like that; its own words are told.
    """
    with tempfile.TemporaryDirectory(prefix=FOLDER) as name:
        folder = Path(name)
        file = folder / "outcome"
        # The files that the project may have set for its own runs are not for these.
        aside = {"json": folder / "results.json", "history": folder / "history.sqlite"}
        command = [
            *(sys.executable, "-m", "pytest_ddpperf.cli.bisect.probe_session"),
            *(probe.dumps(), str(file), str(os.getpid())),
            *started.arguments,
            *([] if started.test is None else ["-p", _ONE_TEST, f"{TEST_OPTION}={started.test}"]),
            f"{KNOBS['against'].option}={started.good}",
            *(f"{KNOBS[knob].option}={path}" for knob, path in aside.items()),
        ]
        with (folder / "output").open("w+b") as output:
            status = exit_status(command, output)
            output.seek(0)
            said = output.read().decode(errors="replace")
        if status in _UNUSABLE or not file.exists():
            raise SettingError(f"{command_line(started.arguments)}: {_complaint(said, status)}")
        outcome = pickle.loads(file.read_bytes())
        if not isinstance(outcome, Outcome):
            raise TypeError(outcome)
        return outcome


def command_line(arguments: Sequence[str]) -> str:
    """What the user would type to run pytest like that: ``pytest perf -k small``."""
    return shlex.join(("pytest", *arguments))


def exit_status(
    command: Sequence[str],
    output: IO[bytes],
    folder: Path | None = None,
    environ: Mapping[str, str] | None = None,
    end_seconds: float = _END_SECONDS,
) -> int:
    """The exit status of a command, in a session of its own: Ctrl-C reaches it through here, and once.

    Args:
        command: and its arguments.
        output: what it prints to.
        folder: where it runs; None for this process's.
        environ: its environment variables; None for this process's.
        end_seconds: that it has to end, when it is interrupted.
    """
    with subprocess.Popen(  # noqa: S603  our own interpreter and module
        command,
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            return process.wait()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            try:
                process.wait(end_seconds)
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                process.kill()
            raise


def _complaint(said: str, status: int) -> str:
    """What pytest had against its arguments, in a line."""
    error = _ERROR.search(said)
    lines = [line for line in said.splitlines() if line.strip()]
    return error[1] if error is not None else next(reversed(lines), f"it ended with status {status}")
