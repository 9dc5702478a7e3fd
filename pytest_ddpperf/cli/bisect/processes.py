"""Runs a probe as a pytest run in a separate process."""

from __future__ import annotations

import os
import pickle
import re
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from subprocess import STDOUT, TimeoutExpired

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.processes import finished
from pytest_ddpperf.run.session.probe import Outcome, Probe
from pytest_ddpperf.settings import KNOBS

FOLDER = "ddpperf-bisect-"  # the prefix of the folders of probes
PROBE_FILE, OUTCOME_FILE = "probe", "outcome"  # pickles in such a folder
_DAY = 86400.0  # seconds, in which a probe ends, whatever it measures
_END_SECONDS = 30.0  # for a probe that is interrupted to end its ranks and remove its checkouts
_UNUSABLE = {4, 5}  # pytest's exit statuses for wrong arguments, and for no test
_ERROR = re.compile(r"^(?:ERROR:? |E +|\S+: error: )(?!usage:)(.*)", re.MULTILINE)


def run_probe(probe: Probe, against: str, arguments: Sequence[str]) -> Outcome:
    """Runs pytest in a process to compare a probe's commit with ``against``; returns the outcome.

    ``arguments`` are for pytest. If the probe has an interpreter in place of a commit, so has ``against``.

    The probe leaves neither processes nor checkouts behind, even if it is interrupted.
    """
    with tempfile.TemporaryDirectory(prefix=FOLDER) as name:
        folder = Path(name)
        (folder / PROBE_FILE).write_bytes(pickle.dumps(probe))
        # The files that the project may have set for its own runs are not for these.
        command = [
            *(sys.executable, "-m", "pytest_ddpperf.cli.bisect.probe_session", name, str(os.getpid()), *arguments),
            f"{KNOBS['against' if probe.python is None else 'against_python'].option}={against}",
            *(f"{KNOBS['report'].option}=none", f"{KNOBS['history'].option}={folder / 'history.sqlite'}"),
        ]
        with (folder / "output").open("wb") as output:
            try:
                status = finished(command, _DAY, patience=_END_SECONDS, stdout=output, stderr=STDOUT).returncode
            except TimeoutExpired:
                raise SettingError(f"{command_line(arguments)} took longer than a day: name fewer tests") from None
        printed = (folder / "output").read_text(encoding="utf-8", errors="replace")
        outcome = folder / OUTCOME_FILE
        if status in _UNUSABLE or not outcome.exists():
            error = _ERROR.search(printed)
            lines = [line for line in printed.splitlines() if line.strip()]
            complaint = error[1] if error is not None else next(reversed(lines), f"it ended with status {status}")
            raise SettingError(f"{command_line(arguments)}: {complaint}")
        found: Outcome = pickle.loads(outcome.read_bytes())
        return found


def command_line(arguments: Sequence[str]) -> str:
    """Returns the command that runs pytest with these arguments: ``pytest perf -k small``."""
    return shlex.join(("pytest", *arguments))
