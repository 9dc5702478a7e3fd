"""Two passes over a suite with a budget: tests that are undecided after the first pass run again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.runner import runtestprotocol

from pytest_ddpperf.errors import DdpperfError, SettingError

if TYPE_CHECKING:
    from pytest_ddpperf.run.session.session import Session

_RERUNFAILURES = ("rerunfailures", "pytest_rerunfailures")


class Passes:
    """The pytest plugin of a session with a budget, which holds back the reports of undecided tests."""

    def __init__(self, session_of: Callable[[], Session]) -> None:
        self._session_of = session_of
        self._held: dict[pytest.Item, Sequence[pytest.TestReport]] = {}
        self._first = False  # whether the first of two passes runs

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Any:
        """Runs undecided tests again, the most urgent first, after pytest has run all tests."""
        measuring = [item for item in session.items if _measures(item)]
        if not measuring or (session.testsfailed and not session.config.option.continue_on_collection_errors):
            return (yield)
        ours = self._session_of()
        with contextlib.suppress(DdpperfError):  # the first launch raises it
            ours.sides.launchers[0].machine(gpus=ours.settings.device != "cpu")
            if ours.sides.reference is not None:
                ours.sides.reference.launchers.wait(1)
        ours.budget.start()
        ours.budget.two_passes = self._first = _may_run_again(ours, session, measuring)
        try:
            ran = yield
            self._first = ours.budget.runs_once = False
            if self._held:
                self._run_again(ours, session)
            return ran
        finally:  # also if the session was ended
            self._first = False
            for item, reports in self._held.items():  # with the reports of the first pass
                try:
                    ours.extensions.tell(item.nodeid)
                except SettingError as problem:  # a hook's
                    reports[-1].outcome, reports[-1].longrepr = "failed", str(problem)
                _log(item, reports)
            self._held.clear()

    def _run_again(self, ours: Session, session: pytest.Session) -> None:
        by_id = {item.nodeid: item for item in self._held}
        while tests := [test for test in ours.budget.second_pass() if by_id.get(test) in self._held]:
            if session.shouldstop or session.shouldfail:
                return
            item = by_id[tests[0]]
            del self._held[item]
            ours.run_again(item.nodeid)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)  # which test follows depends on this one

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Runs a test of the first pass; holds its reports back if the test is undecided."""
        if not self._first:
            return None
        self._session_of().budget.runs_once = not _measures(item)
        if not _measures(item):
            return None
        sections: list[Any] = vars(item)["_report_sections"]  # captured output is added to them
        kept, properties = len(sections), len(item.user_properties)
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if self._session_of().budget.holds(item.nodeid):
            self._held[item] = reports
            del item.user_properties[properties:], sections[kept:]
        else:
            _log(item, reports)
        return True


def _log(item: pytest.Item, reports: Sequence[pytest.TestReport]) -> None:
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _measures(item: pytest.Item) -> bool:
    """Returns whether a test measures and has no subtests, which would report results before the test's end."""
    names = set(getattr(item, "fixturenames", ()))
    return "ddpperf" in names and "subtests" not in names


def _may_run_again(ours: Session, session: pytest.Session, measuring: Sequence[pytest.Item]) -> bool:
    """Returns whether tests may run again; not with a debugger, because the debugger would stop in each run."""
    settings, options = ours.settings, ("setuponly", "setupplan", "usepdb", "trace")
    asked = any(session.config.getoption(name, None) for name in options)
    rerun: Any = next(filter(None, map(session.config.pluginmanager.get_plugin, _RERUNFAILURES)), None)
    if rerun is not None and any(map(rerun.get_reruns_count, measuring)):  # its protocol replaces ours
        return False
    alone = settings.counts == "only" or settings.save is not None or settings.calibrate is not None
    return len(measuring) > 1 and not (asked or alone)
