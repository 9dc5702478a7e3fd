"""Several launchers of one side: made when they are needed, ended together."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch import payload
from pytest_ddpperf.launch.context import Gpus, RankContext, TorchMachine
from pytest_ddpperf.launch.faults.failures import RankEnd
from pytest_ddpperf.launch.launch_run import LaunchResult
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.launchers import Launchers
from pytest_ddpperf.launch.messages import Finished
from pytest_ddpperf.launch.rank_processes import RankProcesses
from pytest_ddpperf.launch.zygote_process import ZygoteProcess

T = TypeVar("T")


@pytest.fixture
def launchers(shared_launcher: Launcher) -> Launchers:
    """Launchers of which the first is a copy too: it differs from one that has imported torch in how it was started."""
    return Launchers(lambda first: Launcher(like=first or shared_launcher))


def test_each_number_is_a_launcher_of_its_own() -> None:
    made: list[Launcher] = []

    def make(first: Launcher | None) -> Launcher:
        assert first is (made[0] if made else None)
        made.append(Launcher(like=first))
        return made[-1]

    launchers = Launchers(make)
    assert made == []
    third = launchers[2]
    assert [launchers[i] for i in range(3)] == made == [launchers[0], launchers[1], third]
    assert launchers.pids == (None,) * 3


@pytest.mark.parametrize(
    ("running", "number", "expected"),
    [
        pytest.param(0, 1, 300, id="the first imports torch"),
        pytest.param(0, 3, 300 + 2 * 40, id="and the others are copies of it"),
        pytest.param(1, 3, 2 * 40, id="also later"),
        pytest.param(5, 3, 0, id="all are there"),
    ],
)
def test_the_memory_of_those_that_do_not_run_is_told(
    monkeypatch: pytest.MonkeyPatch, running: int, number: int, expected: int
) -> None:
    monkeypatch.setattr(Launchers, "pids", (*range(17, 17 + running), None))
    assert Launchers(lambda first: Launcher(like=first)).missing_bytes(number) == expected * 2**20


FORKS_AS_NEWER_PYTHONS = """
import os, signal

os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
"""


@pytest.mark.slow
def test_a_copy_lives_where_a_fork_takes_the_wakeup_descriptor_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As asyncio of Python 3.12 and newer does."""
    (tmp_path / "forks_as_newer_pythons.py").write_text(FORKS_AS_NEWER_PYTHONS)
    monkeypatch.syspath_prepend(tmp_path)
    with Launcher(preload=["forks_as_newer_pythons"]) as first:
        first.wait()
        with Launcher(preload=["forks_as_newer_pythons"], like=first) as copy:
            assert alone(copy, lambda _ctx: os.getppid()).rank(0) == copy.pid
            assert copy.pid is not None
            assert parent_of(copy.pid) == first.pid


def test_they_run_launches_at_the_same_time_and_end_together(
    launchers: Launchers, tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    """Who writes waits for who reads: neither rank ends without the other."""
    launchers.wait(2)
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


def test_those_that_are_not_kept_start_again_when_they_are_needed(
    launchers: Launchers, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    launchers.start(2)
    launchers.wait(2)
    kept, ended = known(launchers.pids)
    launchers.keep(1)
    assert launchers.pids == (kept, None)
    assert all_gone([ended])
    assert alone(launchers[1], lambda _ctx: os.getppid()).rank(0) == launchers.pids[1]
    launchers.close()


def test_what_ranks_remark_on_a_gpu_is_told_once(launchers: Launchers, monkeypatch: pytest.MonkeyPatch) -> None:
    remarks = iter(["GPU 0 of rank 0: 41 GiB", "", "GPU 0 of rank 0: 42 GiB", "GPU 1 of rank 1: 1 GiB"])

    def conducted(*_: object) -> tuple[list[RankEnd], float]:
        value = Finished(payload.dump_result(None, 0), 0, (), next(remarks))
        return [RankEnd(rank=0, report=value, status=0)], 0.0

    monkeypatch.setattr("pytest_ddpperf.launch.launcher.run_ranks", conducted)
    for number in (0, 0, 0, 1):
        alone(launchers[number], print)
    assert launchers.remarks == ("GPU 0 of rank 0: 41 GiB", "GPU 1 of rank 1: 1 GiB")
    launchers.close()


def test_ranks_with_a_gpu_have_longer_to_end(launchers: Launchers, monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[float] = []
    gpus = Gpus(names=("H200",), pci=(None,))
    machine = TorchMachine(torch="2.13.0", cuda="13.0", gpus=gpus, backends=("gloo", "nccl"))

    def conducted(here: RankProcesses, *_: object) -> Any:
        here.sweep()
        return [RankEnd(rank=0, report=Finished(payload.dump_result(None, 0), 0), status=0)], 0.0

    monkeypatch.setattr("pytest_ddpperf.launch.launcher.run_ranks", conducted)
    monkeypatch.setattr(Launcher, "_sweep", lambda _launcher, _zygotes, seconds: swept.append(seconds))
    monkeypatch.setattr(Launcher, "machine", lambda _launcher, **_: machine)
    for device in ("cpu", "cuda"):
        launchers[0].run(print, world_size=1, device=device, backend="gloo")
    assert swept == [5.0, 17.0]
    launchers.close()


def alone(launcher: Launcher, function: Callable[[RankContext], T]) -> LaunchResult[T]:
    return launcher.run(function, world_size=1, device="cpu", backend="gloo", timeout=60)


def known(pids: Iterable[int | None]) -> list[int]:
    return [pid for pid in pids if pid is not None]


def test_the_others_are_copies_of_the_first_and_outlive_its_launches(
    launchers: Launchers, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    launchers.wait(3)
    first, *copies = known(launchers.pids)
    assert [parent_of(pid) for pid in copies] == [first, first]
    # What a launch leaves behind is swept; copies are none of it.
    assert alone(launchers[0], lambda _ctx: os.getppid()).rank(0) == first
    assert alone(launchers[2], lambda _ctx: os.getppid()).rank(0) == copies[1]
    launchers.close()
    assert all_gone([first, *copies])


def test_a_killed_copy_is_made_anew(launchers: Launchers, all_gone: Callable[[Iterable[int]], bool]) -> None:
    launchers.wait(2)
    first, copy = known(launchers.pids)
    os.kill(copy, signal.SIGKILL)
    assert all_gone([copy])
    fresh = alone(launchers[1], lambda _ctx: os.getppid()).rank(0)
    assert fresh != copy
    assert (first, parent_of(fresh)) == (launchers.pids[0], first)
    launchers.close()


@pytest.mark.slow
def test_copies_end_with_the_first_and_are_made_of_the_next_one(
    launchers: Launchers, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    launchers.wait(2)
    pids = known(launchers.pids)
    os.kill(pids[0], signal.SIGKILL)
    assert all_gone(pids)
    second = alone(launchers[1], lambda _ctx: os.getppid()).rank(0)
    assert parent_of(second) == launchers.pids[0]
    launchers.close()


def test_a_copy_that_has_ended_when_a_launch_begins_is_replaced(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    """A kernel that needs memory kills it, and for a moment nobody here knows that."""
    with Launcher(like=launcher) as copied:
        copied.wait()
        first = copied.pid
        assert first is not None
        monkeypatch.setattr(ZygoteProcess, "usable", property(lambda _: True))
        os.kill(first, signal.SIGKILL)
        assert all_gone([first])
        assert copied.run(lambda ctx: ctx.rank, world_size=2, device="cpu", timeout=20).values == (0, 1)
        assert copied.pid != first


def test_a_copy_that_ends_in_a_launch_is_told_of(launchers: Launchers) -> None:
    launchers.wait(2)

    def kill_parent(_ctx: RankContext) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    with pytest.raises(LaunchError, match="the process that ranks are forked from has ended; the ranks were stopped"):
        alone(launchers[1], kill_parent)
    launchers.close()


@pytest.mark.slow
def test_other_threads_per_rank_need_a_zygote_of_their_own() -> None:
    def of(threads: str, like: Launcher | None = None) -> Launcher:
        return Launcher(environ={**os.environ, "OMP_NUM_THREADS": threads}, like=like)

    with of("1") as first, of("2", first) as other:
        other.wait()
        assert other.pid is not None
        assert parent_of(other.pid) == os.getpid()


@contextmanager
def busy(launchers: Launchers, folder: Path) -> Iterator[None]:
    """Within, a rank of the first launcher waits for somebody to write into ``end``."""
    pipes = [folder / "begun", folder / "end"]
    for pipe in pipes:
        os.mkfifo(pipe)
    begun = os.open(pipes[0], os.O_RDWR)  # never without a reader

    def stays(_ctx: RankContext) -> str:
        pipes[0].write_text("x")
        return pipes[1].read_text()

    with ThreadPoolExecutor(1) as pool:
        staying = pool.submit(alone, launchers[0], stays)
        assert select.select([begun], [], [], 60)[0]
        yield
        assert staying.result().rank(0) == "now"
    os.close(begun)
    launchers.close()


@pytest.mark.slow
def test_nobody_waits_for_a_busy_one_to_copy_it(launchers: Launchers, tmp_path: Path) -> None:
    with busy(launchers, tmp_path):
        alone(launchers[1], lambda _ctx: (tmp_path / "end").write_text("now"))


@pytest.mark.slow
def test_starting_a_copy_does_not_wait_for_a_busy_one(launchers: Launchers, tmp_path: Path) -> None:
    with busy(launchers, tmp_path):
        launchers.start(2)
        (tmp_path / "end").write_text("now")


def test_what_a_killed_copy_leaves_behind_ends_with_its_launcher(
    shared_launcher: Launcher, tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]
) -> None:
    """A daemon that has been forked has the environment of the zygote, whose mark has to be the copy's."""

    def leave_daemon(_ctx: RankContext) -> None:
        child = os.fork()
        if child == 0:
            os.setsid()
            (tmp_path / "daemon").write_text(str(os.getpid()))
            os.kill(parent, signal.SIGKILL)
            signal.pause()
        signal.pause()

    with Launcher(like=shared_launcher) as other:
        other.wait()
        parent = known([other.pid])[0]
        with pytest.raises(LaunchError):
            alone(other, leave_daemon)
        assert all_gone([int((tmp_path / "daemon").read_text())])
        assert alone(shared_launcher, lambda _ctx: os.getppid()).rank(0) == shared_launcher.pid


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def seen(_: RankContext, *names: str) -> tuple[str | None, ...]:
    return (*map(os.environ.get, names), str(os.getppid()))


@pytest.mark.slow
def test_ranks_with_variables_of_their_own_have_them_and_others_do_not(launchers: Launchers) -> None:
    """A copy of the zygote does for what a rank reads; what libraries read when they are loaded takes a fresh one."""
    try:
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
        assert named[0].pid is not None
        launchers.keep(0)
        assert named[0].pid is None
    finally:
        launchers.close()
    assert set(launchers.parents) == {None}
