"""Each wait of the controller has a deadline, after which its stacks are on standard error and an error tells why."""

from __future__ import annotations

import errno
import fcntl
import importlib
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.against import revision_side
from pytest_ddpperf.baselines import files
from pytest_ddpperf.baselines.history import sqlite_file
from pytest_ddpperf.cli import cluster as advice
from pytest_ddpperf.cli.bisect import package_search
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.instruments import deadlines, health
from pytest_ddpperf.launch import payload, zygote_process
from pytest_ddpperf.launch.context import Gpus
from pytest_ddpperf.launch.faults.failures import RankEnd
from pytest_ddpperf.launch.link import Link, LinkEnded, Question
from pytest_ddpperf.launch.messages import Finished
from pytest_ddpperf.launch.nodes import cluster, joining, meeting
from pytest_ddpperf.launch.streams import Channel, Frames
from pytest_ddpperf.launch.zygote_process import ZygoteProcess
from pytest_ddpperf.run.session.leases import Leases, Locks

git = importlib.import_module("pytest_ddpperf.against.git")  # its package has a function of that name


class _Sleeps:
    """An object that is read only after ten minutes."""

    def __reduce__(self) -> Any:
        return time.sleep, (600,)


class _Process:
    """The process of a zygote that neither answers nor ends."""

    pid, returncode = os.getpid(), None

    def poll(self) -> None:
        return None

    def wait(self, seconds: float) -> None:
        raise subprocess.TimeoutExpired("zygote", seconds)


@contextmanager
def silent_zygote(monkeypatch: pytest.MonkeyPatch) -> Iterator[ZygoteProcess]:
    zygote: Any = ZygoteProcess.__new__(ZygoteProcess)
    zygote._ready, zygote._numbers, zygote._process = False, iter(range(9)), _Process()
    zygote.control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(ZygoteProcess, "_stack", lambda _: "")  # it would send this process a signal
    with zygote.control, far:
        yield zygote


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """The lock of a folder or file, which somebody else has."""
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


def wait_for_git(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "git").write_text("#!/bin/sh\nexec sleep 600\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    git.git(folder, "status", seconds=0.05)


def wait_for_setup(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revision_side, "_SETUP_SECONDS", 0.05)
    revision_side._run(["sleep", "600"], folder, None, "'sleep 600' failed")


def wait_for_pip(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_search, "_PIP_SECONDS", 0.05)
    package_search._run(["sleep", "600"])


def wait_for_baselines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.05)
    with kept(folder), files.locked(folder):
        pass


def wait_for_history(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "LOCK_TIMEOUT", 0.05)
    with closing(sqlite3.connect(folder / "runs.sqlite")) as other:
        sqlite_file.make_tables(other)
        other.execute("BEGIN EXCLUSIVE")
        with sqlite_file.open_history(folder / "runs.sqlite", "rw") as connection:
            connection.execute("BEGIN IMMEDIATE")


def wait_for_gpus(folder: Path, _: pytest.MonkeyPatch) -> None:
    with closing(Locks(folder)) as others, closing(Locks(folder)) as ours:
        assert others.take(["0000:01:00.0"]) is None
        gpus = Gpus(names=("H200",), pci=("0000:01:00.0",))
        Leases(0.05, lambda _: None, ours).on_gpus(gpus, 1, {})


def wait_for_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_search, "_LOCK_SECONDS", 0.05)
    environments = package_search.Environments(folder=folder)
    with closing(Locks(folder)) as others:
        assert others.take([environments._key({})]) is None
        environments.python({})


def wait_for_import_of_torch(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_process, "_READY_SECONDS", 0.05)
    with silent_zygote(monkeypatch) as zygote:
        zygote.wait_until_ready()


def wait_for_result(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payload, "_MIN_LOAD_SECONDS", 0.05)
    payload.values_of([RankEnd(rank=0, report=Finished(payload.dump_result(_Sleeps(), 0), 1))], 0.0)


def wait_for_workload(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "waits_for_ever.py").write_text("import threading\nthreading.Event().wait()\nworkload = 1\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    advice._found("waits_for_ever.py:workload", 0.05)


def wait_for_node(_: Path, __: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Question[int](Link(ours, Frames(b"key", b"s", b"c"), "node 1 (b)"), 0).answer(0.05)


def wait_for_node_that_reads_nothing(_: Path, __: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.05)
        Link(ours, Frames(b"key", b"s", b"c"), "node 1 (b)").send_bytes(bytes(1 << 26))


def wait_for_tasks(_: Path, __: pytest.MonkeyPatch) -> None:
    own = meeting.Hello(rank=0, host="a", machine="a", cores=frozenset({0}))
    nodes = cluster.Cluster("127.0.0.1", own, 3)
    try:
        nodes.gather(0.05)
    finally:
        nodes.close(0)


def wait_for_controller(_: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "MEETING_SECONDS", 0.05)
    file: Any = type("NoFile", (), {"find": lambda _: None})()
    joining._met(file, meeting.Hello(rank=1, host="b", machine="b", cores=frozenset({0})))


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        (wait_for_git, r"git status did not end within 0\.05 s$"),
        (wait_for_setup, r"--ddpperf-against-setup: 'sleep 600' failed: it had not ended after 0\.05 s; run it by"),
        (wait_for_pip, r"--packages: Command .* timed out after 0\.05 seconds: run the command by hand"),
        (wait_for_baselines, r"baselines cannot be saved in .*: another process has locked it for 0\.05 s; end that"),
        (wait_for_history, r"history file .*: database is locked; try again$"),
        (wait_for_gpus, r"GPUs are in use by .* not free within 0\.05 s; wait longer with --ddpperf-gpu-lock-timeout="),
        (wait_for_environment, r"--packages: .* has been creating the environment .* for 0\.05 s: end that process"),
        (wait_for_import_of_torch, r"the import of torch took more than 0 s$"),
        (wait_for_result, r"the result of rank 0 was not read by the test session before the deadline of the launch; "),
        (wait_for_workload, r"'waits_for_ever\.py:workload': the import of .* not ended within --timeout=0\.05 s; "),
        (wait_for_node, r"node 1 \(b\) did not answer within 0 s$"),
        (wait_for_node_that_reads_nothing, r"node 1 \(b\) is gone: its connection has ended \(timed out\)$"),
        (wait_for_tasks, r"rank 1 of the launcher and 1 more did not connect to rank 0 within 0 s: see its output"),
        (wait_for_controller, r"rank 0 of the launcher, which controls the run, did not join: .* \(waited 0 s\)$"),
    ],
)
def test_a_wait_that_takes_too_long_fails_and_shows_its_stack(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    wait: Callable[[Path, pytest.MonkeyPatch], None],
    told: str,
) -> None:
    with pytest.raises(Exception, match=f"^{told}") as caught:
        wait(tmp_path, monkeypatch)
    assert "\n" not in str(caught.value)
    assert_shown(capfd.readouterr().err, f"in {wait.__name__}")


def assert_shown(text: str, *found: str) -> None:
    assert re.search(rf"^ddpperf: .*; the stacks of process {os.getpid()}:$", text, re.MULTILINE)
    for each in ('File "', *found):
        assert each in text


def test_if_the_fork_server_neither_answers_nor_ends_the_stack_of_the_session_is_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(zygote_process, "_END_SECONDS", 0.05)
    monkeypatch.setattr(zygote_process, "_SWEEP_SECONDS", 0.05)
    with silent_zygote(monkeypatch) as zygote:
        assert not zygote.sweep(0.0)
        assert_shown(capfd.readouterr().err, "forks ranks did not answer within 0 s", "in answer", "in sweep")
        assert not zygote._has_ended()
        assert_shown(capfd.readouterr().err, "forks ranks had not ended after 0.05 s", "in _has_ended")


def test_if_a_driver_does_not_answer_the_stack_of_the_session_is_shown(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(health, "_MAX_WAIT", 0.05)
    readings, answers = iter([1]), threading.Event()
    sampler = health.Sampler(lambda: next(readings, None) or answers.wait(), 0.0)
    assert sampler.stop(None) is None
    assert_shown(capfd.readouterr().err, "a reading of the machine's state had not ended after 0.05 s", "in stop")
    answers.set()


def test_an_import_that_the_user_interrupts_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "is_interrupted.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(KeyboardInterrupt):
        advice._found("is_interrupted.py:workload", 600.0)


def join_watchers() -> None:
    for thread in threading.enumerate():
        if thread.name == "ddpperf-overdue":
            thread.join(30)


def test_a_wait_that_ends_in_time_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    ended = threading.Event()
    with deadlines.watched("late", 600.0, ended.set) as shown:
        pass
    join_watchers()
    assert not shown.is_set()
    assert not ended.is_set()
    assert capfd.readouterr().err == ""


def test_an_endless_wait_is_shown_and_ended(capfd: pytest.CaptureFixture[str]) -> None:
    ended = threading.Event()
    with deadlines.watched("a wait had not ended", 0.01, ended.set) as shown:
        assert ended.wait(30)
    assert shown.is_set()
    assert_shown(capfd.readouterr().err, "ddpperf: a wait had not ended; ", "in test_an_endless_wait")


def test_a_wait_that_ends_while_its_stacks_are_written_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    writing, over, called = threading.Event(), threading.Event(), threading.Event()

    def written(_: str) -> None:
        writing.set()
        assert over.wait(30)

    monkeypatch.setattr(deadlines, "late", written)
    with deadlines.watched("late", 0.0, called.set) as ended:
        assert writing.wait(30)
    over.set()
    join_watchers()
    assert not ended.is_set()
    assert not called.is_set()


def test_an_import_in_a_background_job_of_a_shell_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which ignores interrupts, then as before."""
    begun = threading.Event()
    monkeypatch.setattr(deadlines, "late", lambda _: begun.wait(30))
    monkeypatch.setattr(sys, "import_begun", begun.set, raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "waits_in_background.py"
    file.write_text("import sys, threading\nsys.import_begun()\nthreading.Event().wait(30)\n")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(SettingError, match=r"had not ended within --timeout=0 s; raise it, or let the file only"):
            advice._found(f"{file}:workload", 0.0)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_connection_that_the_kernel_gives_up_shows_no_stacks(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing was waited for: it happens four seconds after the peer's machine is gone."""

    def fails(*_: object) -> None:
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    monkeypatch.setattr(Channel, "send_bytes", fails)
    near, far = socket.socketpair()
    with near, far, pytest.raises(LinkEnded, match=r"^node 1 is gone: .* \(\[Errno 110\] Connection timed out\)$"):
        Link(near, Frames(), "node 1").send_bytes(b"")
    assert capfd.readouterr().err == ""


def test_stacks_that_cannot_be_shown_hide_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> AbstractContextManager[None]:
        raise OSError

    monkeypatch.setattr(deadlines, "uncaptured", fails)
    error = SettingError("x=1: late\nmore")
    assert deadlines.late(error) is error
    monkeypatch.setattr(deadlines, "uncaptured", nullcontext)


@pytest.mark.slow
def test_stacks_are_printed_although_pytest_captures_output(pytester: pytest.Pytester) -> None:
    """In a test, with a lock of the baselines that another process keeps."""
    pytester.makeconftest(
        """
        import fcntl, os
        from pytest_ddpperf.baselines import files

        files.LOCK_SECONDS = 0.05
        os.mkdir("stored")
        fcntl.flock(os.open("stored", os.O_RDONLY), fcntl.LOCK_EX)
        """
    )
    pytester.makepyfile(
        """
        from pytest_ddpperf.baselines import files

        def test_waits(ddpperf_group, tmp_path):
            with files.locked(tmp_path.cwd() / "stored"):
                pass
        """
    )
    run = pytester.runpytest_subprocess("-q", timeout=120)
    run.assert_outcomes(failed=1)
    run.stderr.fnmatch_lines(["ddpperf: baselines cannot be saved in *; the stacks of process *:", "* in test_waits"])
