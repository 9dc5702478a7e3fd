"""The process that a function finds itself in."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import socket
import stat
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_ddpperf.errors import RankFailed
from pytest_ddpperf.launch.processes import open_files
from pytest_ddpperf.launch.rank import _LEAST_DESCRIPTOR

if TYPE_CHECKING:
    from pytest_ddpperf.launch.context import RankContext
    from pytest_ddpperf.launch.launcher import Launcher


def test_a_rank_is_a_plain_process_without_files_of_the_plugin(launcher: Launcher) -> None:
    """What it executes inherits none of the plugin's files; between these and the standard streams are torch's."""

    def look(_ctx: RankContext) -> dict[str, object]:
        sys.stderr.close()
        own = [descriptor for descriptor in open_files() if descriptor <= 2 or descriptor >= _LEAST_DESCRIPTOR]
        assert len(own) > 4
        handlers = (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT)
        return {
            "leads its session": os.getsid(0) == os.getpid(),
            "input": sys.stdin.read(),
            "standard streams": [descriptor for descriptor in own if descriptor <= 2],  # one is closed in Python only
            "handlers": tuple(signal.getsignal(number) for number in handlers),
            "threads": [thread.name for thread in threading.enumerate()],
            "oom": Path("/proc/self/oom_score_adj").read_text(encoding="ascii").strip(),
            "inherited": sorted(descriptor for descriptor in own if os.get_inheritable(descriptor)),
            "threads of the zygote": len(os.listdir(f"/proc/{os.getppid()}/task")),  # noqa: PTH208
            "files": [link for link in open_files().values() if link.startswith("/")],
        }

    seen = launcher.run(look, world_size=2, device="cpu").rank(1)
    files = seen.pop("files")
    assert seen == {
        "leads its session": True,
        "input": "",
        "standard streams": [0, 1, 2],
        "handlers": (signal.SIG_DFL, signal.SIG_DFL, signal.default_int_handler),
        "threads": ["MainThread", "ddpperf-answers"],
        "oom": "1000",
        "inherited": [0, 1, 2],
        "threads of the zygote": 1,
    }
    assert isinstance(files, list)
    own = [file for file in files if "ddpperf-" not in file and "#" not in file and file != "/dev/null"]
    assert own == [], files


def test_a_write_to_the_socket_of_a_rank_fails_that_rank(launcher: Launcher) -> None:
    def writes(ctx: RankContext) -> None:
        for descriptor in open_files() if ctx.rank == 1 else ():
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as found:
                    if found.family == socket.AF_UNIX:
                        os.write(descriptor, b"progress: 50 %")
        threading.Event().wait()

    with pytest.raises(RankFailed, match=r"^rank 1 of 2 sent data that is not a report: ") as caught:
        launcher.run(writes, world_size=2, device="cpu", timeout=20)
    assert caught.value.rank == 1


def test_a_rank_reports_although_the_users_code_patches_the_standard_library(
    launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools that freeze clocks or forbid the network patch these; modules or the current folder may be gone."""
    monkeypatch.chdir(tmp_path)

    def patches(_ctx: RankContext) -> None:
        Path("gone").mkdir()
        os.chdir("gone")
        Path("../gone").rmdir()
        for module, names in (
            (os, ("_exit", "getpid")),
            (time, ("time_ns",)),
            (socket.socket, ("sendall", "recv")),
            (traceback, ("walk_tb", "extract_tb", "TracebackException", "format_exception")),
        ):
            for name in names:
                setattr(module, name, None)
        sys.modules.clear()
        raise ValueError("told")

    with pytest.raises(RankFailed, match=r"^rank 0 of 1 raised ValueError: told\n[\s\S]*, in patches\n"):
        launcher.run(patches, world_size=1, device="cpu", backend="gloo")


def test_a_rank_that_is_traced_forks_and_leaves_a_thread_answers_once_and_ends(launcher: Launcher) -> None:
    """A debugger's guard lets the parent trace it: each signal stops it until the parent says how it goes on."""

    def misbehaves(ctx: RankContext) -> str:
        heard: list[int] = []
        signal.signal(signal.SIGUSR2, lambda number, _: heard.append(number))
        assert ctypes.CDLL(None).ptrace(0, 0, None, None) == 0
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGUSR2)
        assert heard == [signal.SIGUSR2] * 2
        sys.modules.clear()
        child = os.fork()
        if child == 0:
            return "child"
        os.waitpid(child, 0)
        threading.Thread(target=threading.Event().wait, daemon=False).start()  # exit would wait for it
        return f"rank {ctx.rank}"

    found = launcher.run(misbehaves, world_size=2, device="cpu", timeout=20)
    assert found.values == ("rank 0", "rank 1")


def test_a_rank_whose_main_thread_has_ended_is_named_before_the_deadline(launcher: Launcher) -> None:
    def loses(ctx: RankContext) -> None:
        if ctx.rank == 1:
            threading.Thread(target=time.sleep, args=(1000,)).start()
            ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit(2), of a thread
        time.sleep(1000)

    with pytest.raises(RankFailed, match=r"^rank 1 of 2 was killed, because its code or a sandbox ended its main "):
        launcher.run(loses, world_size=2, device="cpu", timeout=30)
