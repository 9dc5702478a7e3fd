"""Tests that share ranks: how long these live, what is told of what a test leaves, and how they end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SUITE = """
import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist

pytestmark = pytest.mark.ddpperf(world_size=2, device="cpu", backend="gloo", timeout=60)


def seen(ctx):
    dist.barrier()
    with open("pids", "a") as file:
        file.write(f"{os.getpid()}\\n")


def test_first(ddpperf_group): ddpperf_group.run(seen)
def test_second(ddpperf_group): ddpperf_group.run(seen)
"""


def run_tests(inner: pytest.Pytester, tests: str, *options: str, group: str = "session") -> pytest.RunResult:
    inner.makepyfile(test_one=SUITE + tests, test_two=SUITE)
    return inner.runpytest_inprocess("-q", "-p", "no:cacheprovider", f"--ddpperf-group={group}", *options)


def pids(pytester: pytest.Pytester) -> list[int]:
    """Those of the ranks of each call, in order."""
    return [int(line) for line in (pytester.path / "pids").read_text().splitlines()]


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def require_gone(found: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(map(alive, found)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in found if alive(pid)]


@pytest.mark.parametrize(("scope", "processes"), [("test", 8), ("module", 4), ("session", 2)])
def test_ranks_live_as_long_as_the_setting_says(inner: pytest.Pytester, scope: str, processes: int) -> None:
    run_tests(inner, "", group=scope).assert_outcomes(passed=4)
    found = pids(inner)
    assert (len(found), len({*found})) == (8, processes)
    require_gone(found)


def test_a_marker_gives_a_module_lasting_ranks_and_a_test_that_measures_ends_them(inner: pytest.Pytester) -> None:
    more = """
pytestmark = [pytestmark, pytest.mark.ddpperf(group="session")]

def test_third(ddpperf, ddpperf_group): ddpperf_group.run(seen)
def test_fourth(ddpperf_group): ddpperf_group.run(seen)
"""
    run_tests(inner, more, "test_one.py", group="test").assert_outcomes(passed=4)
    found = pids(inner)
    calls = [{*found[start : start + 2]} for start in range(0, 8, 2)]
    assert calls[0] == calls[1]
    assert not calls[0] & (calls[2] | calls[3])
    assert not calls[2] & calls[3]


def test_what_a_test_leaves_is_a_warning_that_names_it(inner: pytest.Pytester) -> None:
    more = """
@pytest.mark.ddpperf(mesh="dp=1,tp=2")
def test_leaves(ddpperf_group):
    def leaves(ctx):
        os.environ["OF_TEST"] = "1"
        dist.new_group([0, 1])
    ddpperf_group.run(leaves)

def test_next(ddpperf_group):
    assert ddpperf_group.agree(lambda ctx: [os.environ.get("OF_TEST"), os.getcwd()]) == [None, os.getcwd()]
"""
    run = run_tests(inner, more, "test_one.py", "-Wdefault::pytest_ddpperf.errors.LeftOnRanks")
    run.assert_outcomes(passed=4, warnings=2)
    run.stdout.fnmatch_lines(
        [
            "test_one.py::test_leaves",
            "*test_one.py:*: LeftOnRanks: test_one.py::test_leaves left on ranks: ranks 0, 1: environment OF_TEST",
            "*LeftOnRanks: test_one.py::test_leaves left on ranks: ranks 0, 1: 1 process group left open",
        ]
    )
    assert len({*pids(inner)}) == 2
    strict = run_tests(inner, more, "test_one.py", "-Werror::pytest_ddpperf.errors.LeftOnRanks")
    strict.assert_outcomes(passed=3, failed=1)


ENDS = """
def test_raises(ddpperf_group):
    ddpperf_group.run(lambda ctx: 1 / ctx.rank)

@pytest.mark.ddpperf(timeout=2)
def test_hangs(ddpperf_group):
    ddpperf_group.run(lambda ctx: ctx.rank or threading.Event().wait())

def test_dies(ddpperf_group):
    ddpperf_group.run(lambda ctx: os.kill(os.getpid(), signal.SIGKILL))

def test_skips(ddpperf_group):
    ddpperf_group.run(lambda ctx: pytest.skip("not today"))

def test_after(ddpperf_group): ddpperf_group.run(seen)
"""


def test_a_failure_is_of_its_test_alone(inner: pytest.Pytester) -> None:
    run = run_tests(inner, ENDS)
    run.assert_outcomes(passed=5, failed=3, skipped=1)
    run.stdout.fnmatch_lines(
        ["rank 0 of 2 raised ZeroDivisionError*", "rank 0 of 2 *2 s*", "rank ? of 2 was killed by SIGKILL*"]
    )
    require_gone(pids(inner))


def test_a_session_that_stops_early_leaves_no_process(inner: pytest.Pytester) -> None:
    run_tests(inner, "\ndef test_fails(ddpperf_group): ddpperf_group.run(seen); assert 0", "-x", "test_one.py")
    assert len({*pids(inner)}) == 2
    require_gone(pids(inner))


@pytest.mark.parametrize(
    ("end", "status"), [("raise KeyboardInterrupt", 2), ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM)]
)
def test_an_interrupt_and_a_signal_end_lasting_ranks(pytester: pytest.Pytester, end: str, status: int) -> None:
    stays = f"""
def test_stays(ddpperf_group):
    ddpperf_group.run(seen)
    {end}
    threading.Event().wait()
"""
    pytester.makepyfile(test_one=SUITE + stays)
    command = [sys.executable, "-m", "pytest", "-q", "--ddpperf-group=session", "-k", "stays"]
    ended = subprocess.run(command, cwd=pytester.path, capture_output=True, check=False, timeout=120)
    assert ended.returncode == status
    require_gone(pids(pytester))


@pytest.mark.slow
def test_each_worker_of_xdist_has_lasting_ranks_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_one=SUITE, test_two=SUITE)
    options = ("-n", "2", "--dist", "loadfile", "--ddpperf-group=session")
    pytester.runpytest_subprocess(*options).assert_outcomes(passed=4)
    found = pids(pytester)
    assert len({*found}) == 4
    require_gone(found)
