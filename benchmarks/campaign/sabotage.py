"""Faults of a rank that breaks what Python and the plugin use, and then goes on to another end."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import gc
import importlib
import io
import linecache
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.campaign.kinds import ENDINGS, JOINED, LOADED, Place, kind, prctl


def broken(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("broken on purpose")


@kind(endings=ENDINGS)
def clears_the_environment(place: Place) -> None:
    os.environ.clear()
    place.end()


@kind(endings=ENDINGS, reasons={"hang": r"in hang\b|gave no stack"})
def changes_global_state(place: Place) -> None:
    torch = sys.modules["torch"]
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(mode=False)
    os.chdir("/")
    os.environ.update(RANK="7", WORLD_SIZE="9", MASTER_PORT="1", OMP_NUM_THREADS="3", TMPDIR="/nowhere")
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    place.end()


@kind(endings=ENDINGS)
def removes_its_folder(place: Place) -> None:
    folder = Path(place.scratch, f"gone.{place.rank}.{time.time_ns()}")
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    place.end()


@kind(endings=ENDINGS, reasons={"return": r"\w+Error"}, passes="may")
def forgets_modules(place: Place) -> None:
    """Python's own modules, torch and the next import fail in many ways where sys.modules is empty."""
    sys.modules.clear()
    place.end()


@kind(endings=ENDINGS)
def empties_the_search_path(place: Place) -> None:
    sys.path[:] = []
    importlib.invalidate_caches()
    place.end()


@kind(endings=ENDINGS, reasons={"return": r"broken on purpose"}, passes="may")
def breaks_clocks(place: Place) -> None:
    """A launch that times steps needs them."""
    for name in ("time", "time_ns", "monotonic", "perf_counter", "sleep"):
        setattr(time, name, broken)
    place.end()


@kind(endings=ENDINGS)
def turns_clocks_back(place: Place) -> None:
    time.time_ns = lambda: 5
    time.time = lambda: 0.0
    place.end()


@kind(endings=ENDINGS, phases=JOINED)
def breaks_sockets(place: Place) -> None:
    for name in ("send", "sendall", "recv", "shutdown"):
        setattr(socket.socket, name, broken)
    place.end()


@kind(endings=ENDINGS, reasons={"return": r"broken on purpose"}, passes="may")
def breaks_os(place: Place) -> None:
    """The plugin asks for its process id to find the children of a step, and Python reads folders by some of these."""
    for name in ("write", "read", "fork", "getpid", "kill", "getcwd", "fstat", "close"):
        setattr(os, name, broken)
    place.end()


@kind(endings=("raise", "hang", "return"))
def cannot_exit(place: Place) -> None:
    setattr(os, "_exit", lambda _: None)  # noqa: B010
    place.end()


@kind(endings=ENDINGS)
def breaks_pickle(place: Place) -> None:
    pickle.dumps = pickle.loads = broken
    place.end()


@kind(endings=ENDINGS, reasons={"return": r"broken on purpose"}, passes="may")
def breaks_tracebacks(place: Place) -> None:
    """Steps that are counted look for the lines that call."""
    for name in ("TracebackException", "walk_tb", "print_exc", "format_exception"):
        setattr(traceback, name, broken)
    linecache.getline = linecache.checkcache = broken
    place.end()


@kind(endings=ENDINGS, reasons={"return": r"broken on purpose"}, passes="may")
def breaks_builtins(place: Place) -> None:
    """All Python code that runs later calls these, torch's and that of the measuring plugin."""
    for name in ("open", "print", "sorted", "map"):
        setattr(builtins, name, broken)
    place.end()


@kind(endings=ENDINGS, reasons={"return": r"RecursionError"}, passes="may")
def allows_little_recursion(place: Place) -> None:
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    sys.setrecursionlimit(depth + 12)
    place.end()


@kind(endings=ENDINGS, reasons={"hang": r"in hang\b|gave no stack"})
def disables_faulthandler(place: Place) -> None:
    faulthandler.disable()
    faulthandler.unregister(signal.SIGUSR1)
    place.end()


@kind(endings=ENDINGS, reasons={"hang": r"in hang\b|gave no stack"})
def handles_every_signal(place: Place) -> None:
    for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, lambda *_: None)
    place.end()


@kind(endings=ENDINGS)
def traces_with_an_error(place: Place) -> None:
    threading.settrace(broken)
    sys.setprofile(None)
    place.end()


@kind(endings=ENDINGS)
def breaks_hooks(place: Place) -> None:
    sys.excepthook = sys.unraisablehook = threading.excepthook = broken
    sys.displayhook = broken
    place.end()


@kind(endings=ENDINGS)
def registers_an_endless_exit(place: Place) -> None:
    atexit.register(time.sleep, 1000)
    threading._register_atexit(time.sleep, 1000)  # type: ignore[attr-defined]
    place.end()


@kind(endings=ENDINGS)
def detaches_from_its_parent(place: Place) -> None:
    prctl(1, 0)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    place.end()


@kind(endings=ENDINGS)
def becomes_nobody(place: Place) -> None:
    os.chmod(place.scratch, 0o777)
    os.setgid(65534)
    os.setuid(65534)
    place.end()


@kind(endings=ENDINGS)
def replaces_output(place: Place) -> None:
    sys.stdout = sys.stderr = object()
    place.end()


@kind(endings=ENDINGS)
def closes_output_objects(place: Place) -> None:
    sys.stdout.close()
    sys.stderr.close()
    place.end()


@kind(endings=ENDINGS)
def disables_the_collector(place: Place) -> None:
    gc.disable()
    gc.set_threshold(1)
    gc.enable()
    place.end()


@kind(endings=ENDINGS, reasons={"return": r"has no place: No such file"}, passes="may")
def removes_temporary_files(place: Place) -> None:
    shutil.rmtree(tempfile.gettempdir(), ignore_errors=True)
    place.end()


@kind(endings=ENDINGS)
def fills_the_temporary_folder(place: Place) -> None:
    with contextlib.suppress(OSError), Path(tempfile.gettempdir(), "full").open("wb") as file:
        while True:
            file.write(bytes(1 << 20))
    place.end()


@kind(endings=ENDINGS, phases=LOADED)
def forks_a_pool(place: Place) -> None:
    import multiprocessing

    pool = multiprocessing.get_context("fork").Pool(3)
    pool.apply_async(time.sleep, (1000,))
    place.end()


def _sockets() -> list[int]:
    """The connected Unix sockets of this rank: the one that reports travel by."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            one = socket.socket(fileno=os.dup(int(name)))
            with one:
                if one.family == socket.AF_UNIX and one.type == socket.SOCK_STREAM:
                    found.append(int(name))
    return found


NO_REPORT = r"no report"


@kind(
    endings=ENDINGS,
    phases=LOADED,
    reasons=dict.fromkeys(ENDINGS, rf"{NO_REPORT}|ValueError: sabotaged|in hang\b|exited"),
)
def writes_into_its_report(place: Place) -> None:
    for number in _sockets():
        os.write(number, b"GET / HTTP/1.0\r\n\r\n" * 4)
    place.end()


@kind(NO_REPORT, phases=LOADED)
def floods_its_report(_: Place) -> None:
    number = _sockets()[0]
    while True:
        os.write(number, b"x" * (1 << 16))


@kind(
    endings=ENDINGS,
    phases=LOADED,
    reasons={
        "raise": rf"{NO_REPORT}|ValueError: sabotaged",
        "return": rf"{NO_REPORT}",
        "hang": rf"in hang\b|{NO_REPORT}",
        "exit": rf"exited with status 5|{NO_REPORT}",
    },
)
def announces_an_endless_report(place: Place) -> None:
    for number in _sockets():
        os.write(number, struct.pack("!8sQ", b"ddpperf\n", 1 << 40))
    place.end()


@kind(
    endings=ENDINGS,
    phases=LOADED,
    reasons={"raise": rf"exited with status|ValueError: sabotaged|{NO_REPORT}", "return": rf"exited with|{NO_REPORT}"},
)
def shuts_its_report(place: Place) -> None:
    for number in _sockets():
        socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RDWR)
    place.end()


@kind(endings=ENDINGS, phases=LOADED)
def reports_something_else(place: Place) -> None:
    body = pickle.dumps({"what": "is this"})
    for number in _sockets():
        os.write(number, struct.pack("!8sQ", b"ddpperf\n", len(body)) + body)
    place.end()


@kind(
    endings=ENDINGS,
    phases=LOADED,
    reasons=dict.fromkeys(ENDINGS, rf"{NO_REPORT}|ValueError: sabotaged|in hang\b|exited with status 5"),
)
def reports_a_broken_pickle(place: Place) -> None:
    for number in _sockets():
        os.write(number, struct.pack("!8sQ", b"ddpperf\n", 5) + b"abcde")
    place.end()


@kind(r"(?!)", phases=("build", "timed steps", "close"), passes="may", blame="any")
def forks_and_both_go_on(place: Place) -> None:
    if os.fork() == 0:
        time.sleep(0.5)


@kind(r"(?!)", phases=("close",), passes="may")
def forks_and_the_child_returns_first(place: Place) -> None:
    if os.fork() != 0:
        time.sleep(1.5)


@kind(endings=ENDINGS)
def reads_its_report(place: Place) -> None:
    for number in _sockets():
        threading.Thread(target=os.read, args=(number, 1), daemon=True).start()
    place.end()


@kind(endings=ENDINGS)
def watches_everything(place: Place) -> None:
    poll = select.poll()
    for number in range(100):
        poll.register(number)
    poll.poll(0)
    sys.stdin = io.StringIO()
    place.end()
