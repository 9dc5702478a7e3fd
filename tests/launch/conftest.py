"""One launcher for all tests of this folder: each of them has to leave it in working order for the next."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from pytest_ddpperf.launch import processes
from pytest_ddpperf.launch.launcher import Launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        launcher.machine()  # so that no test pays for the import of torch
        yield launcher


@pytest.fixture
def all_gone() -> Callable[[Iterable[int]], bool]:
    """Whether these processes are gone, or go within a few seconds."""

    def gone(pids: Iterable[int]) -> bool:
        left = set(pids)
        assert left
        deadline = time.monotonic() + 5
        while left and time.monotonic() < deadline:
            left = {pid for pid in left if processes._stat(pid)[:1] not in ([], ["Z"])}
            time.sleep(0.01)
        return not left

    return gone
