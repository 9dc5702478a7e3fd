"""The zygote and its controller: how each takes the end of the other."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pytest_ddpperf.errors import LaunchError, RanksTimedOut
from pytest_ddpperf.launch import processes, zygote_process
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.launch.messages import Preload
from pytest_ddpperf.launch.zygote_process import ZygoteEnded, ZygoteProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


CONTROLLER = """
import os, signal, subprocess, sys
from pathlib import Path
from pytest_ddpperf.launch.launcher import Launcher

def block(ctx, folder, zygotes):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    part = Path(folder, f"{ctx.rank}.part")
    part.write_text(f"{os.getpid()} {child.pid} {zygotes}")
    part.rename(part.with_suffix(".pids"))
    signal.pause()

first = Launcher()
first.wait()
copy = Launcher(like=first)
copy.wait()
group = {"world_size": 2, "device": "cpu", "backend": "gloo", "projects": sys.argv[1:]}
copy.run(block, sys.argv[1], f"{first.pid} {copy.pid}", **group)
"""


def stop(pid: int) -> None:
    deadline = time.monotonic() + 20
    while not processes.is_stopped(pid):
        os.kill(pid, signal.SIGSTOP)  # again: the end of the thread that started it may have let it go on
        assert time.monotonic() < deadline


@pytest.mark.slow  # a fast test below has a zygote without torch
def test_nothing_outlives_a_killed_controller(tmp_path: Path, all_gone: Callable[[Iterable[int]], bool]) -> None:
    """A signal has stopped its zygote and a copy of it, where SIGTERM would wait until somebody continues them."""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", CONTROLLER, str(tmp_path)], env=environ) as controller:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.glob("*.pids"))) < 2:
            assert controller.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        rows = [[*map(int, path.read_text().split())] for path in tmp_path.glob("*.pids")]
        (files,) = tmp_path.glob("ddpperf-files-*")  # of the launch alone
        for zygote in rows[0][2:]:
            stop(zygote)
        controller.kill()
        assert all_gone({pid for row in rows for pid in row})
    assert not files.exists()


@pytest.mark.slow
def test_files_of_launches_are_removed_with_the_fork_server_although_the_last_launch_had_none(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Launcher(like=launcher) as copied:
        for projects in ([str(tmp_path)], []):
            copied.run(print, world_size=1, device="cpu", backend="gloo", projects=projects)
        assert [*tmp_path.glob("ddpperf-files-*")]
    assert not [*tmp_path.glob("ddpperf-files-*")]


def closed_in_a_copy(launcher: Launcher) -> None:
    """Forks this process, and closes the launcher in the copy."""
    copy = os.fork()
    if copy == 0:
        try:
            launcher.close()
        finally:
            os._exit(0)
    os.waitpid(copy, 0)


def test_a_forked_copy_of_the_controller_leaves_the_fork_server_alone(launcher: Launcher) -> None:
    launcher.wait()
    zygote = launcher.pid
    closed_in_a_copy(launcher)
    assert launcher.run(lambda _ctx: os.getppid(), world_size=1, device="cpu").rank(0) == zygote


def test_a_forked_copy_of_the_controller_leaves_the_nodes_alone() -> None:
    """Its end would end the connections of both, as the two share them."""
    closed, ours = os.pipe()
    closed_in_a_copy(Launcher(nodes=SimpleNamespace(close=lambda: os.write(ours, b"x"))))
    os.close(ours)
    with os.fdopen(closed, "rb") as told:
        assert told.read() == b""


def test_a_request_with_too_many_variables_is_a_reason_not_to_preload(launcher: Launcher) -> None:
    """A pod of Kubernetes has some for each service of its namespace."""
    request = Preload(environ={"SERVICES": "x" * 2**20}, path=(), directory="/", module="json")
    launcher.wait()
    with launcher.idle_zygote() as zygote:
        assert zygote is not None
        assert zygote.preload(request)().reason == "cannot be requested: Message too long"
    launcher.run(print, world_size=1, device="cpu", backend="gloo")


@pytest.mark.slow
def test_the_fork_server_has_one_thread_although_its_libraries_start_some() -> None:
    with Launcher(environ={**os.environ, "OMP_NUM_THREADS": "4"}) as launcher:
        launcher.wait()
        assert len(os.listdir(f"/proc/{launcher.pid}/task")) == 1  # noqa: PTH208


@pytest.mark.slow
def test_an_extra_thread_of_the_fork_server_is_reported_if_ranks_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    (tmp_path / "starts_a_thread.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    hint = "the process that forks ranks has 1 extra thread: ranks would wait forever for a lock"
    with Launcher(preload=["starts_a_thread"]) as launcher, pytest.raises(RanksTimedOut, match=hint):
        launcher.run(lambda _: signal.pause(), world_size=1, device="cpu", backend="gloo", timeout=2)


WITHOUT_TORCH = """
import sys, threading
from pytest_ddpperf.launch import launcher

launcher._PRELOADED = ()
made = launcher.Launcher(preload=[sys.argv[1]])
thread = threading.Thread(target=made.start if sys.argv[1] == "blocks" else made.wait)
thread.start()
thread.join()
print(made.pid, flush=True)
input()
"""


@pytest.mark.parametrize(("module", "stopped"), [("blocks", False), ("blocks", True), ("leaves", True)])
def test_a_fork_server_and_its_descendants_end_with_its_controller(
    tmp_path: Path, all_gone: Callable[[Iterable[int]], bool], module: str, *, stopped: bool
) -> None:
    """Also while it imports, and where a signal has stopped it. The thread that has started it has ended before."""
    (tmp_path / "torch.py").touch()  # whose import would take seconds
    (tmp_path / "blocks.py").write_text("import os, time\nos.mkfifo(__file__ + '.begun')\ntime.sleep(600)\n")
    child = "child = subprocess.Popen(['sleep', '600'], start_new_session=True)"
    noted = "pathlib.Path(__file__ + '.begun').write_text(str(child.pid))"
    (tmp_path / "leaves.py").write_text(f"import pathlib, subprocess\n{child}\n{noted}\n")
    begun = tmp_path / f"{module}.py.begun"
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-c", WITHOUT_TORCH, module]
    with subprocess.Popen(command, stdin=-1, stdout=-1, env=environ) as controller:
        assert controller.stdout is not None
        zygote = int(controller.stdout.readline())
        deadline = time.monotonic() + 60
        while not begun.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if stopped:
            stop(zygote)
        controller.kill()
        assert all_gone([zygote, *([int(begun.read_text())] if module == "leaves" else [])])


ENDED = "the process that forks ranks"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("os.kill(os.getpid(), signal.SIGSTOP)", f"a signal stopped {ENDED}, so all ranks were"),
        ("os.kill(os.getpid(), signal.SIGKILL)", f"{ENDED} was killed by SIGKILL; the ranks were stopped$"),
        (
            "print('no licence', flush=True); os._exit(3)",
            f"{ENDED} exited with status 3; the ranks were stopped\nno licence$",
        ),
        pytest.param(
            "import threading; threading.Event().wait()",
            r"the import of torch took more than 20 s\n(?s:.*)ends\.py\", line 2 in <module>",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_fork_server_whose_import_fails_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, told: str
) -> None:
    (tmp_path / "ends.py").write_text(f"import os, signal\n{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(zygote_process, "_READY_SECONDS", 20.0)
    with (
        contextlib.closing(ZygoteProcess(os.environ, ["ends"])) as zygote,
        pytest.raises(LaunchError, match=f"^{told}"),
    ):
        zygote.wait_until_ready()


class Stuck:
    """The process of a zygote, which takes no request and which the kernel does not end."""

    returncode: int | None = None

    def __init__(self) -> None:
        self.pid, self.waited, self.killed = os.getpid(), list[float](), 0

    def poll(self) -> None:
        return None

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        raise subprocess.TimeoutExpired("zygote", seconds)

    def kill(self) -> None:
        self.killed += 1


@pytest.fixture
def stuck() -> Iterator[tuple[ZygoteProcess, Any]]:
    zygote = ZygoteProcess.__new__(ZygoteProcess)
    zygote._folder, zygote._numbers = "", itertools.count()
    zygote.mark, zygote._ready, zygote._output = "mark", True, Path(os.devnull).open("rb")  # noqa: SIM115
    process: Any = Stuck()
    zygote._process = process
    zygote.control, of_zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with zygote.control, of_zygote, zygote._output:
        yield zygote, process


def test_a_fork_server_that_takes_no_request_is_reported(stuck: tuple[ZygoteProcess, Any]) -> None:
    zygote, _ = stuck

    def ask_on() -> None:
        for _ in range(100_000):  # until no more fits into its socket
            zygote.ask("sweep", 0.0)

    zygote.control.settimeout(0.01)
    with pytest.raises(ZygoteEnded, match=r"forks ranks no longer answers; the ranks were stopped$"):
        ask_on()


def test_a_fork_server_that_cannot_be_killed_is_left_and_its_files_are_removed(
    stuck: tuple[ZygoteProcess, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (zygote, process), killed = stuck, list[str]()
    monkeypatch.setattr(processes, "kill_marked", lambda _, mark: killed.append(mark))
    folder = tmp_path / "files"
    (folder / "checkpoints").mkdir(parents=True)
    zygote.fork(0, (), str(folder), ())
    zygote.close()
    assert not folder.exists()
    assert process.waited == [zygote_process._END_SECONDS] * 2
    assert (process.killed, killed) == (1, ["mark"])


def test_a_fork_server_that_cannot_be_started_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", fails)
    with pytest.raises(LaunchError, match=r"^the process that forks ranks cannot be started: Resource temp"):
        Launcher().start()


def laid_out(_ctx: object) -> tuple[str, str, int]:
    """Where the stack and a library of a rank lie, and a hash."""
    mappings = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    places = [next(line.split()[0] for line in mappings if name in line) for name in ("[stack]", "libtorch_cpu")]
    return places[0], places[1], hash("rank")


def personality() -> int:
    """That of this process, as the kernel tells it."""
    return int(Path("/proc/self/personality").read_text(encoding="utf-8"), 16)


@pytest.mark.slow
def test_ranks_of_all_fork_servers_have_the_same_memory_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a side of a comparison would be faster by the addresses of its process."""
    before = personality()
    with processes.laid_out_alike():
        allowed = personality() & 0x0040000
    if not allowed:
        pytest.skip("the kernel lets no process choose that")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    seen = set()
    for _ in range(2):
        with Launcher() as launcher:
            seen |= set(launcher.run(laid_out, world_size=2, device="cpu", backend="gloo", timeout=60).values)
    assert len(seen) == 1
    assert personality() == before


@pytest.mark.parametrize(
    ("answers", "asked"),
    [
        ([0x8, 0x8, 0x40008], [0xFFFFFFFF, 0x40008, 0x8]),
        ([0x8, -1], [0xFFFFFFFF, 0x40008]),  # a container forbids it
        ([-1], [0xFFFFFFFF]),  # the kernel does not know it
        ([], []),  # there is no such call
    ],
)
def test_only_a_changed_layout_is_restored(
    monkeypatch: pytest.MonkeyPatch, answers: list[int], asked: list[int]
) -> None:
    calls, given = list[int](), iter(answers)

    def call(value: ctypes.c_ulong) -> int:
        calls.append(value.value)
        return next(given)

    library = SimpleNamespace(personality=call) if answers else SimpleNamespace()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    with pytest.raises(ZeroDivisionError), processes.laid_out_alike():
        _ = 1 / 0
    assert calls == asked
