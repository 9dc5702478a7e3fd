"""What the kernel tells of processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch import processes


def test_files_of_nccl_that_a_process_has_mapped_are_found(tmp_path: Path) -> None:
    maps = """\
7f01-7f02 rw-s 00000000 00:1a 5  /dev/shm/nccl-AbC123
7f02-7f03 rw-s 00001000 00:1a 5  /dev/shm/nccl-AbC123
7f03-7f04 rw-s 00000000 00:1a 6  /dev/shm/nccl-gone99 (deleted)
7f04-7f05 rw-s 00000000 00:1a 7  /dev/shm/torch_17_1
7f05-7f06 rw-s 00000000 00:1a 8  /dev/shm/nccl-Xy_z00
"""
    (tmp_path / "proc/17").mkdir(parents=True)
    (tmp_path / "proc/17/maps").write_text(maps)
    assert processes.nccl_files(17, tmp_path) == {f"/dev/shm/nccl-{name}" for name in ("AbC123", "Xy_z00")}  # noqa: S108
    assert processes.nccl_files(18, tmp_path) == set()


def test_a_gpu_in_use_is_known_by_files_or_by_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = tmp_path / "proc/self/fd/3"
    opened.parent.mkdir(parents=True)
    monkeypatch.delitem(sys.modules, "torch.cuda", raising=False)
    for device in ("/dev/nvidiactl", "/dev/kfd", "/dev/null", "/home/dev/nvidia0"):
        opened.symlink_to(device)
        assert processes.touches_gpu(tmp_path) is (device in {"/dev/nvidiactl", "/dev/kfd"})
        opened.unlink()
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace(is_initialized=lambda: True))
    assert processes.touches_gpu(tmp_path)


def test_out_of_memory_kills_are_counted_for_the_own_control_group_otherwise_for_the_machine(tmp_path: Path) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    write("proc/vmstat", "pgfault 9\noom_kill 7\n")
    write("proc/self/cgroup", "0::/jobs\n")
    write("proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup rw\n")
    assert processes.out_of_memory_kills(tmp_path) == 7
    write("sys/fs/cgroup/jobs/memory.events", "low 0\noom 3\noom_kill 2\n")
    assert processes.out_of_memory_kills(tmp_path) == 2


def test_a_refusal_of_the_kernel_to_adopt_orphans_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_PR_SET_CHILD_SUBREAPER", -1)
    with pytest.raises(OSError, match=r"the kernel refused to let this process adopt orphans: Invalid argument"):
        processes.adopt_orphans()


def test_a_system_that_cannot_start_ranks_is_reported_with_the_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(LaunchError, match=r"^ranks need the file system /proc, which is not mounted here; mount it$"):
        processes.require_linux(tmp_path)
    for platform, system in {"darwin": "macOS", "win32": "Windows", "freebsd14": "freebsd14"}.items():
        monkeypatch.setattr(sys, "platform", platform)
        told = rf"^ranks need Linux, and this machine runs {system}: run the tests on a Linux machine or in "
        with pytest.raises(LaunchError, match=told):
            processes.require_linux()


def test_a_variable_is_overwritten_only_by_a_value_of_the_same_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARKED", "old")
    processes.overwrite_variable("MARKED", "new")
    assert os.environ["MARKED"] == "new"
    for name, value in (("MARKED", "longer"), ("MARKED", "no"), ("NOT_MARKED", "new")):
        with pytest.raises(ValueError, match=f"^the .* {name} must have as many bytes as its new value '{value}'$"):
            processes.overwrite_variable(name, value)
    assert os.environ["MARKED"] == "new"


def in_its_session(code: str, **how: Any) -> subprocess.CompletedProcess[str]:
    return processes.finished(["/bin/sh", "-c", code], 60, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)


def test_a_command_says_how_it_ended_and_has_no_terminal() -> None:
    done = in_its_session("cat; echo complains >&2; exit 3", words="given\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "given\n", "complains\n")
    session = in_its_session("cut -d' ' -f6 /proc/self/stat").stdout
    assert int(session) not in {0, os.getsid(0)}


@pytest.mark.parametrize(("patience", "cleans_up"), [(0.0, False), (30.0, True)])
def test_a_command_that_takes_too_long_is_killed_or_first_asked_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: float, *, cleans_up: bool
) -> None:
    os.mkfifo(tmp_path / "waiting")
    given: list[subprocess.Popen[str]] = []

    def communicate(process: subprocess.Popen[str], _words: None, timeout: float) -> None:
        given.append(process)
        assert (tmp_path / "waiting").read_text() == "started\n"
        raise subprocess.TimeoutExpired("sh", timeout)  # here and now: it has set its trap

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    code = "trap 'touch cleaned; exit 7' INT; echo started > waiting; while :; do read nothing; done"
    with pytest.raises(subprocess.TimeoutExpired):
        in_its_session(code, cwd=tmp_path, patience=patience)
    assert (tmp_path / "cleaned").exists() is cleans_up
    assert given[0].returncode == (7 if cleans_up else -signal.SIGKILL)


def test_an_interrupt_that_leaves_the_lock_of_popen_taken_hangs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython's timed wait takes the lock just before the block that gives it back: an interrupt may come between."""
    given: list[subprocess.Popen[str]] = []

    def interrupted(process: subprocess.Popen[str], *_: object, **__: object) -> None:
        given.append(process)
        vars(process)["_waitpid_lock"].acquire()
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        in_its_session("read nothing; kill -STOP $$")
    assert given[0].returncode == -signal.SIGKILL


def test_a_killed_command_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that waits for a disk or a mount: the kernel reports its end only much later."""
    monkeypatch.setattr(processes, "_DYING", 0.1)
    monkeypatch.setattr(os, "waitpid", lambda _pid, options: (0, 0) if options == os.WNOHANG else pytest.fail("waits"))
    with pytest.raises(subprocess.TimeoutExpired):
        processes.finished(["sleep", "60"], 0.1)
