"""One launcher for all tests of this folder: each of them has to leave it in working order for the next."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_ddpperf.launch.launcher import Launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        launcher.machine()  # so that no test pays for the import of torch
        yield launcher


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def all_gone() -> Callable[[Iterable[int]], bool]:
    """Whether these processes are gone, or go within a few seconds."""

    def gone(pids: Iterable[int]) -> bool:
        left = set(pids)
        assert left
        deadline = time.monotonic() + 5
        while left and time.monotonic() < deadline:
            left = {pid for pid in left if _alive(pid)}
            time.sleep(0.01)
        return not left

    return gone
