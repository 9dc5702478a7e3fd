"""One worker of a campaign: a namespace of processes, mounts and network of its own, in which nothing may be left."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from benchmarks.campaign.cases import drawn
from benchmarks.campaign.commands import run_command, run_named
from benchmarks.campaign.hostile import COMMANDS, NAMED
from benchmarks.campaign.left import SHARED, present, processes, reap
from benchmarks.campaign.sessions import SIZE, mount, run_session, run_suite
from benchmarks.campaign.verdicts import Verdict

BASE = Path("/mnt")
TEMPORARY, WORK = BASE / "temporary", BASE / "work"


def isolate() -> None:
    """Gives this process's namespaces a loopback device and small file systems of their own."""
    if os.getpid() != 1:
        sys.exit("a worker is the first process of its namespace: use `python benchmarks/faults.py run`")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it, and so would pytest
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, 0x8914, struct.pack("16sh", b"lo", 0x41))  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING
    for path, size in ((BASE, "2g"), (SHARED, "256m"), (TEMPORARY, "256m")):
        path.mkdir(exist_ok=True)
        mount(path, size)
    WORK.mkdir()


def work(seed: int, numbers: list[int], output: Path, *, sessions: bool) -> Iterator[Verdict]:
    """Runs these cases; each verdict is written to ``output`` at once."""
    cases = [drawn(seed, number, session=sessions) for number in numbers]
    scratch, temporary = WORK / "scratch", TEMPORARY / "tmp"
    with output.open("a", encoding="utf-8") as file, open(f"{output}.log", "ab") as log:
        isolate()
        for first in range(0, len(cases), 1 if sessions else SIZE):
            for path in (scratch, temporary):
                shutil.rmtree(path, ignore_errors=True)
                path.mkdir()
            if sessions:
                run = run_command if cases[first].kind in COMMANDS else run_session
                run = run_named if cases[first].kind in NAMED else run
                made = iter([run(cases[first], scratch, temporary, present(temporary), log)])
            else:
                made = run_suite(cases[first : first + SIZE], WORK / "suite", temporary, WORK / "stored", log)
            for verdict in made:
                file.write(json.dumps(asdict(verdict)) + "\n")
                file.flush()
                yield verdict
            for pid in processes():  # what was left is told, and ends here
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            reap()
            for name in present(temporary).shared:
                (SHARED / name).unlink(missing_ok=True)
