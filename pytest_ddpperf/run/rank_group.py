"""The ranks of the fixture ``ddpperf_group``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from pytest_ddpperf.errors import RankSkipped, SettingError
from pytest_ddpperf.launch.launch_result import LaunchResult
from pytest_ddpperf.run.session import Session
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.workload import unfit

T = TypeVar("T")


class RankGroup:
    """Ranks for functional tests: fresh ones for every ``run``."""

    def __init__(self, session: Session, settings: Settings, sections: list[tuple[str, str]], test: str) -> None:
        self._session = session
        self._settings = settings
        self._sections = sections
        self._file = test.partition("::")[0]

    @property
    def world_size(self) -> int:
        """Number of ranks: the largest of ``--ddpperf-world-size``."""
        return max(self._session.world_sizes(self._settings))

    def run(self, function: Callable[..., T], *args: Any) -> LaunchResult[T]:
        """Calls ``function(ctx, *args)`` on every rank of a fresh process group.

        Returns:
            What each rank returned: ``result.rank(0)``, ``result.values``.

        Raises:
            RankFailed: a rank raised, exited, was killed or blocked; the guilty one comes first.
            SettingError: ``function`` cannot be called so.
            PayloadError: function, arguments or a result cannot be sent, or a result cannot be read in time.
        """
        __tracebackhide__ = True
        if not callable(function):
            kind = type(function).__name__
            raise SettingError(f"ddpperf_group.run: expected a function of ctx and the arguments, not a {kind}")
        problem = unfit(function, "ctx", *(f"argument {number}" for number, _ in enumerate(args, 1)))
        if problem is not None:
            raise SettingError(f"ddpperf_group.run: {problem}")
        launchers = self._session.launchers
        try:
            launchers.wait(1, self._file, self.world_size)
            result = launchers[0].run(
                function,
                *args,
                world_size=self.world_size,
                backend=self._settings.backend,
                device=self._settings.device,
                timeout=self._settings.timeout,
            )
        except RankSkipped as skipped:
            pytest.skip(str(skipped))
        launchers.note(self._file, result.imports)
        self._sections.extend(result.sections)
        return result
