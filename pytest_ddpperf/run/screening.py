"""The passes over a suite before the last: all tests that measure are prepared, then screened; suspects are confirmed.

They tell nothing. When all are prepared, it is known how many benchmarks share the time, so all have as much of it.
Most suspects look worse by chance and are cleared soon. So they have a pass of their own: the last one then deals out
what they did not need, to benchmarks that come before them as well.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

from pytest_ddpperf.errors import DdpperfError
from pytest_ddpperf.run.pool import Pass

if TYPE_CHECKING:
    from pytest_ddpperf.run.session import Session


class Screening:
    """The pytest plugin of a session with a budget; ``session_of`` gives what the session owns."""

    def __init__(self, session_of: Callable[[], Session]) -> None:
        self._session_of = session_of
        self._on = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Run all tests that measure for their screening, unless one pass is as good."""
        items = [item for item in session.items if _measures(item)]
        if not items or _interrupted(session):
            return
        measuring = self._session_of()
        pool = measuring.pool
        pool.start(partial(_start, measuring))
        if not _in_passes(measuring):
            return
        pool.leave_out(item.nodeid for item in session.items if _tells_early(item))
        self._on = True
        try:
            for each, after in ((Pass.PREPARE, items[0]), (Pass.SCREEN, session.items[0])):
                if not self._ran(session, each, items, after):
                    return
            suspects = [item for item in items if pool.is_suspect(item.nodeid)]
            if suspects and pool.lacks:
                _tear_down_before(suspects[0])
                self._ran(session, Pass.CONFIRM, suspects, session.items[0])
        finally:
            self._on = False
            pool.begin_pass(Pass.LAST)

    def _ran(self, session: pytest.Session, each: Pass, items: Sequence[pytest.Item], after: pytest.Item) -> bool:
        """Run a silent pass over these tests, which another one comes ``after``; whether it got to its end."""
        self._session_of().pool.begin_pass(each)
        for item, following in zip(items, [*items[1:], after], strict=True):
            # A test that follows itself is torn down too: what its parents have set up is kept.
            after_it: Any = item.parent if following is item else following
            item.ihook.pytest_runtest_protocol(item=item, nextitem=after_it)
            if session.shouldstop or session.shouldfail:
                return False
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test without its reports: its last run fails, warns and prints the same."""
        if not self._on:
            return None
        sections: list[Any] = vars(item)["_report_sections"]  # that captured output is added to
        kept, properties = len(sections), len(item.user_properties)
        with warnings.catch_warnings(record=True), self._session_of().pool.screened(item.nodeid):
            runtestprotocol(item, log=False, nextitem=nextitem)
        del item.user_properties[properties:], sections[kept:]
        return True


def _measures(item: pytest.Item) -> bool:
    """Whether a test measures, and tells nothing before it has ended, as subtests do."""
    return "ddpperf" in getattr(item, "fixturenames", ()) and not _tells_early(item)


def _tells_early(item: pytest.Item) -> bool:
    """Whether a test measures, and tells before it has ended: no run of it can be silent."""
    return {"ddpperf", "subtests"} <= set(getattr(item, "fixturenames", ()))


def _start(measuring: Session) -> None:
    """Start what all benchmarks share, and wait for it; the first launch raises what prevents that."""
    with contextlib.suppress(DdpperfError):
        measuring.launchers[0].machine(gpus=measuring.settings.device != "cpu")
        if measuring.reference is not None:
            measuring.reference.launchers.wait(1)


def _tear_down_before(item: pytest.Item) -> None:
    """Tear down what this test does not need; its last run tells what fails there."""
    # pytest does so after each test, for the one that follows: when that ran, this one was not known.
    capture = item.config.pluginmanager.get_plugin("capturemanager")
    sections: list[Any] = vars(item)["_report_sections"]
    kept = len(sections)
    captured = contextlib.nullcontext() if capture is None else capture.item_capture("teardown", item)
    with warnings.catch_warnings(record=True), captured:
        pytest.CallInfo.from_call(
            partial(item.session._setupstate.teardown_exact, item),  # noqa: SLF001 - there is no public way
            when="teardown",
            reraise=(pytest.exit.Exception, KeyboardInterrupt),
        )
    del sections[kept:]


def _interrupted(session: pytest.Session) -> bool:
    """Whether no test is run, or a debugger would stop in each run of a test."""
    options = ("collectonly", "setuponly", "setupplan", "usepdb", "trace")
    failed = session.testsfailed and not session.config.option.continue_on_collection_errors
    asked = any(session.config.getoption(name, None) for name in options)
    return bool(failed) or asked or hasattr(session.config, "workerinput")


def _in_passes(measuring: Session) -> bool:
    """Whether some benchmarks may be given what others leave."""
    settings = measuring.settings
    several = measuring.pool.seconds is not None and measuring.tests > 1
    return several and not settings.counted_only and settings.save is None and settings.calibrate is None
