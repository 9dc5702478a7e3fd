"""Faults by which a rank never goes on."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.campaign.kinds import JOINED, LOADED, SUDDEN, Place, hang, kind, prctl


@kind(r"in loops\b")
def loops(_: Place) -> None:
    while True:
        pass


@kind(r"in hang\b|gave no stack", phases=SUDDEN)
def sleeps(_: Place) -> None:
    hang()


@kind(r"in matches\b")
def matches(_: Place) -> None:
    re.match(r"(a|aa)+$", "a" * 100 + "b")


@kind(r"in sleeps_with_the_interpreter_held\b")
def sleeps_with_the_interpreter_held(_: Place) -> None:
    ctypes.PyDLL(None).sleep(1000)


@kind(r"in sums\b")
def sums(_: Place) -> None:
    sum(itertools.repeat(1))


@kind(r"in locks_twice\b")
def locks_twice(_: Place) -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@kind(r"in waits_for_an_event\b")
def waits_for_an_event(_: Place) -> None:
    threading.Event().wait()


@kind(r"in reads_a_pipe\b")
def reads_a_pipe(_: Place) -> None:
    reading, _writing = os.pipe()
    os.read(reading, 1)


@kind(r"in receives_nothing\b")
def receives_nothing(_: Place) -> None:
    one, _two = socket.socketpair()
    one.recv(1)


@kind(r"in opens_a_fifo\b", phases=LOADED)
def opens_a_fifo(place: Place) -> None:
    path = Path(place.scratch, f"fifo.{place.rank}.{time.time_ns()}")
    os.mkfifo(path)
    path.read_bytes()


@kind(r"in waits_for_a_file_lock\b")
def waits_for_a_file_lock(place: Place) -> None:
    path = Path(place.scratch, "lock")
    with path.open("w") as one, path.open("w") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(two, fcntl.LOCK_EX)


@kind(r"in waits_for_a_child\b")
def waits_for_a_child(_: Place) -> None:
    subprocess.run(["sleep", "1000"], check=False)


@kind(r"in joins_a_thread\b")
def joins_a_thread(_: Place) -> None:
    thread = threading.Thread(target=time.sleep, args=(1000,))
    thread.start()
    thread.join()


@kind(r"in hang\b|gave no stack")
def hangs_without_signals(_: Place) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))
    hang()


@kind(r"in hang\b|gave no stack")
def hangs_and_ignores_signals(_: Place) -> None:
    for number in set(range(1, 32)) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    hang()


@kind(r"in hang\b")
def hangs_in_the_deep(_: Place) -> None:
    def down(depth: int) -> None:
        if depth == 0:
            hang()
        down(depth - 1)

    down(700)


@kind(r"in hang\b")
def hangs_with_many_threads(_: Place) -> None:
    for _number in range(100):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    hang()


@kind(r"in hang\b|gave no stack")
def hangs_as_an_orphan(_: Place) -> None:
    prctl(1, 0)  # no signal at the end of the parent
    hang()


@kind(r"in hang\b")
def swallows_every_exception(_: Place) -> None:
    while True:
        try:
            hang()
        except BaseException:
            continue


@kind(r"in waits_for_a_key\b", phases=LOADED)
def waits_for_a_key(_: Place) -> None:
    store: Any = __import__("torch").distributed.distributed_c10d._get_default_store()
    store.get("no such key")


@kind(r"in computes_long\b", phases=JOINED)
def computes_long(_: Place) -> None:
    pow(7, 10**9)
