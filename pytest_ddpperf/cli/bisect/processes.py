"""Runs a probe as a pytest run in a separate process. This file is also the program of that process.

``python -m pytest_ddpperf.cli.bisect.processes FOLDER PARENT [pytest's arguments]``
"""

from __future__ import annotations

import os
import pickle
import re
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from subprocess import TimeoutExpired

import pytest

from pytest_ddpperf.cli.bisect.target import require_known
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.processes import die_with_parent, printed_by
from pytest_ddpperf.plugin import PROBE, SESSION, session_of
from pytest_ddpperf.run.session.probe import Outcome, Probe
from pytest_ddpperf.settings import KNOBS

_FOLDER = "ddpperf-bisect-"  # the prefix of the folders of probes
_PROBE_FILE, _OUTCOME_FILE = "probe", "outcome"  # pickles in such a folder
_DAY = 86400.0  # seconds, in which a probe ends, whatever it measures
_END_SECONDS = 30.0  # for a probe that is interrupted to end its ranks and remove its checkouts
_UNUSABLE = {4, 5}  # pytest's exit statuses for wrong arguments, and for no test
_ERROR = re.compile(r"^(?:ERROR:? |E +|\S+: error: )(?!usage:)(.*)", re.MULTILINE)


def run_probe(probe: Probe, against: str, arguments: Sequence[str]) -> Outcome:
    """Runs pytest in a process to compare a probe's commit with ``against``; returns the outcome.

    ``arguments`` are for pytest. ``against`` is a commit, or the path of an interpreter if the probe measures another
    environment (``probe.python``). Even an interrupted probe leaves no processes or checkouts behind.
    """
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as name:
        folder = Path(name)
        (folder / _PROBE_FILE).write_bytes(pickle.dumps(probe))
        # The files that the project may have set for its own runs are not for these.
        command = [
            *(sys.executable, "-m", "pytest_ddpperf.cli.bisect.processes", name, str(os.getpid()), *arguments),
            f"{KNOBS['against' if probe.python is None else 'against_python'].option}={against}",
            *(f"{KNOBS['report'].option}=none", f"{KNOBS['history'].option}={folder / 'history.sqlite'}"),
        ]
        try:
            status, printed = printed_by(command, _DAY, patience=_END_SECONDS)
        except TimeoutExpired:
            raise SettingError(f"{command_line(arguments)} took longer than a day: name fewer tests") from None
        outcome = folder / _OUTCOME_FILE
        if status in _UNUSABLE or not outcome.exists():
            error = _ERROR.search(printed)
            lines = [line for line in printed.splitlines() if line.strip()]
            complaint = error[1] if error is not None else next(reversed(lines), f"pytest ended with status {status}")
            raise SettingError(f"{command_line(arguments)}: {complaint}")
        found: Outcome = pickle.loads(outcome.read_bytes())
        return found


def command_line(arguments: Sequence[str]) -> str:
    """Returns the command that runs pytest with these arguments: ``pytest perf -k small``."""
    return shlex.join(("pytest", *arguments))


class ProbePlugin:
    """The pytest plugin of a run that a bisection starts: it configures the run, and writes the outcome to a file."""

    def __init__(self, probe: Probe, file: Path) -> None:
        self._probe = probe
        self._file = file
        self._failures: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Stores the probe in pytest's configuration, where the plugin's session looks for it."""
        config.stash[PROBE] = self._probe

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects all tests except the probe's test."""
        others = [item for item in items if self._probe.test not in {None, item.nodeid}]
        items[:] = [item for item in items if self._probe.test in {None, item.nodeid}]
        config.hook.pytest_deselected(items=others)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Raises UsageError for an unknown metric, before anything is measured."""
        if self._probe.metric is None:
            return
        try:
            require_known(self._probe.metric, (row.name for row in session_of(session.config).extensions.metrics))
        except SettingError as error:
            raise pytest.UsageError(str(error)) from None

    def pytest_runtest_logreport(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        """Records why a test or file failed or was skipped."""
        if report.outcome != "passed":
            self._failures.setdefault(report.nodeid, _reason(report))

    pytest_collectreport = pytest_runtest_logreport

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the outcome to the file that the bisection reads."""
        stash = session.config.stash
        results = tuple(stash[SESSION].outputs.results) if SESSION in stash else ()
        self._file.write_bytes(pickle.dumps(Outcome(results, self._failures)))


def _reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):  # file, line and the words of a skip
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message).partition("\n")[0]
    lines = [line for line in report.longreprtext.splitlines() if line.strip()]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return next(reversed(errors or lines), "no reason was given")


def main(arguments: Sequence[str]) -> int:
    """Runs the probe and returns pytest's exit status."""
    folder, parent, more = Path(arguments[0]), int(arguments[1]), list(arguments[2:])
    # When a bisection is killed, its probe ends and leaves nothing behind. Ctrl-C may be ignored up to here: shells
    # start what they run in the background like that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    die_with_parent(signal.SIGINT, parent)
    probe: Probe = pickle.loads((folder / _PROBE_FILE).read_bytes())
    try:
        return int(pytest.main(more, plugins=[ProbePlugin(probe, folder / _OUTCOME_FILE)]))
    finally:
        if os.getppid() != parent and folder.name.startswith(_FOLDER):  # nobody is left to remove it
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
