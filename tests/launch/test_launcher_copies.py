"""Several launchers of one side: made when they are needed, ended together."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import TypeVar

import pytest

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch import payload, processes
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.faults.failures import RankEnd
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.launch.messages import Finished
from pytest_ddpperf.launch.zygote_process import ZygoteProcess

T = TypeVar("T")


@pytest.fixture
def launchers(launcher: Launcher) -> Iterator[Launchers]:
    """Launchers of which the first is a copy too: it differs from one that has imported torch in how it was started."""
    made = Launchers(lambda first: Launcher(like=first or launcher))
    yield made
    made.close()


def test_the_memory_that_missing_fork_servers_will_take_is_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first imports torch, and the others are copies of it."""
    launchers = Launchers(lambda first: Launcher(like=first))
    for running, number, expected in ((0, 1, 300), (0, 3, 300 + 2 * 40), (1, 3, 2 * 40), (5, 3, 0)):
        made = [SimpleNamespace(pid=17, has_preloaded=lambda _: False)] * running
        monkeypatch.setattr(launchers, "_made", made)
        assert launchers.missing_bytes(number) == expected * 2**20


FORKS_AS_NEWER_PYTHONS = """
import os, signal

os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
"""


@pytest.mark.slow
def test_a_copy_lives_without_the_wakeup_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As asyncio of Python 3.12 and newer does."""
    (tmp_path / "forks_as_newer_pythons.py").write_text(FORKS_AS_NEWER_PYTHONS)
    monkeypatch.syspath_prepend(tmp_path)
    with Launcher(preload=["forks_as_newer_pythons"]) as first:
        first.wait()
        with Launcher(preload=["forks_as_newer_pythons"], like=first) as copy:
            assert parent(copy) == copy.pid
            assert copy.pid is not None
            assert parent_of(copy.pid) == first.pid


def alone(launcher: Launcher, function: Callable[[RankContext], T]) -> LaunchResult[T]:
    return launcher.run(function, world_size=1, device="cpu", backend="gloo", timeout=60)


def parent(launcher: Launcher) -> int:
    """The parent of a rank of a launcher, which is its zygote."""
    return alone(launcher, lambda _ctx: os.getppid()).rank(0)


def parent_of(pid: int) -> int:
    return int(processes._stat(pid)[1])


def pids_of(launchers: Launchers) -> tuple[int | None, ...]:
    """The process ids of the fork servers; None for one that does not run."""
    return tuple(launcher.pid for launcher in launchers.every)


def known(pids: Iterable[int | None]) -> list[int]:
    return [pid for pid in pids if pid is not None]


def test_copies_of_the_first_run_launches_at_the_same_time_start_again_and_end_together(
    launchers: Launchers, tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    """Who writes waits for who reads: neither rank ends without the other. Sweeps of launches spare the copies."""
    launchers.start(3)
    launchers.wait(3)
    pids = known(pids_of(launchers))
    assert [parent_of(pid) for pid in pids[1:]] == [pids[0], pids[0]]
    os.mkfifo(tmp_path / "met")

    def run(number: int) -> int:
        def meet(_ctx: RankContext) -> int:
            with (tmp_path / "met").open("rw"[number]):
                return os.getppid()

        return alone(launchers[number], meet).rank(0)

    with ThreadPoolExecutor(2) as pool:
        assert [*pool.map(run, range(2))] == pids[:2]
    assert parent(launchers[2]) == pids[2]
    launchers.keep(1)
    assert pids_of(launchers) == (pids[0], None, None)
    assert all_gone(pids[1:])
    assert parent(launchers[1]) == pids_of(launchers)[1]
    last = known(pids_of(launchers))
    launchers.close()
    assert all_gone(last)


def test_a_note_of_ranks_on_a_gpu_is_reported_once(launchers: Launchers, monkeypatch: pytest.MonkeyPatch) -> None:
    remarks = iter(["GPU 0 of rank 0: 41 GiB", "", "GPU 0 of rank 0: 42 GiB", "GPU 1 of rank 1: 1 GiB"])

    def conducted(*_: object) -> tuple[list[RankEnd], float]:
        value = Finished(payload.dump_result(None, 0), 0, (), next(remarks))
        return [RankEnd(rank=0, report=value, status=0)], 0.0

    monkeypatch.setattr("pytest_ddpperf.launch.launcher.run_ranks", conducted)
    for number in (0, 0, 0, 1):
        alone(launchers[number], print)
    assert launchers.remarks == ("GPU 0 of rank 0: 41 GiB", "GPU 1 of rank 1: 1 GiB")


def test_a_copy_that_was_killed_between_launches_is_replaced(
    launchers: Launchers, monkeypatch: pytest.MonkeyPatch, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    """A kernel that needs memory kills it, and for a moment nobody here knows that."""
    launchers.wait(2)
    for noticed in (True, False):
        first, copy = known(pids_of(launchers))
        os.kill(copy, signal.SIGKILL)
        assert all_gone([copy])
        with monkeypatch.context() as patched:
            if not noticed:
                patched.setattr(ZygoteProcess, "usable", property(lambda _: True))
            fresh = parent(launchers[1])
        assert fresh != copy
        assert (first, parent_of(fresh)) == (pids_of(launchers)[0], first)


@pytest.mark.slow
def test_copies_end_with_the_first_and_are_made_of_the_next_one(
    launchers: Launchers, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    launchers.wait(2)
    pids = known(pids_of(launchers))
    os.kill(pids[0], signal.SIGKILL)
    assert all_gone(pids)
    second = parent(launchers[1])
    assert parent_of(second) == pids_of(launchers)[0]


@pytest.mark.slow
def test_no_launcher_waits_to_copy_a_busy_one(launchers: Launchers, tmp_path: Path) -> None:
    """A rank of the first launcher waits for a rank of the second one, which imports torch itself."""
    pipes = [tmp_path / "begun", tmp_path / "end"]
    for pipe in pipes:
        os.mkfifo(pipe)
    begun = os.open(pipes[0], os.O_RDWR)  # never without a reader

    def stays(_ctx: RankContext) -> str:
        pipes[0].write_text("x")
        return pipes[1].read_text()

    with ThreadPoolExecutor(1) as pool:
        staying = pool.submit(alone, launchers[0], stays)
        assert select.select([begun], [], [], 60)[0]
        launchers.start(2)
        alone(launchers[1], lambda _ctx: pipes[1].write_text("now"))
        assert staying.result().rank(0) == "now"
    os.close(begun)


def test_processes_left_by_a_killed_copy_end_with_its_launcher(
    launcher: Launcher, tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    """A daemon that has been forked has the environment of the zygote, whose mark has to be the copy's."""

    def leave_daemon(_ctx: RankContext) -> None:
        zygote, rank = os.getppid(), os.getpid()
        if os.fork() == 0:
            os.setsid()
            (tmp_path / "pids").write_text(f"{rank} {os.getpid()}")
            os.kill(zygote, signal.SIGKILL)
        signal.pause()

    with Launcher(like=launcher) as other:
        with pytest.raises(LaunchError, match="the process that forks ranks has ended; the ranks were stopped"):
            alone(other, leave_daemon)
        assert all_gone(map(int, (tmp_path / "pids").read_text().split()))
        assert parent(launcher) == launcher.pid


def seen(_: RankContext, *names: str) -> tuple[str | None, ...]:
    return (*map(os.environ.get, names), str(os.getppid()))


@pytest.mark.slow
def test_variables_of_some_ranks_do_not_reach_other_ranks(launchers: Launchers) -> None:
    """A copy of the zygote does for what a rank reads; what libraries read when they are loaded takes a fresh one."""
    named = launchers.with_variables((("NCCL_ALGO", "Ring"),))
    threads = launchers.with_variables((("OMP_NUM_THREADS", "2"),))
    assert launchers.with_variables((("NCCL_ALGO", "Ring"),)) is named
    assert launchers.with_variables(()) is launchers
    answers = [
        each[0].run(seen, "NCCL_ALGO", "OMP_NUM_THREADS", world_size=1, backend="gloo", device="cpu").rank(0)
        for each in (launchers, named, threads)
    ]
    assert [answer[:2] for answer in answers] == [(None, "1"), ("Ring", "1"), (None, "2")]
    parents = {int(answer[2]) for answer in answers if answer[2]}
    assert len(parents) == 3
    assert parents <= set(launchers.parents)
    (of_threads,) = known(pids_of(threads))
    assert parent_of(of_threads) == os.getpid(), "it has imported torch itself"
    assert named[0].pid is not None
    launchers.keep(0)
    assert named[0].pid is None
    launchers.close()
    assert set(launchers.parents) == {None}
