"""Faults of memory, files, output and processes that stay."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.campaign.kinds import ENDED, ENDINGS, JOINED, LOADED, Place, kind, prctl

KEPT: list[Any] = []


def _limit_memory(extra: int) -> None:
    taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + extra, resource.RLIM_INFINITY))


@kind(r"ran out of memory|MemoryError")
def runs_out_of_memory(_: Place) -> None:
    _limit_memory(200 << 20)
    while True:
        KEPT.append(bytearray(16 << 20))


@kind(r"ran out of memory|MemoryError|bad_alloc")
def runs_out_of_small_memory(_: Place) -> None:
    _limit_memory(100 << 20)
    while True:
        KEPT.append([None] * 1000)


@kind(r"ran out of memory|MemoryError|can't allocate memory", phases=LOADED)
def runs_out_of_tensor_memory(_: Place) -> None:
    import torch

    _limit_memory(200 << 20)
    while True:
        KEPT.append(torch.ones(4 << 20))


@kind(r"OSError: .*Too many open files")
def runs_out_of_files(_: Place) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
    while True:
        KEPT.append(os.open("/dev/null", os.O_RDONLY))


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


@kind(endings=ENDINGS, phases=LOADED)
def leaves_shared_memory(place: Place) -> None:
    from multiprocessing.shared_memory import SharedMemory

    KEPT.append(SharedMemory(create=True, size=1 << 20))
    place.end()


@kind(endings=ENDINGS, phases=("build", "warm-up", "timed steps"))
def leaves_shared_tensors(place: Place) -> None:
    import torch
    from torch import multiprocessing

    multiprocessing.set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]
    KEPT.append(torch.ones(1 << 18).share_memory_())  # type: ignore[no-untyped-call]
    place.end()


@kind(endings=ENDINGS)
def leaves_threads(place: Place) -> None:
    for daemon in (False, True):
        threading.Thread(target=time.sleep, args=(1000,), daemon=daemon).start()
    place.end()


@kind(endings=ENDINGS, phases=LOADED)
def leaves_a_busy_thread(place: Place) -> None:
    def spin() -> None:
        while True:
            pass

    threading.Thread(target=spin, daemon=False).start()
    place.end()


@kind(endings=ENDINGS)
def leaves_a_child(place: Place) -> None:
    subprocess.Popen(["sleep", "1000"])
    place.end()


@kind(endings=ENDINGS)
def leaves_a_session(place: Place) -> None:
    subprocess.Popen(["sleep", "1000"], start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
    place.end()


@kind(endings=ENDINGS)
def leaves_a_session_without_environment(place: Place) -> None:
    subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True, env={}, stdin=-3, stdout=-3, stderr=-3)
    place.end()


@kind(endings=ENDINGS)
def leaves_a_daemon(place: Place) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            prctl(1, 0)
            os.closerange(0, 4096)
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        os._exit(0)
    os.wait()
    place.end()


@kind(endings=ENDINGS)
def leaves_a_fork_with_its_files(place: Place) -> None:
    if os.fork() == 0:
        while True:
            time.sleep(1000)
    place.end()


@kind(endings=ENDINGS)
def leaves_a_stubborn_child(place: Place) -> None:
    code = (
        "import signal,time\nfor n in range(1,32):\n try: signal.signal(n, signal.SIG_IGN)\n except Exception: pass\n"
    )
    code += "print(1, flush=True)\nwhile True: time.sleep(1000)"
    child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()
    place.end()


@kind(endings=ENDINGS)
def leaves_many_children(place: Place) -> None:
    for _ in range(40):
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
            while True:
                time.sleep(1000)
    place.end()


@kind(endings=ENDINGS)
def leaves_a_stopped_child(place: Place) -> None:
    child = subprocess.Popen(["sleep", "1000"])
    child.send_signal(signal.SIGSTOP)
    place.end()


@kind(endings=ENDINGS)
def leaves_zombies(place: Place) -> None:
    for _ in range(20):
        if os.fork() == 0:
            os._exit(0)
    place.end()


@kind(r"in floods_output\b")
def floods_output(_: Place) -> None:
    line = "flood " * 2000
    while True:
        print(line)


@kind(endings=ENDINGS)
def prints_much(place: Place) -> None:
    for _ in range(40):
        print("x" * (1 << 20))
        sys.stderr.write("y" * (1 << 20))
    place.end()


@kind(endings=ENDINGS)
def prints_hundreds_of_megabytes(place: Place) -> None:
    for _ in range(100):
        os.write(1, b"x" * (1 << 20))
        os.write(2, b"y" * (1 << 20))
    place.end()


@kind(endings=ENDINGS)
def prints_bytes(place: Place) -> None:
    for _ in range(100):
        os.write(2, bytes(range(256)) * 16)
    os.write(1, b'Fatal Python error: not really\n  File "x", line 1 in y\n')
    place.end()


@kind(endings=ENDINGS)
def closes_output(place: Place) -> None:
    os.closerange(0, 3)
    place.end()


# gloo aborts a process whose sockets were closed, and a rank without files cannot say more.
CLOSED = r"exited with status [01]\b|killed by SIGABRT|Bad file descriptor"


@kind(
    endings=ENDINGS,
    reasons={**{name: rf"{reason}|{CLOSED}" for name, reason in ENDED.items()}, "return": CLOSED},
    passes="may",
)
def closes_low_files(place: Place) -> None:
    os.closerange(0, 10)
    place.end()


@kind(
    endings=ENDINGS,
    reasons={
        "raise": CLOSED,
        "return": CLOSED,
        "hang": rf"in hang\b|gave no stack|{CLOSED}",
        "exit": rf"status 5|{CLOSED}",
    },
)
def closes_all_files(place: Place) -> None:
    os.closerange(0, 65536)
    place.end()


@kind(endings=ENDINGS, reasons={"return": r"Too many open files|exited with"}, passes="may")
def may_open_no_file(place: Place) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    place.end()


# Where a rank may write no file, faulthandler cannot write down its stack.
@kind(endings=ENDINGS, reasons={"return": r"File too large", "hang": r"in hang\b|gave no stack"}, passes="may")
def may_write_no_file(place: Place) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    with contextlib.suppress(OSError):
        print("lost")
    place.end()


@kind(endings=ENDINGS)
def floods_shared_processors(place: Place) -> None:
    os.nice(19)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    place.end()


@kind(endings=ENDINGS)
def holds_the_interpreter(place: Place) -> None:
    sys.setswitchinterval(1000)
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    place.end()


@kind(r"killed by SIGABRT", phases=JOINED)
def corrupts_its_memory(_: Place) -> None:
    free = ctypes.CDLL(None).abort
    free()
