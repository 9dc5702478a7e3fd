"""One worker of a campaign: a namespace of processes, mounts and network of its own, in which nothing may be left."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from benchmarks.campaign.at_fork import SCRATCH
from benchmarks.campaign.kinds import Case, drawn
from benchmarks.campaign.left import END_SECONDS, SHARED, Present, left, present, processes, reap
from benchmarks.campaign.sessions import mount, run_session
from benchmarks.campaign.suites import SIZE, drawn_in_suite, run_suite
from benchmarks.campaign.training import written
from benchmarks.campaign.verdicts import GRACE, Verdict, judged

ROOT = Path(__file__).parents[2]
BASE = Path("/mnt")
TEMPORARY, WORK = BASE / "temporary", BASE / "work"
READY_SECONDS, LATE_SECONDS, NEXT_SECONDS = 120.0, 40.0, 60.0


def isolate() -> None:
    """Give this process's namespaces a loopback device and small file systems of their own."""
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


class Worker:
    """Runs cases one after the other and yields a verdict on each."""

    def __init__(self, log: IO[bytes]) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._asking: IO[bytes]
        self._answering: IO[bytes]
        self._files = 0
        self._scratch = WORK / "scratch"
        self._temporary = TEMPORARY / "tmp"

    def run(self, case: Case) -> Verdict:
        self._fresh()
        if case.way == "pytest":
            self.close()
            before = present(self._temporary)
            found, said = run_session(case, self._scratch, self._temporary, self._log)
            return judged(case, found, self._left(set(), before, GRACE), said, self._acted())
        zygotes = self._ready()
        before = present(self._temporary)
        self._ask(written(case))
        outcome = self._answer(case.timeout + LATE_SECONDS)
        acted = self._acted()
        if outcome is None:
            self.close()
            return judged(case, None, self._left(set(), before), "the session hung and was killed", acted)
        remaining = self._left({pid for pid in outcome["zygotes"] if pid}, before)
        self._fresh()
        self._ask("next")
        following = self._answer(NEXT_SECONDS)
        if following is None:
            self.close()
            return judged(case, outcome, remaining, "the next launch hung", acted)
        if following["files"] > self._files:
            remaining.append(f"{following['files'] - self._files} descriptors of the session")
            self.close()
        if None in following["zygotes"] or zygotes is None:
            self._files = 0  # the other launcher has no zygote now, which has descriptors
            self.close()
        return judged(case, outcome, remaining, following["said"], acted)

    def _fresh(self) -> None:
        for path in (self._scratch, self._temporary):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
        for path in TEMPORARY.iterdir():
            if path != self._temporary:
                path.unlink()

    def _acted(self) -> float | None:
        with contextlib.suppress(OSError, ValueError):
            return float((self._scratch / "acted").read_text(encoding="ascii"))
        return None

    def _ready(self) -> object:
        if self._process is not None and self._process.poll() is None:
            return True
        self.close()
        environ = {
            **os.environ,
            SCRATCH: str(self._scratch),
            "TMPDIR": str(self._temporary),
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        reading, asking = os.pipe()
        answering, writing = os.pipe()
        self._asking, self._answering = os.fdopen(asking, "wb"), os.fdopen(answering, "rb")
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from benchmarks.campaign.controller import main; main()"],
            stdin=reading,
            stdout=writing,
            stderr=self._log,
            env=environ,
            cwd=WORK,
        )
        os.close(reading)
        os.close(writing)
        answer = self._answer(READY_SECONDS)
        if answer is None:
            sys.exit("no launcher could be started")
        self._files = answer["files"]
        return answer["zygotes"]

    def _ask(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._asking.write(line.encode() + b"\n")
            self._asking.flush()

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        if not select.select([self._answering], [], [], seconds)[0]:
            return None
        line = self._answering.readline()
        answer: dict[str, Any] | None = json.loads(line) if line else None
        return answer

    def close(self) -> None:
        """End the controller, and all that it left."""
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._asking.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(8)
            self._process.kill()
            self._process.wait()
            self._answering.close()
        self._process = None
        for pid in processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reap()

    def _left(self, zygotes: set[int], before: Present, seconds: float = END_SECONDS) -> list[str]:
        """What a case has left; it is ended and removed here."""
        allowed = zygotes | ({self._process.pid} if self._process is not None else set())
        words, pids, shared = left(self._temporary, before, allowed, seconds)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for name in shared:
            (SHARED / name).unlink(missing_ok=True)
        return words


def work_on_suites(seed: int, numbers: list[int], output: Path) -> Iterator[Verdict]:
    """Run the suites of these faults; each verdict is written to ``output`` at once."""
    with output.open("a", encoding="utf-8") as file, open(f"{output}.log", "ab") as log:
        isolate()
        for first in range(0, len(numbers), SIZE):
            cases = [drawn_in_suite(seed, number) for number in numbers[first : first + SIZE]]
            for verdict in run_suite(cases, WORK / "suite", TEMPORARY / "tmp", WORK / "stored", log):
                file.write(json.dumps(asdict(verdict)) + "\n")
                file.flush()
                yield verdict


def work(seed: int, numbers: list[int], output: Path) -> Iterator[Verdict]:
    """Run these cases; each verdict is written to ``output`` at once."""
    with output.open("a", encoding="utf-8") as file, open(f"{output}.log", "ab") as log:
        isolate()
        worker = Worker(log)
        for number in numbers:
            verdict = worker.run(drawn(seed, number))
            file.write(json.dumps(asdict(verdict)) + "\n")
            file.flush()
            yield verdict
        worker.close()
