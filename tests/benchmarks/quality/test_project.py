"""The throw-away project, and a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from benchmarks.quality.project import ROOT, busy, rate_text
from pytest_ddpperf.launch.processes import children
from pytest_ddpperf.stats.rates import Rate


def test_a_rate_is_told_with_its_interval() -> None:
    """By Clopper and Pearson, 1 of 10 is 0.25 to 44.5 %; of many comparisons the ends have a decimal."""
    assert rate_text(Rate(1, 10, 10)) == "10.0 % [0 .. 45]"
    assert rate_text(Rate(0, 1000, 1000)) == "0.0 % [0.0 .. 0.4]"


LIVES = """\
import os, signal, sys
from benchmarks.quality.project import busy
from pytest_ddpperf.launch.processes import children
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
with busy(2):
    print(*children(), flush=True)
    signal.pause()
"""


def test_as_many_as_asked_for_are_busy_until_the_end() -> None:
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
def test_they_end_with_a_process_that_is_ended(signal: str) -> None:
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
