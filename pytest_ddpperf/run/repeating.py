"""Tests that are run several times in one session, for baselines of several runs."""

from __future__ import annotations

from typing import Any

import pytest


class Repeating:
    """The pytest plugin of a session whose items have tests more than once: pytest expects each but once."""

    def __init__(self) -> None:
        self._last = False  # whether the current item is the last one

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, nextitem: pytest.Item | None) -> None:
        """See which item is the last one."""
        self._last = nextitem is None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Let the progress end at 100 %: pytest counts the names of tests that have run, and expects as many as items.

        Not before the last item has its place on the terminal: what stands there already has not ended.
        """
        if self._last:
            item.session.testscollected = len({each.nodeid for each in item.session.items})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Tear a test down that follows itself, as the only one that is repeated: pytest would not."""
        if nextitem is item:
            after_it: Any = item.parent
            item.session._setupstate.teardown_exact(after_it)  # noqa: SLF001 - there is no public way
