"""Faults of a rank that breaks what Python and the plugin use, or leaves something, and then goes on to an ending."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import importlib
import linecache
import os
import pickle
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.campaign.kinds import ENDED, ENDINGS, LOADED, Place, fill, kind, kinds, prctl, sabotages

KEPT: list[Any] = []
BROKEN = "broken on purpose"
NO_STACK = r"in hang\b|gave no stack"  # a rank that may write no file, or ignores the signal, cannot say where it is


def broken(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError(BROKEN)


def _broken(module: Any, *names: str) -> None:
    for name in names:
        setattr(module, name, broken)


def _change_global_state() -> None:
    torch = sys.modules["torch"]
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(mode=False)
    os.chdir("/")
    os.environ.update(RANK="7", WORLD_SIZE="9", MASTER_PORT="1", OMP_NUM_THREADS="3", TMPDIR="/nowhere")
    _each_signal(signal.SIG_IGN)


def _each_signal(handler: Any) -> None:
    for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, handler)


def _leave_its_folder(place: Place) -> None:
    folder = Path(place.scratch, f"gone.{place.rank}.{time.time_ns()}")
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()


def _become_nobody(place: Place) -> None:
    os.chmod(place.scratch, 0o777)
    os.setgid(65534)
    os.setuid(65534)


def _detach() -> None:
    prctl(1, 0)  # no signal at the end of the parent
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)


def _print_much() -> None:
    for _ in range(40):
        print("x" * (1 << 20))
        os.write(2, b"y" * (1 << 20))


def _spin() -> None:
    while True:
        pass


# Python's own modules.
sabotages(
    {
        "clears_the_environment": lambda _: os.environ.clear(),
        "leaves_its_folder": _leave_its_folder,
        "empties_the_search_path": lambda _: (sys.path.clear(), importlib.invalidate_caches()),
        "breaks_sockets": lambda _: _broken(socket.socket, "send", "sendall", "recv", "shutdown"),
        "breaks_pickle": lambda _: _broken(pickle, "dumps", "loads"),
        "breaks_hooks": lambda _: (_broken(sys, "excepthook", "unraisablehook"), _broken(threading, "excepthook")),
        "registers_an_endless_exit": lambda _: atexit.register(time.sleep, 1000),
        "detaches_from_its_parent": lambda _: _detach(),
        "becomes_nobody": _become_nobody,
        "closes_output": lambda _: os.closerange(0, 3),
        "prints_much": lambda _: _print_much(),
        "fills_the_temporary_folder": lambda _: fill(Path(tempfile.gettempdir(), "full")),
    }
)
sabotages({"cannot_exit": lambda _: setattr(os, "_exit", lambda _status: None)}, endings=("raise", "hang", "return"))
sabotages(
    {
        "changes_global_state": lambda _: _change_global_state(),
        "disables_faulthandler": lambda _: (faulthandler.disable(), faulthandler.unregister(signal.SIGUSR1)),
        "handles_every_signal": lambda _: _each_signal(lambda *_: None),
    },
    reasons={"hang": NO_STACK},
)
# What goes on may pass, or fail by what is broken: a launch that times or counts steps needs it.
sabotages(
    {
        "forgets_modules": lambda _: sys.modules.clear(),
        "breaks_clocks": lambda _: _broken(time, "time", "time_ns", "monotonic", "perf_counter", "sleep"),
        "breaks_os": lambda _: _broken(os, "write", "read", "fork", "getpid", "kill", "getcwd", "fstat", "close"),
        "breaks_tracebacks": lambda _: (
            _broken(traceback, "TracebackException", "walk_tb", "print_exc", "format_exception"),
            _broken(linecache, "getline", "checkcache"),
        ),
        "breaks_builtins": lambda _: _broken(builtins, "open", "print", "sorted", "map"),
        "removes_temporary_files": lambda _: shutil.rmtree(tempfile.gettempdir(), ignore_errors=True),
        "may_open_no_file": lambda _: resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3)),
        "may_write_no_file": lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    },
    reasons={"hang": NO_STACK, "return": r"\w+Error|cannot be stored|Too many open files|File too large|exited with"},
    passes="may",
)

# gloo aborts a process whose sockets were closed, and a rank without files cannot say more.
CLOSED = r"exited with status [01]\b|killed by SIGABRT|Bad file descriptor"
sabotages(
    {"closes_low_files": lambda _: os.closerange(0, 10), "closes_all_files": lambda _: os.closerange(0, 65536)},
    reasons={**{name: rf"{reason}|gave no stack|{CLOSED}" for name, reason in ENDED.items()}, "return": CLOSED},
    passes="may",
)


# What it leaves.


def _share_a_tensor() -> None:
    import torch
    from torch import multiprocessing

    multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    KEPT.append(torch.ones(1 << 18).share_memory_())  # type: ignore[no-untyped-call]


def _forked(child: Any, times: int = 1) -> None:
    for _ in range(times):
        if os.fork() == 0:
            child()
            while True:
                time.sleep(1000)


def _daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            prctl(1, 0)
            os.closerange(0, 4096)
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        os._exit(0)
    os.wait()


def _pool() -> None:
    import multiprocessing

    multiprocessing.get_context("fork").Pool(3).apply_async(time.sleep, (1000,))


def _sleeping(**more: Any) -> Any:
    return subprocess.Popen(["/bin/sleep", "1000"], stdin=-3, stdout=-3, stderr=-3, **more)


sabotages(
    {
        "leaves_shared_memory": lambda _: KEPT.append(SharedMemory(create=True, size=1 << 20)),
        "leaves_threads": lambda _: threading.Thread(target=time.sleep, args=(1000,), daemon=False).start(),
        "leaves_a_child": lambda _: _sleeping(),
        "leaves_a_session_without_environment": lambda _: _sleeping(start_new_session=True, env={}),
        "leaves_a_daemon": lambda _: _daemon(),
        "leaves_a_fork_with_its_files": lambda _: _forked(lambda: None),
        "leaves_a_stubborn_child": lambda _: _forked(lambda: (os.setsid(), _each_signal(signal.SIG_IGN))),
        "leaves_many_children": lambda _: _forked(lambda: os.fork() or os.setsid(), 40),
    }
)
sabotages(
    {
        "leaves_shared_tensors": lambda _: _share_a_tensor(),
        "leaves_a_busy_thread": lambda _: threading.Thread(target=_spin, daemon=False).start(),
        "forks_a_pool": lambda _: _pool(),
    },
    phases=("build", "warm-up", "timed steps", "result"),
)


# What runs out.


def _limit_memory(extra: int) -> None:
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + extra, resource.RLIM_INFINITY))


def _take(limit: int, piece: Any) -> None:
    _limit_memory(limit << 20)
    while True:
        KEPT.append(piece())


def _files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    while True:
        KEPT.append(os.open("/dev/null", os.O_RDONLY))


MEMORY = r"ran out of memory|MemoryError|can't allocate memory|bad_alloc"
kinds(
    [
        ("runs_out_of_memory", MEMORY, lambda _: _take(200, lambda: bytearray(16 << 20))),
        ("runs_out_of_small_memory", MEMORY, lambda _: _take(100, lambda: [None] * 1000)),
        ("runs_out_of_files", r"OSError: .*Too many open files", lambda _: _files()),
    ]
)


@kind(MEMORY, phases=LOADED)
def runs_out_of_tensor_memory(_: Place) -> None:
    import torch

    _take(200, lambda: torch.ones(4 << 20))


@kind(r"No space left on device", phases=LOADED)
def fills_shared_memory(place: Place) -> None:
    path = Path(f"/dev/shm/filled.{place.rank}")
    try:
        with path.open("wb") as file:
            while True:
                file.write(bytes(1 << 20))
    finally:
        path.unlink()


@kind(r"SIGBUS|No space left", phases=LOADED)
def maps_more_than_shared_memory_has(place: Place) -> None:
    import mmap

    with Path(f"/dev/shm/mapped.{place.rank}").open("w+b") as file:
        Path(file.name).unlink()
        file.truncate(1 << 30)
        with mmap.mmap(file.fileno(), 1 << 30) as mapped:
            for offset in range(0, 1 << 30, 4096):
                mapped[offset] = 1


# Its report.


def _sockets() -> list[int]:
    """The connected Unix sockets of this rank: the one that reports travel by."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as one:
            if one.family == socket.AF_UNIX and one.type == socket.SOCK_STREAM:
                found.append(int(name))
    return found


def _report(text: bytes) -> None:
    for number in _sockets():
        os.write(number, text)


def _shut() -> None:
    for number in _sockets():
        socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RDWR)


def _read() -> None:
    for number in _sockets():
        threading.Thread(target=os.read, args=(number, 1), daemon=True).start()


FRAME = "!8sQ"
ELSE = pickle.dumps({"what": "is this"})
NO_REPORT = r"is not a report"
sabotages(
    {
        "writes_into_its_report": lambda _: _report(b"GET / HTTP/1.0\r\n\r\n" * 4),
        "announces_an_endless_report": lambda _: _report(struct.pack(FRAME, b"ddpperf\n", 1 << 40)),
        "reports_a_broken_pickle": lambda _: _report(struct.pack(FRAME, b"ddpperf\n", 5) + b"abcde"),
        "reports_something_else": lambda _: _report(struct.pack(FRAME, b"ddpperf\n", len(ELSE)) + ELSE),
        "shuts_its_report": lambda _: _shut(),
    },
    phases=LOADED,
    reasons=dict.fromkeys(ENDINGS, rf"{NO_REPORT}|ValueError: sabotaged|in hang\b|exited with"),
)
sabotages({"reads_its_report": lambda _: _read()}, phases=LOADED)


@kind(NO_REPORT, phases=LOADED)
def floods_its_report(_: Place) -> None:
    number = _sockets()[0]
    while True:
        os.write(number, b"x" * (1 << 16))
