"""Every way in which a rank can fail, and that each is found at once and leaves nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.errors import LaunchError, RankFailed
from pytest_ddpperf.launch.launch_run import LaunchedRanks, LaunchEnd
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.messages import Finished, Job
from pytest_ddpperf.launch.rank_processes import RankProcesses
from pytest_ddpperf.launch.streams import Channel
from tests.factories import run_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pytest_ddpperf.launch.context import RankContext

AT_ONCE = 5.0
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


def all_reduce() -> float:
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def fails(launcher: Launcher, function: Any, *args: object, world_size: int = 2) -> RankFailed:
    start = time.monotonic()
    with pytest.raises(RankFailed) as caught:
        run_on_cpu(launcher, function, *args, world_size=world_size)
    assert time.monotonic() - start < AT_ONCE
    return caught.value


def test_a_rank_that_raises_is_reported_with_its_output_although_the_others_wait_for_it(launcher: Launcher) -> None:
    def raises(ctx: RankContext) -> None:
        if ctx.rank == ctx.world_size - 1:
            print("to stdout")
            print("to stderr", file=sys.stderr)
            os.system("echo from a child")  # noqa: S605
            raise ValueError("boom")
        all_reduce()

    error = fails(launcher, raises, world_size=4)
    assert error.rank == 3
    assert {("rank 3 stdout", "to stdout\nfrom a child\n"), ("rank 3 stderr", "to stderr\n")} <= {*error.sections}
    assert str(error).startswith("rank 3 of 4 raised ValueError: boom\n")
    assert "in raises" in str(error)
    assert "pytest_ddpperf/launch" not in str(error)
    zygote = launcher.pid
    assert run_on_cpu(launcher, lambda _ctx: os.getppid(), world_size=1).values == (zygote,), "later launches go on"


@pytest.mark.parametrize(
    ("end", "told", "line"),
    [
        (lambda: os._exit(3), "exited with status 3", ""),
        (lambda: sys.exit(3), "called sys.exit(3)", "in ends"),
        (lambda: ctypes.string_at(0), "was killed by SIGSEGV\n\nFatal Python error: Segmentation fault\n", "in ends"),
    ],
)
def test_a_rank_that_exits_is_reported_with_its_line(
    launcher: Launcher, end: Callable[[], None], told: str, line: str
) -> None:
    def ends(ctx: RankContext) -> None:
        if ctx.rank == 1:
            end()
        all_reduce()

    error = fails(launcher, ends)
    assert error.rank == 1
    assert str(error).startswith(f"rank 1 of 2 {told}")
    assert line in str(error)


def test_ranks_that_send_different_sizes_are_reported(launcher: Launcher) -> None:
    """gloo ends a rank that is not to blame."""

    def reduces(ctx: RankContext) -> None:
        import torch
        import torch.distributed as dist

        all_reduce()
        dist.all_reduce(torch.ones(4096 if ctx.rank == 1 else 64))

    error = fails(launcher, reduces, world_size=4)
    assert error.rank == 1
    assert str(error).startswith(
        "ranks called collectives of different sizes: rank 1 called another collective than the other ranks; "
    )


@pytest.mark.parametrize("fate", ["returns", "is killed"])
def test_no_grandchild_is_left(
    launcher: Launcher, tmp_path: Path, all_gone: Callable[[Iterable[int]], bool], fate: str
) -> None:
    def leaves_children(ctx: RankContext) -> None:
        children = [subprocess.Popen(["sleep", "600"], start_new_session=own) for own in (False, True)]
        forked = os.fork()
        if forked == 0:
            os.setsid()
            signal.pause()
        pids = [*(child.pid for child in children), forked]
        (tmp_path / f"{ctx.rank}").write_text(" ".join(map(str, pids)))
        all_reduce()
        if fate == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)

    with contextlib.nullcontext() if fate == "returns" else pytest.raises(RankFailed, match="was killed by SIGKILL"):
        run_on_cpu(launcher, leaves_children)
    pids = [int(pid) for rank in (0, 1) for pid in (tmp_path / f"{rank}").read_text().split()]
    assert len(pids) == 6
    assert all_gone(pids)


def shared_memory_of(pids: Iterable[int]) -> list[str]:
    """The names of torch's shared memory that these processes have made."""
    return [path.name for pid in pids for path in SHARED_MEMORY.glob(f"torch_{pid}_*")]


@pytest.mark.slow  # torch's manager of shared memory waits for two seconds
def test_no_shared_memory_is_left(launcher: Launcher, tmp_path: Path) -> None:
    """Neither torch's, where data workers share files, nor that of Python, which a resource tracker unlinks."""

    class Data:
        def __len__(self) -> int:
            return 20

        def __getitem__(self, _: int) -> Any:
            import torch

            return os.getpid(), torch.ones(1000)

    def shares(ctx: RankContext) -> None:
        from multiprocessing.shared_memory import SharedMemory

        import torch

        torch.multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
        batches: Any = iter(torch.utils.data.DataLoader(Data(), num_workers=2))  # type: ignore[arg-type]
        workers = {int(pid) for _ in range(2) for pid in next(batches)[0]}  # which have made more by now
        memory = SharedMemory(create=True, size=1000)
        (tmp_path / f"{ctx.rank}").write_text(f"{memory.name} {' '.join(map(str, workers))}")
        all_reduce()  # for the first to fail ends the other
        raise ValueError

    fails(launcher, shares)
    names, pids = [], []
    for rank in (0, 1):
        name, *makers = (tmp_path / f"{rank}").read_text().split()
        names.append(name)
        pids += [int(maker) for maker in makers]
    assert len(pids) == 4
    assert not any((SHARED_MEMORY / name).exists() for name in names)
    deadline = time.monotonic() + 10
    while shared_memory_of(pids) and time.monotonic() < deadline:  # torch's manager waits 2 s
        time.sleep(0.05)
    assert shared_memory_of(pids) == []


def test_nothing_of_nccl_is_left_of_ranks_that_are_killed(launcher: Launcher) -> None:
    """Its files go with those that have mapped them, and files of others stay."""
    mine, other = (SHARED_MEMORY / f"nccl-ddpperf{os.getpid()}{which}" for which in "ab")
    for path in (mine, other):
        path.write_bytes(bytes(4096))

    def maps(ctx: RankContext) -> None:
        with mine.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 4096)
        all_reduce()
        if ctx.rank == 1:
            raise ValueError
        signal.pause()
        mapped.close()

    try:
        with pytest.raises(RankFailed):
            run_on_cpu(launcher, maps)
        assert (mine.exists(), other.exists()) == (False, True)
    finally:
        mine.unlink(missing_ok=True)
        other.unlink()


@pytest.fixture
def ranks() -> Iterator[RankProcesses]:
    """Two ranks of a zygote that does nothing: what they send is what the test sends."""
    ours, theirs = socket.socketpair()

    class Zygote:
        control = ours

        def ask(self, *_: object) -> None:
            pass

    zygote: Any = Zygote()
    job = Job(call=b"", world_size=2, device="cpu", group=None, mode=None, timeout=1.0)
    with ours, theirs, RankProcesses([zygote] * 2, job) as ranks:
        yield ranks


def test_reports_that_have_arrived_count_after_the_deadline(ranks: RankProcesses) -> None:
    """This process may have been stopped, or busy."""
    for rank in ranks.ranks.values():
        Channel(rank.of_rank).send(Finished(b"", 1))
    assert LaunchedRanks(ranks).watch(time.monotonic() - 1) is LaunchEnd.FINISHED


def test_ranks_that_cannot_answer_do_not_hold_up_the_report(ranks: RankProcesses) -> None:
    """A signal may have stopped them; all wait for their stacks for the same time."""
    begun = time.monotonic()
    assert LaunchedRanks(ranks).stacks(0.05) == {0: "", 1: ""}
    assert ranks.calls(0.05) == {}
    assert time.monotonic() - begun < 2.0


def test_a_fork_server_that_a_signal_stopped_is_reported_and_replaced(launcher: Launcher) -> None:
    def stops(_ctx: RankContext) -> None:
        os.kill(os.getppid(), signal.SIGSTOP)
        threading.Event().wait()

    with Launcher(like=launcher) as copied:
        start = time.monotonic()
        with pytest.raises(LaunchError, match=r"^a signal stopped the process that forks ranks, "):
            run_on_cpu(copied, stops, timeout=1)
        assert time.monotonic() - start < AT_ONCE
        assert run_on_cpu(copied, lambda ctx: ctx.rank).values == (0, 1)


@pytest.mark.slow
def test_ranks_have_the_options_of_the_interpreter() -> None:
    code = (
        "import sys; from pytest_ddpperf.launch.launcher import Launcher\n"
        "with Launcher() as launcher:\n"
        "    print(launcher.run(lambda _: (sys.flags.optimize, sys.warnoptions), world_size=1, device='cpu').rank(0))"
    )
    done = subprocess.run([sys.executable, "-O", "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "(1, ['error'])\n"
