"""Projects to throw away, runs of pytest in them, and a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.common.project import ROOT, RunError, busy, pytest_results, pytest_run, rate_text, repository
from pytest_ddpperf.against.git import git
from pytest_ddpperf.launch.processes import children


def test_a_rate_is_shown_with_its_interval() -> None:
    """By Clopper and Pearson, 1 of 10 is 0.25 to 44.5 %; of many comparisons the ends have a decimal."""
    assert rate_text(1, 10) == "10.0 % [0 .. 45]"
    assert rate_text(0, 1000) == "0.0 % [0.0 .. 0.4]"


def test_a_run_keeps_its_output_and_the_result_of_each_test(tmp_path: Path) -> None:
    repository(tmp_path, {"test_it.py": "def test_it():\n    assert 1 == 2, 'no'\n"})
    ran = pytest_run(tmp_path, ["-p", "no:randomly"])
    assert (ran.status, ran.results) == (1, [])
    assert ran.tests["test_it::test_it"].find("failure") is not None
    assert "1 failed" in ran.printed
    assert git(tmp_path, "log", "--format=%s %an") == "main benchmark"
    with pytest.raises(RunError, match=r"(?s)pytest ended with status 1\n.*1 failed"):
        pytest_results(tmp_path, [])


LIVES = """\
import os, signal, sys
from benchmarks.common.project import busy
from pytest_ddpperf.launch.processes import children
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
with busy(2):
    print(*children(), flush=True)
    signal.pause()
"""


def test_as_many_processes_as_asked_for_are_busy_until_the_end() -> None:
    before = children()

    def begun() -> int:
        with busy(2):
            assert len(children() - before) == 2
            raise KeyError

    with pytest.raises(KeyError):
        begun()
    assert children() == before
    with busy(0):
        assert children() == before


@pytest.mark.parametrize("signal", ["TERM", "KILL"])
def test_busy_processes_end_with_the_process_that_started_them(signal: str) -> None:
    with subprocess.Popen([sys.executable, "-c", LIVES], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        time.sleep(0.5)  # until the kernel knows that they are to die
        subprocess.run(["kill", f"-{signal}", str(process.pid)], check=True)
        process.wait(10)
    until = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0] != "Z"
