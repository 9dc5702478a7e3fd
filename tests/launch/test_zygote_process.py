"""The zygote and its controller: how each takes the end of the other."""

from __future__ import annotations

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
from pytest_ddpperf.launch.zygote_process import ZygoteEnded, ZygoteProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


CONTROLLER = """
import os, signal, subprocess, sys, threading
from pathlib import Path
from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.launcher import Launcher

def block(ctx, folder):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    pids = f"{os.getpid()} {os.getppid()} {child.pid}"
    part = Path(folder, f"{ctx.rank}.part")
    part.write_text(pids)
    part.rename(part.with_suffix(".pids"))
    signal.pause()

first = launcher = Launcher()
thread = threading.Thread(target=launcher.start)  # it ends before its zygote
thread.start()
thread.join()
if sys.argv[2] == "copy":
    launcher = Launcher(like=first)
launcher.wait()
Path(sys.argv[1], "zygotes").write_text(f"{first.pid} {launcher.pid}")
try:
    group = {"device": "cpu", "backend": "gloo", "projects": sys.argv[1:2]}
    launcher.run(block, sys.argv[1], world_size=2, timeout=60, **group)
except LaunchError as error:
    print(error)
"""


def blocked_controller(folder: Path, how: str) -> tuple[subprocess.Popen[str], list[int]]:
    """A controller whose ranks block, and the pids of its zygote, ranks and grandchildren."""
    (folder / "controller.py").write_text(CONTROLLER)
    command = [sys.executable, str(folder / "controller.py"), str(folder), how]
    environ = {**os.environ, "TMPDIR": str(folder)}
    controller = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    deadline = time.monotonic() + 30
    while len(list(folder.glob("*.pids"))) < 2:
        assert controller.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    pids = {int(pid) for path in folder.glob("*.pids") for pid in path.read_text().split()}
    assert len(pids) == 5
    return controller, sorted(pids)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 20
    while not processes.is_stopped(pid):
        assert time.monotonic() < deadline


@pytest.mark.slow  # a fast test below has a zygote without torch
@pytest.mark.parametrize("how", ["running", "stopped", "copy"])
def test_nothing_outlives_a_killed_controller(
    tmp_path: Path, all_gone: Callable[[Iterable[int]], bool], how: str
) -> None:
    """SIGTERM would wait until somebody continues a zygote that is stopped."""
    controller, pids = blocked_controller(tmp_path, how)
    with controller:
        (files,) = tmp_path.glob("ddpperf-files-*")  # of the launch alone
        zygotes = {*map(int, (tmp_path / "zygotes").read_text().split())}
        for pid in zygotes if how != "running" else ():
            stop(pid)
        controller.kill()
        assert all_gone({*pids, *zygotes})
    assert not files.exists()


@pytest.mark.slow
def test_the_files_of_launches_end_with_the_zygote_of_a_launch_without_files(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Launcher(like=launcher) as copied:
        for projects in ([str(tmp_path)], []):
            copied.run(print, world_size=1, device="cpu", backend="gloo", projects=projects)
        assert [*tmp_path.glob("ddpperf-files-*")]
    assert not [*tmp_path.glob("ddpperf-files-*")]


@pytest.mark.slow  # that it was killed is told where launches are aborted, too
@pytest.mark.parametrize(
    ("how", "told"), [(signal.SIGKILL, "was killed by SIGKILL"), (signal.SIGTERM, "exited with status 0")]
)
def test_nothing_outlives_a_killed_zygote(
    tmp_path: Path, all_gone: Callable[[Iterable[int]], bool], how: signal.Signals, told: str
) -> None:
    controller, pids = blocked_controller(tmp_path, "running")
    with controller:
        zygote = int((tmp_path / "0.pids").read_text().split()[1])
        os.kill(zygote, how)
        output, _ = controller.communicate(timeout=20)
        assert output == f"the process that ranks are forked from {told}; the ranks were stopped\n"
        assert all_gone(pids)
        assert not [*tmp_path.glob("ddpperf-files-*")]


def test_a_forked_copy_of_the_controller_leaves_the_zygote_alone(launcher: Launcher) -> None:
    launcher.wait()
    zygote, copy = launcher.pid, os.fork()
    if copy == 0:
        try:
            launcher.close()
        finally:
            os._exit(0)
    os.waitpid(copy, 0)
    assert launcher.run(lambda _ctx: os.getppid(), world_size=1, device="cpu").rank(0) == zygote


@pytest.mark.slow
def test_the_zygote_has_one_thread_also_where_its_libraries_start_some() -> None:
    with Launcher(environ={**os.environ, "OMP_NUM_THREADS": "4"}) as launcher:
        launcher.wait()
        assert len(os.listdir(f"/proc/{launcher.pid}/task")) == 1  # noqa: PTH208


@pytest.mark.slow
def test_a_thread_of_the_zygote_is_told_if_ranks_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    (tmp_path / "starts_a_thread.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    hint = "the process that ranks are forked from has 1 more thread: a lock that one of them held stays locked"
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
def test_a_zygote_ends_with_its_controller_and_its_descendants_end_too(
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


def test_a_zygote_that_is_stopped_while_it_imports_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stops.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(zygote_process, "_READY_SECONDS", 20.0)
    zygote = ZygoteProcess(os.environ, ["stops"])
    try:
        with pytest.raises(LaunchError, match=r"^the process that ranks are forked from was stopped by a signal"):
            zygote.wait_until_ready()
    finally:
        zygote.close()


def test_a_zygote_that_takes_no_request_is_told() -> None:
    def wait(seconds: float) -> None:
        raise subprocess.TimeoutExpired("zygote", seconds)

    zygote = ZygoteProcess.__new__(ZygoteProcess)
    zygote._numbers = itertools.count()
    zygote.control, of_zygote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process: Any = SimpleNamespace(wait=wait)
    zygote._process = process

    def ask_on() -> None:
        for _ in range(100_000):  # until no more fits into its socket
            zygote.ask("sweep", 0.0)

    with zygote.control, of_zygote:
        zygote.control.settimeout(0.01)
        with pytest.raises(ZygoteEnded, match=r"are forked from no longer answers; the ranks were stopped$"):
            ask_on()


def test_a_zygote_that_the_kernel_does_not_end_is_left_to_it_without_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    killed: list[str] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        raise subprocess.TimeoutExpired("zygote", seconds)

    zygote = ZygoteProcess.__new__(ZygoteProcess)
    zygote._folder, zygote._numbers = "", itertools.count()
    zygote.control, of_zygote = socket.socketpair()
    zygote.mark, zygote._ready, zygote._output = "mark", True, Path(os.devnull).open("rb")  # noqa: SIM115
    process: Any = SimpleNamespace(pid=os.getpid(), poll=lambda: None, wait=wait, kill=lambda: killed.append("zygote"))
    process.returncode = None
    zygote._process = process
    monkeypatch.setattr(processes, "kill_marked", lambda _, mark: killed.append(mark))
    folder = tmp_path / "files"
    (folder / "checkpoints").mkdir(parents=True)
    with of_zygote:
        zygote.fork(0, (), str(folder), ())
        zygote.close()
    assert not folder.exists()
    assert waited == [zygote_process._END_SECONDS] * 2
    assert killed == ["zygote", "mark"]


def test_a_zygote_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(subprocess, "Popen", fails)
    with pytest.raises(LaunchError, match=r"^the process that ranks are forked from cannot be started: Resource temp"):
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
def test_ranks_of_all_processes_are_laid_out_alike(monkeypatch: pytest.MonkeyPatch) -> None:
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
