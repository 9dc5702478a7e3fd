"""Runs pytest under torchrun, srun or mpirun: rank 0 runs the tests, and starts ranks on all nodes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.errors import LaunchError, SettingError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.launch.nodes.cluster import Cluster
from pytest_ddpperf.launch.nodes.joining import control, follow, hello
from pytest_ddpperf.launch.nodes.tasks import Task, task_of
from pytest_ddpperf.run.session.configuration import uses_ranks
from pytest_ddpperf.units import format_count

if TYPE_CHECKING:
    from pytest_ddpperf.launch.nodes.meeting import Hello
    from pytest_ddpperf.run.session.session import Session

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def takes_part(task: Task, items: Sequence[pytest.Item]) -> bool:
    """Returns whether the tests use the plugin's fixtures.

    Raises SettingError if only some tests use the fixtures, or if torchrun has restarted and would repeat failed tests.
    """
    ours = [item for item in items if uses_ranks(item)]
    if not ours:
        return False
    if len(ours) < len(items):
        other = next(item.nodeid for item in items if not uses_ranks(item))
        raise SettingError(
            f"{task.launcher} started {task.size} processes, but {len(items) - len(ours)} of {len(items)} tests do not "
            f"use the fixtures of pytest-ddpperf, such as {other}: select the others with pytest -m ddpperf, and run "
            f"these without {task.launcher}"
        )
    if task.restarts:
        raise SettingError(
            f"{task.launcher} has restarted all processes (TORCHELASTIC_RESTART_COUNT={task.restarts}), so failed "
            "tests would run again until they pass; use --max-restarts=0"
        )
    return True


def report_to_torchrun(line: str) -> None:
    """Writes the reason of a failure to torchrun's error file, if torchrun has started this process."""
    path = os.environ.get(_ERROR_FILE)
    if path and line:
        extra = {"py_callstack": line, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError):
            Path(path).write_text(json.dumps({"message": {"message": line, "extraInfo": extra}}), encoding="utf-8")


class UnderLauncher:
    """The pytest plugin of a process that torchrun, srun or mpirun has started.

    Rank 0 runs the tests, and the other processes print nothing. A suite without the plugin's fixtures runs unchanged.
    """

    def __init__(self, folder: Path | None, session_of: Callable[[], Session]) -> None:
        self._folder, self._session_of = folder, session_of
        self._task: Task | None = None
        self._cluster: Cluster | None = None
        self._following = False
        self._status: int | None = None  # this process ends with it, once it is known
        self._held: tuple[Any, Any] | None = None  # the terminal writer and its file
        self._stderr: Any = None
        self._failed = ""  # the first failure, in one line
        self._session: Any = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Holds back the output of all processes except rank 0, until it is known whether they run tests themselves."""
        self._session = session
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        self._task = task_of(os.environ, terminal=getattr(reporter, "isatty", False))
        if reporter is not None and self._task is not None and not self._task.controls:
            writer = session.config.get_terminal_writer()
            self._held = writer, writer._file  # noqa: SLF001 - there is no public way
            writer._file = io.StringIO()  # noqa: SLF001 - the same

    def follows(self, session: pytest.Session) -> bool:
        """Connects rank 0 to other processes; returns whether this process only helps rank 0. May raise UsageError."""
        config, task = session.config, self._task
        try:
            alone = task is None or config.option.collectonly or hasattr(config, "workerinput")
            if task is None or alone or not takes_part(task, session.items):
                self._let_go()
                return False
            if not task.controls:
                self._following = True
                return True
            own = _own(task, session)
            self._cluster = self._session_of().sides.cluster = control(task, own, self._folder)
        except (SettingError, LaunchError) as error:
            self._held = None  # rank 0 prints the same
            raise pytest.UsageError(str(error)) from None
        return False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Refuses tests with ranks in workers of pytest-xdist, because the launcher has started all processes."""
        if self._task is not None and hasattr(item.config, "workerinput") and uses_ranks(item):
            reason = f"{self._task.launcher} started {self._task.size} processes, and pytest-xdist would start more"
            pytest.fail(f"{reason}: leave -n out, or start one pytest without {self._task.launcher}", pytrace=False)

    def _let_go(self) -> None:
        """Prints the held-back output of a process that runs tests by itself, not for rank 0."""
        if self._held is not None:
            (writer, file), self._held = self._held, None
            text, writer._file = writer._file.getvalue(), file  # noqa: SLF001 - the same
            file.write(text)
            file.flush()

    def pytest_report_collectionfinish(self) -> list[str]:
        """Returns the lines of the report's header that describe the nodes and their differences."""
        task, cluster = self._task, self._cluster
        if cluster is None or task is None:
            return []
        nodes = cluster.nodes
        over = f" over {cluster.interface}" if nodes else ""
        first = f"ddpperf: {task.size} processes of {task.launcher} on {format_count(1 + len(nodes), 'node')}{over}"
        met = (f"node {one.number} is {one.hello.host}, clock within {one.uncertain / 1e6:.2f} ms" for one in nodes)
        return ["; ".join((first, *met)), *(f"ddpperf: {difference}" for difference in cluster.differences)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Starts ranks for rank 0 instead of running tests, if this process only helps rank 0."""
        if not self._following or self._task is None:
            return None
        from pytest_ddpperf.against.worktree import check_out

        try:
            self._status = follow(self._task, _own(self._task, session), self._folder, check_out)
        except (SettingError, LaunchError) as error:
            raise pytest.UsageError(str(error)) from None
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Stores the first failure for torchrun."""
        if report.failed and not self._failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(report.longrepr if crash is None else crash.message).strip().splitlines() or [report.outcome]
            self._failed = f"{report.nodeid}: {said[0]}"

    def pytest_runtest_logfinish(self) -> None:
        """Ends the run if a node is lost, because no further test could start ranks there."""
        if self._cluster is not None and self._cluster.lost:
            self._session.shouldfail = self._cluster.lost

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Ends each process except rank 0 with rank 0's status, before other plugins write files that rank 0 writes."""
        if self._following:  # however the run has ended
            if session.exitstatus == pytest.ExitCode.INTERNAL_ERROR and self._held is not None:
                sys.stderr.write(self._held[0]._file.getvalue())  # noqa: SLF001 - there is no public way
            self._stderr, sys.stderr = sys.stderr, io.StringIO()  # pytest reports the exit there
            status = int(session.exitstatus) if self._status is None else self._status
            raise pytest.exit.Exception("the controller has ended", returncode=status)
        self._let_go()
        yield
        if self._cluster is not None:
            self._status = int(session.exitstatus)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Ends the other processes with rank 0's status, if this is rank 0; in the other processes, restores stderr."""
        if self._stderr is not None:
            sys.stderr = self._stderr
        if self._cluster is not None:
            status = int(pytest.ExitCode.INTERNAL_ERROR) if self._status is None else self._status
            if status:
                report_to_torchrun(self._failed or f"pytest ended with status {status}")
            self._cluster.close(status, first=True)


def _own(task: Task, session: pytest.Session) -> Hello:
    return hello(task, session.config.rootpath, {item.path for item in session.items})
