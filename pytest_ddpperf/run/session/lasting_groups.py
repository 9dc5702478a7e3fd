"""Ranks of ``ddpperf_group`` that live on from test to test, until their module or the session ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from pytest_ddpperf.launch.lasting import LastingRanks
from pytest_ddpperf.launch.launcher import Launcher

SCOPES: Mapping[str, Any] = {"module": pytest.File, "session": pytest.Session}


class LastingGroups:
    """The ranks of each scope, for each number of ranks, backend and device."""

    def __init__(self, make: Callable[[], Launcher]) -> None:
        self._make = make
        self._ranks: dict[str, dict[tuple[object, ...], LastingRanks]] = {}  # by the node that they last for

    def of(self, node: pytest.Item, scope: str, kind: tuple[object, ...]) -> LastingRanks:
        """The ranks that a test shares with others of its module, or of the session."""
        holder = node.getparent(SCOPES[scope]) or node
        if holder.nodeid not in self._ranks:
            self._ranks[holder.nodeid] = {}
            holder.addfinalizer(partial(self._end, holder.nodeid))
        ranks = self._ranks[holder.nodeid]
        if kind not in ranks:
            ranks[kind] = LastingRanks(self._make())
        return ranks[kind]

    def _end(self, name: str) -> None:
        with ExitStack() as closing:  # closes all, whatever one of them raises
            for ranks in self._ranks.pop(name, {}).values():
                closing.callback(ranks.close)

    def close(self) -> None:
        """End all ranks; tests that follow start others."""
        with ExitStack() as closing:
            for ranks in (each for of_scope in self._ranks.values() for each in of_scope.values()):
                closing.callback(ranks.close)
