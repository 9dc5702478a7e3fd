"""One launcher for all tests of this folder: each of them has to leave it in working order for the next."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import Launcher

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


@pytest.fixture(scope="session")
def shared_launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        launcher.machine()  # so that no test pays for the import of torch
        yield launcher


@pytest.fixture
def launcher(shared_launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> Iterator[Launcher]:
    """A launcher that is checked after a test in which a launch failed: a good launch must still work.

    Tests launch what they like next, so one rank does for that.
    """
    failed: list[BaseException] = []
    run = shared_launcher.run

    def noting(*args: Any, **settings: Any) -> LaunchResult[Any]:
        try:
            return run(*args, **settings)
        except BaseException as error:
            failed.append(error)
            raise

    def add_up(_ctx: object) -> float:
        import torch
        import torch.distributed as dist

        total = torch.ones(1)
        dist.all_reduce(total)
        return total.item()

    monkeypatch.setattr(shared_launcher, "run", noting)
    yield shared_launcher
    if failed:
        assert run(add_up, world_size=1, device="cpu", backend="gloo").values == (1.0,)


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
