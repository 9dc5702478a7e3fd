"""Makes a launch end before pytest-timeout ends the test, so that pytest shows the launch's error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from pytest_ddpperf.errors import RanksTimedOut, extended
from pytest_ddpperf.instruments.clock import system_time as time

T = TypeVar("T")
_REPORT_SECONDS = 5.0  # for the report of a launch after its deadline
_LEAST_SECONDS = 0.1


class TestTimeout:
    """The pytest plugin that records when a test begins and when pytest-timeout will end it."""

    __test__ = False  # pytest's mark, for classes with such a name

    def __init__(self) -> None:
        self._given, self._ends = 0.0, float("inf")

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, settings: Any) -> None:
        """Records the deadline of the test that begins; pytest-timeout calls this when it sets its timer."""
        self._given, self._ends = settings.timeout, time.monotonic() + settings.timeout

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self) -> None:
        """Records that there is no deadline."""
        self._ends = float("inf")

    def limited(self, run: Callable[..., T]) -> Callable[..., T]:
        """Wraps ``run`` to shorten its ``timeout``, so that ``run`` fails before pytest-timeout ends the test."""

        @functools.wraps(run)
        def ends_before(*args: Any, timeout: float, **more: Any) -> T:
            __tracebackhide__ = True
            begun = time.monotonic()
            left = self._ends - begun
            most = max(left - _REPORT_SECONDS, left / 2, _LEAST_SECONDS)
            try:
                return run(*args, timeout=min(timeout, most), **more)
            except RanksTimedOut as late:
                if timeout <= most or time.monotonic() - begun < most:  # a stage has its own deadline
                    raise
                told = f"pytest-timeout ends this test after {self._given:g} s, so the launch had {most:.1f} s of them"
                raise extended(late, after=f"\n\n{told}: raise pytest-timeout's timeout") from None

        return ends_before
