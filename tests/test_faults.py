"""Whole pytest runs in which ranks or the run itself come to harm: what is reported, what is left, and what goes on.

``benchmarks/faults.py`` draws many more of them at random.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_ddpperf.errors import NOT_MEASURED

ROOT = Path(__file__).parents[1]
END_SECONDS = 5.0  # in which all is gone
LOCKS = "pytest-ddpperf-*.lock"  # empty: one that is removed could be taken twice
RUN_SECONDS = 120.0
MARK = "DDPPERF_TEST_OF_FAULTS"

STORED = """
def test_stored(ddpperf):
    def build(ctx):
        import torch
        return lambda: torch.distributed.all_reduce(torch.ones(64))
    ddpperf.check(build)
"""
FAULTS = """
import atexit, ctypes, os, shutil, signal, subprocess, sys, threading, time

import pytest


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def raise_mute():
    raise Mute


def crash():
    ctypes.string_at(0)


def hold_the_interpreter():
    while True:  # for the signal that asks for stacks ends a sleep of C
        ctypes.PyDLL(None).sleep(1000)


def ignore_signals():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        time.sleep(1)


def leave_much():
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(1000)"], start_new_session=True)
    threading.Thread(target=time.sleep, args=(1000,)).start()
    atexit.register(time.sleep, 1000)


def change_everything():
    import torch
    torch.set_default_dtype(torch.float64)
    os.environ.update(RANK="7", WORLD_SIZE="9", TMPDIR="/nowhere")
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    sys.path.clear()


def flood():
    for descriptor in (1, 2):
        for _ in range(100):
            os.write(descriptor, b"flood " * (1 << 17))


def together(ctx, fault):
    import torch.distributed as dist
    if ctx.rank == 1:
        fault()
    dist.barrier()
    return ctx.rank


FAULTS = [
    raise_mute, lambda: os._exit(0), lambda: os.kill(os.getpid(), signal.SIGKILL), crash, hold_the_interpreter,
    ignore_signals, lambda: os.closerange(0, 65536), leave_much, change_everything, flood,
]


@pytest.mark.parametrize("number", range(len(FAULTS)))
class TestFault:
    @pytest.mark.ddpperf(timeout=3)
    def test_fault(self, ddpperf_group, number):
        assert ddpperf_group.run(together, FAULTS[number]).values == (0, 1)

    def test_next(self, ddpperf_group, number):
        assert ddpperf_group.run(together, int).values == (0, 1)
"""
REPORTS = (
    "rank 1 of 2 raised test_faults.Mute",
    "rank 1 of 2 exited with status 0, which os._exit() or a library does: return from the function instead",
    "rank 1 of 2 was killed by SIGKILL",
    "rank 1 of 2 was killed by SIGSEGV",
    "rank 0 of 2 blocked after 3 s in barrier*(test_faults.py:* in together); rank 1 standing at *:* in hold_",
    "rank 0 of 2 blocked after 3 s in barrier*(test_faults.py:* in together); rank 1 standing at *:* in ignore_",
    "rank 1 of 2 [ew]",  # exited, or was killed by an abort of gloo's: it has no files left
)
# A rank tells when it measures. It is named by the environment, so that it is no part of the test.
MEASURING = """
import os, time
from pathlib import Path

def test_long(ddpperf_group):
    def wait(ctx):
        import torch.distributed as dist
        dist.barrier()
        Path(os.environ["DDPPERF_TEST_REACHED"]).write_text(f"{os.getppid()}")
        time.sleep(1000)
    ddpperf_group.run(wait)
"""
NO_SPACE = """
import resource
import pytest

@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_runtest_makereport(item, call):
    if call.when == "teardown":  # what is stored from here on is longer
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    report = yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return report
"""


class Done(NamedTuple):
    """What a run said, its status, and the seconds from the last signal to its end."""

    output: str
    status: int
    seconds: float


@dataclass(frozen=True)
class Project:
    """A project with a stored baseline, whose runs have a folder for temporary files of their own."""

    folder: Path
    mark: str

    @property
    def temporary(self) -> Path:
        return self.folder / "temporary"

    @property
    def reached(self) -> Path:
        """A file that a rank of ``test_long`` writes, with the process id of its zygote."""
        return self.folder / "reached"

    def run(self, *arguments: str, harm: Callable[[int], None] | None = None) -> Done:
        """Run pytest, and ``harm`` it when ranks are at work; it gets the process id."""
        environ = {
            **os.environ,
            MARK: self.mark,
            "TMPDIR": str(self.temporary),
            "DDPPERF_TEST_REACHED": str(self.reached),
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
        }
        options = ("-q", "-p", "no:cacheprovider", "--ddpperf-device=cpu", "--ddpperf-world-size=2")
        self.reached.unlink(missing_ok=True)
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, *arguments],
            cwd=self.folder / "project",
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                deadline = time.monotonic() + RUN_SECONDS
                while harm is not None and not (self.reached.exists() and self.reached.read_text()):
                    assert process.poll() is None
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
                started = time.monotonic()
                if harm is not None:
                    harm(process.pid)
                output, _ = process.communicate(timeout=RUN_SECONDS)
            finally:
                process.kill()
        return Done(output, process.returncode, time.monotonic() - started)

    def baselines(self) -> Mapping[Path, bytes]:
        files = (path for path in (self.folder / "project" / "baselines").rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in files}

    def _processes(self) -> list[int]:
        mark, found = os.fsencode(f"{MARK}={self.mark}"), []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return sorted(found)

    def left(self) -> tuple[Sequence[str], Sequence[int]]:
        """Temporary files but locks, which stay, and processes that have not ended some seconds after the run."""
        deadline = time.monotonic() + END_SECONDS
        while (pids := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        names = [path.name for path in self.temporary.iterdir() if "torchinductor" not in path.name]
        return sorted(name for name in names if not fnmatchcase(name, LOCKS)), pids


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("faults"), uuid.uuid4().hex)
    made.temporary.mkdir()
    folder = made.folder / "project"
    folder.mkdir()
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in (("stored", STORED), ("faults", FAULTS), ("long", MEASURING)):
        (folder / f"test_{name}.py").write_text(text)
    done = made.run("test_stored.py", "--ddpperf-save", "--ddpperf-counts=only")
    assert done.status == 0, done.output
    assert made.baselines()
    return made


@pytest.mark.slow
def test_each_fault_fails_its_own_test_within_its_deadline_and_nothing_is_left(project: Project) -> None:
    before = project.baselines()
    done = project.run("test_stored.py", "test_faults.py", "--ddpperf-counts=only", "--durations=0")
    assert done.status == 1
    failed = [line.partition(" - ")[2] for line in done.output.splitlines() if line.startswith("FAILED")]
    assert len(failed) == len(REPORTS), done.output
    for line, report in zip(failed, REPORTS, strict=True):
        assert fnmatchcase(line, f"{report}*"), line
    calls = re.findall(r"^([0-9.]+)s call +test_faults.py::TestFault::test_fault", done.output, re.MULTILINE)
    assert len(calls) == len(REPORTS) + 3  # those that harm nobody
    assert max(map(float, calls)) < 3 + END_SECONDS
    assert project.left() == ([], [])
    assert project.baselines() == before


SIGNALS = {"interrupt": ([signal.SIGINT], 2), "hang up": ([signal.SIGHUP], -1), "terminate": ([signal.SIGTERM], 2)}
SIGNALS |= {"interrupt twice": ([signal.SIGINT] * 2, 2), "kill": ([signal.SIGKILL], -9)}


@pytest.mark.slow
@pytest.mark.parametrize(("numbers", "status"), SIGNALS.values(), ids=[*SIGNALS])
def test_a_signal_to_the_run_leaves_nothing_and_the_next_run_passes(
    project: Project, numbers: Sequence[int], status: int
) -> None:
    before = project.baselines()

    def send(pid: int) -> None:
        for number in numbers:
            os.kill(pid, number)

    done = project.run("test_long.py", "test_stored.py", harm=send)
    assert done.status == status
    assert done.seconds < END_SECONDS
    assert project.left() == ([], [])
    assert project.baselines() == before
    assert project.run("test_stored.py", "--ddpperf-counts=only").status == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGKILL, "the process that forks ranks was killed by SIGKILL"),
        (signal.SIGSTOP, "a signal stopped the process that forks ranks"),
    ],
)
def test_a_killed_or_stopped_fork_server_is_reported_and_replaced_for_the_next_test(
    project: Project, number: int, told: str
) -> None:
    done = project.run(
        "test_long.py",
        "test_stored.py",
        "--ddpperf-counts=only",
        "--ddpperf-timeout=6",
        harm=lambda _: os.kill(int(project.reached.read_text()), number),
    )
    assert f"FAILED test_long.py::test_long - {told}" in done.output
    assert "1 failed, 1 passed" in done.output
    assert project.left() == ([], [])


@pytest.mark.slow
def test_a_disk_without_space_keeps_the_baseline_that_was_stored(project: Project) -> None:
    before = project.baselines()
    conftest = project.folder / "project" / "conftest.py"
    conftest.write_text(NO_SPACE)
    try:
        done = project.run("test_stored.py", "--ddpperf-counts=only", "--ddpperf-save")
    finally:
        conftest.unlink()
    assert done.status == NOT_MEASURED  # nothing was found worse
    assert "File too large" in done.output
    assert project.baselines() == before
    assert project.left() == ([], [])
