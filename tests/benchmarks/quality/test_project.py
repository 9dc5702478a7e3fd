"""The throw-away project: a git repository whose branches differ in one constant each; and a busy machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.quality.project import (
    BASE,
    CHANGES,
    HELD,
    ROOT,
    busy,
    check_out,
    make_project,
    make_workload_project,
    picked,
)
from benchmarks.quality.steps import Calibration, Injection
from pytest_ddpperf.against.git import commit_of, git
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.processes import children

CALIBRATION = Calibration(step=0.012, product=2e-6, reduces={16: 1e-4, 4096: 6e-4})


def test_changes_are_picked_by_name() -> None:
    assert picked(None) == [*CHANGES]
    assert picked(["+10%", "unchanged", "+10%", "perf_tests"]) == ["+10%", "unchanged", "perf_tests"]
    with pytest.raises(SettingError, match=r"^--changes 'no': there are 'unchanged', .*'perf_tests'$"):
        picked(["no"])


def test_what_is_slower_is_only_timed() -> None:
    assert {name for name, change in CHANGES.items() if change.times_only} == {name for name in CHANGES if "%" in name}


def test_every_change_is_between_two_branches_that_are_there(tmp_path: Path) -> None:
    make_project(tmp_path, "12ms", CALIBRATION)
    assert git(tmp_path, "status", "--porcelain") == ""
    for change in CHANGES.values():
        assert commit_of(tmp_path, change.here) is not None, change.name
        assert commit_of(tmp_path, change.against) is not None, change.name


@pytest.mark.parametrize(
    ("branch", "line"),
    [
        (BASE, f"    step = Training(LENGTHS['12ms'], {Injection()})(ctx)"),
        ("slower", f"    step = Training(LENGTHS['12ms'], {Injection(products=600)})(ctx)"),
        ("all-reduce", f"    step = Training(LENGTHS['12ms'], {Injection(elements=16)})(ctx)"),
        ("memory", f"HELD = {HELD}  # bytes"),
    ],
)
def test_a_branch_differs_from_the_base_in_its_own_line_alone(tmp_path: Path, branch: str, line: str) -> None:
    make_project(tmp_path, "12ms", CALIBRATION)
    check_out(tmp_path, branch)
    assert line in (tmp_path / "src" / "training.py").read_text(encoding="utf-8").splitlines()
    differing = git(tmp_path, "diff", "--numstat", BASE)
    assert differing == ("" if branch == BASE else "1\t1\tsrc/training.py")


def test_a_workload_has_a_project_of_one_commit(tmp_path: Path) -> None:
    make_workload_project(tmp_path, "60ms")
    assert git(tmp_path, "rev-list", "--count", "--all") == "1"
    assert "workload(LENGTHS['60ms'])" in (tmp_path / "src" / "training.py").read_text(encoding="utf-8")


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
