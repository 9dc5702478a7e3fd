"""Tests under pytest-timeout end through the report of their launch."""

from __future__ import annotations

import pytest

from pytest_ddpperf.errors import RanksTimedOut
from pytest_ddpperf.instruments.clock import system_time
from pytest_ddpperf.run.session.timeouts import TestTimeout

pytest.importorskip("pytest_timeout")


class Given:
    timeout = 20.0


@pytest.mark.parametrize(
    ("passed", "asked", "had"),
    [(0.0, 120.0, 15.0), (12.0, 120.0, 4.0), (0.0, 10.0, 10.0), (25.0, 120.0, 0.1)],
    ids=["all but 5 s", "half of what is left", "its own is shorter", "no time is left"],
)
def test_a_launch_ends_before_its_test(
    monkeypatch: pytest.MonkeyPatch, passed: float, asked: float, had: float
) -> None:
    now = 100.0
    monkeypatch.setattr(system_time, "monotonic", lambda: now)
    timeouts = TestTimeout()
    timeouts.pytest_timeout_set_timer(Given())
    now += passed

    def run(*, timeout: float) -> float:
        return timeout

    assert timeouts.limited(run)(timeout=asked) == pytest.approx(had)
    timeouts.pytest_timeout_cancel_timer()
    assert timeouts.limited(run)(timeout=asked) == asked


def test_only_an_early_end_names_pytest_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(system_time, "monotonic", lambda: now[0])
    timeouts = TestTimeout()
    timeouts.pytest_timeout_set_timer(Given())

    def run(*, timeout: float, stage: float | None = None) -> None:
        now[0] += timeout if stage is None else stage
        raise RanksTimedOut(f"late after {timeout if stage is None else stage:g} s", rank=1)

    with pytest.raises(RanksTimedOut, match=r"^late after 10 s$"):
        timeouts.limited(run)(timeout=10.0)
    now[0] = 100.0
    with pytest.raises(RanksTimedOut, match=r"^late after 2 s$"):
        timeouts.limited(run)(timeout=60.0, stage=2.0)
    now[0] = 100.0
    with pytest.raises(RanksTimedOut) as caught:
        timeouts.limited(run)(timeout=60.0)
    assert caught.value.rank == 1
    assert str(caught.value) == (
        "late after 15 s\n\npytest-timeout ends this test after 20 s, so the launch had 15.0 s of them: "
        "raise pytest-timeout's timeout"
    )


HANGS = """
import time
import pytest

def hold_up(ctx):
    import os, pathlib
    import torch, torch.distributed as dist
    pathlib.Path(f"pid{ctx.rank}").write_text(str(os.getpid()))
    if ctx.rank == 1:
        time.sleep(600)
    dist.all_reduce(torch.ones(1))

def test_first(ddpperf_group):
    ddpperf_group.run(int)  # torch is imported once

TIMEOUT
def test_hangs(ddpperf_group):
    ddpperf_group.run(hold_up)

def test_next(ddpperf_group):
    assert ddpperf_group.run(len_of_group).values == (2, 2)

def len_of_group(ctx):
    import torch.distributed as dist
    return dist.get_world_size()
"""


@pytest.mark.slow  # its process starts a launcher of its own
@pytest.mark.parametrize("more", ["", ", method='thread', func_only=True"], ids=["signal", "thread"])
def test_a_hang_under_pytest_timeout_names_the_guilty_rank_and_the_next_test_runs(
    pytester: pytest.Pytester, more: str
) -> None:
    marker = f"@pytest.mark.timeout(8{more})"
    pytester.makepyfile(test_hangs=HANGS.replace("TIMEOUT", marker).replace("run(int)", "run(len_of_group)"))
    run = pytester.runpytest_subprocess("--ddpperf-device=cpu", "--ddpperf-world-size=2")
    run.assert_outcomes(passed=2, failed=1)
    run.stdout.fnmatch_lines(
        [
            "*rank 0 of 2 blocked after *; rank 1 standing at test_hangs.py:* in hold_up*",
            "*pytest-timeout ends this test after 8 s, so the launch had * s of them*",
        ]
    )
    for rank in range(2):
        assert not (pytester.path / "/proc" / (pytester.path / f"pid{rank}").read_text()).exists()
