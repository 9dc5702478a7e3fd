"""The process of a probe: a pytest run that measures one commit against another.

``python -m pytest_ddpperf.cli.bisect.probe_session FOLDER PARENT [pytest's arguments]``
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_ddpperf.cli.bisect.processes import FOLDER, OUTCOME_FILE, PROBE_FILE
from pytest_ddpperf.cli.bisect.target import require_known
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch import processes
from pytest_ddpperf.plugin import PROBE, SESSION, session_of
from pytest_ddpperf.run.session.probe import Outcome, Probe


class ProbePlugin:
    """The pytest plugin of a run that a bisection starts: it passes the probe in, and writes the outcome to a file."""

    def __init__(self, probe: Probe, file: Path) -> None:
        self._probe = probe
        self._file = file
        self._failures: dict[str, str] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Stores the probe in pytest's configuration, from which the plugin's session takes it."""
        config.stash[PROBE] = self._probe

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Deselects all tests but the probe's; only pytest knows which of the user's arguments name tests."""
        others = [item for item in items if self._probe.test not in {None, item.nodeid}]
        items[:] = [item for item in items if self._probe.test in {None, item.nodeid}]
        config.hook.pytest_deselected(items=others)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Raises an error for an unknown metric before measuring; only this run knows the metrics that hooks add."""
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
        """Writes the outcome to the file."""
        config = session.config
        results = tuple(config.stash[SESSION].outputs.results) if SESSION in config.stash else ()
        self._file.write_bytes(pickle.dumps(Outcome(results, self._failures, config.rootpath)))


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
    processes.die_with_parent(signal.SIGINT, parent)
    probe: Probe = pickle.loads((folder / PROBE_FILE).read_bytes())
    try:
        return int(pytest.main(more, plugins=[ProbePlugin(probe, folder / OUTCOME_FILE)]))
    finally:
        if os.getppid() != parent and folder.name.startswith(FOLDER):  # nobody is left to remove it
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
