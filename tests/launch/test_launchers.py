"""Several launchers of one side: made when they are needed, ended together."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch import Launcher, Launchers, LaunchResult, RankContext

T = TypeVar("T")


def test_each_number_is_a_launcher_of_its_own() -> None:
    made: list[Launcher] = []

    def make() -> Launcher:
        made.append(Launcher())
        return made[-1]

    launchers = Launchers(make)
    assert made == []
    third = launchers[2]
    assert [launchers[i] for i in range(3)] == made == [launchers[0], launchers[1], third]
    assert launchers.pids == (None,) * 3


def test_they_run_launches_at_the_same_time_and_end_together(
    tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    """Who writes waits for who reads: neither rank ends without the other."""
    launchers = Launchers(Launcher)
    launchers.start(2)
    pids = launchers.pids
    os.mkfifo(tmp_path / "met")

    def run(mode: str) -> int:
        def meet(_ctx: RankContext) -> int:
            with (tmp_path / "met").open(mode):
                return os.getppid()

        return alone(launchers["rw".index(mode)], meet).rank(0)

    with ThreadPoolExecutor(2) as pool:
        assert tuple(pool.map(run, "rw")) == pids
    launchers.close()
    assert all_gone(known(pids))


def test_abort_ends_what_other_threads_have_under_way(
    tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    launchers = Launchers(Launcher)
    launchers.start(2)
    os.mkfifo(tmp_path / "there")

    def stays(_ctx: RankContext) -> None:
        (tmp_path / "there").write_text("x")
        signal.pause()

    there = os.open(tmp_path / "there", os.O_RDWR)  # never without a reader
    with ThreadPoolExecutor(2) as pool:
        ends = [pool.submit(alone, launchers[number], stays) for number in (0, 1)]
        assert os.read(there, 1) + os.read(there, 1) == b"xx"
        pids = known(launchers.pids)
        launchers.abort()
        for end in ends:
            with pytest.raises(LaunchError):
                end.result()
    os.close(there)
    launchers.close()
    assert all_gone(pids)


def test_those_that_are_not_kept_start_again_when_they_are_needed(all_gone: Callable[[Iterable[int]], bool]) -> None:
    launchers = Launchers(Launcher)
    launchers.start(2)
    launchers.wait(2)
    kept, ended = known(launchers.pids)
    launchers.keep(1)
    assert launchers.pids == (kept, None)
    assert all_gone([ended])
    assert alone(launchers[1], lambda _ctx: os.getppid()).rank(0) == launchers.pids[1]
    launchers.close()


def alone(launcher: Launcher, function: Callable[[RankContext], T]) -> LaunchResult[T]:
    return launcher.run(function, world_size=1, device="cpu", backend="gloo", timeout=60)


def known(pids: Iterable[int | None]) -> list[int]:
    return [pid for pid in pids if pid is not None]
