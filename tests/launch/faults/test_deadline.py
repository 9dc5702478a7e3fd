"""A launch that misses its deadline: a hang or a slow launch, who is to blame, and what NCCL says of itself."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pytest_ddpperf.errors import LaunchError, RanksTimedOut
from pytest_ddpperf.launch import launch_run, progress
from pytest_ddpperf.launch.faults.deadline import LateRanks
from pytest_ddpperf.launch.faults.failures import RankEnd
from pytest_ddpperf.launch.messages import Finished, Job

if TYPE_CHECKING:
    from pytest_ddpperf.launch.context import RankContext
    from pytest_ddpperf.launch.launcher import Launcher

RECORDS_GLOO = torch.__version__ >= "2.11"


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"moved": {0: False, 1: True}, "advances": True}, "steps went on at the deadline, so the launch is slow"),
        ({"moved": {0: False, 1: True}}, "rank 1 still moved at the deadline, so perhaps the launch is slow"),
        (
            {"moved": {0: False, 1: False}},
            "no rank moved within 0.5 s, so the launch hangs, or a single call takes long",
        ),
        ({"moved": {0: False}}, ""),  # rank 1 gave no stack
    ],
)
def test_a_hang_is_distinguished_from_a_slow_launch_by_steps_and_stacks(found: dict[str, object], told: str) -> None:
    pace = LateRanks(seconds=10.0, stacks={0: "x", 1: "x"}, **found).pace  # type: ignore[arg-type]
    assert pace.startswith(told)
    assert bool(pace) == bool(told)


def test_a_rank_that_has_finished_is_to_blame() -> None:
    job = Job(call=b"", world_size=2, device="cuda", group="nccl", mode=None, timeout=10.0)
    collective = 'File "/x/site-packages/torch/distributed/distributed_c10d.py", line 1 in all_reduce'
    stack = f'Thread 0x1 (most recent call first):\n  {collective}\n  File "/x/t.py", line 2 in step'
    ends = [RankEnd(rank=0), RankEnd(rank=1, report=Finished(b"", 1))]
    late = LateRanks(seconds=10.0, stacks={0: stack}).error(ends, job, 0)
    assert late.headline == "rank 0 of 2 blocked after 10 s in all_reduce (/x/t.py:2 in step); rank 1 had finished"
    assert late.rank == 1


def deadline_of(launcher: Launcher, function: Any, world_size: int) -> RanksTimedOut:
    with pytest.raises(RanksTimedOut) as caught:
        launcher.run(function, world_size=world_size, device="cpu", backend="gloo", timeout=1.0)
    return caught.value


def test_a_rank_that_hangs_is_reported_with_its_step_line_and_missing_collective(launcher: Launcher) -> None:
    """Rank 1 stays in the reading of its third batch; a smaller group has collectives of its own."""

    def train(ctx: RankContext) -> None:
        import torch
        import torch.distributed as dist

        def read_batch() -> None:
            for _ in range(100):  # of which faulthandler lists all, and then no main thread
                threading.Thread(target=threading.Event().wait, daemon=True).start()
            os.read(os.pipe()[0], 1)  # signal.pause would end with the signal that asks for stacks

        print("rank", ctx.rank, "is here")
        progress.stage("timed step")
        pair = dist.new_group([0, 1])
        for number in range(5):
            progress.step()
            if (ctx.rank, number) == (1, 2):
                read_batch()
            if ctx.rank < 2:
                dist.all_reduce(torch.ones(2), group=pair)
            dist.all_reduce(torch.ones(8))

    hangs = deadline_of(launcher, train, 4)
    assert hangs.rank == 1
    number = " #3" if RECORDS_GLOO else ""
    assert re.fullmatch(
        rf"ranks 2, 3 of 4 blocked after 1 s in all_reduce{number} \(\S+:\d+ in train\); "
        rf"rank 0 in all_reduce{number} \(\S+:\d+ in train\); rank 1 standing at \S+:\d+ in read_batch",
        hangs.headline,
    )
    assert "no rank moved within 0.5 s, so the launch hangs" in str(hangs)
    assert re.search(r"^ranks 0, 1, 2, 3 in timed step 3(?: for \d+ s)?$", str(hangs), re.MULTILINE)
    assert str(hangs).count("in read_batch") == 2  # the heading and one listing
    assert ("rank 1 stdout", "rank 1 is here\n") in hangs.sections
    said = "gloo: rank 1 has not called collective 3, all_reduce of float[2], of the group of ranks 0, 1"
    assert (said in str(hangs)) == RECORDS_GLOO


def test_a_slow_launch_is_reported_as_slow_with_the_rank_that_moves(launcher: Launcher) -> None:
    """Rank 1 begins a step in a new line every 10 ms."""
    steps = compile("import time\n" + 6000 * "time.sleep(0.01); step()\n", "/x/data.py", "exec")

    def moves(ctx: RankContext) -> None:
        import torch
        import torch.distributed as dist

        if ctx.rank == 1:
            progress.stage("timed step")
            exec(steps, {"step": progress.step})  # noqa: S102
        dist.all_reduce(torch.ones(1))

    slow = deadline_of(launcher, moves, 3)
    assert slow.rank == 1
    assert "; rank 1 moving at " in slow.headline
    assert "steps went on at the deadline, so the launch is slow and does not hang" in str(slow)


@pytest.mark.skipif(not RECORDS_GLOO, reason="torch records no collectives of gloo")
def test_ranks_that_call_different_collectives_are_reported_with_these(launcher: Launcher) -> None:
    def differ(ctx: RankContext) -> None:
        import torch
        import torch.distributed as dist

        dist.all_reduce(torch.ones(8))
        if ctx.rank == 2:
            dist.barrier()
        dist.all_reduce(torch.ones(8))

    late = deadline_of(launcher, differ, 3)
    assert late.rank == 2
    different = "collective 2 differs between ranks: ranks 0, 1: all_reduce of float[8]; rank 2: barr"
    assert f"gloo: {different}" in str(late)


def job_of(seconds: float) -> Job:
    return Job(call=b"", world_size=1, device="cpu", group=None, mode=None, timeout=seconds)


def test_ranks_with_a_gpu_or_its_driver_have_longer_to_end() -> None:
    job = job_of(1.0)
    jobs = job, replace(job, device="cuda"), replace(job, probes=True)
    assert [launch_run.end_seconds(one) for one in jobs] == [3.0, 15.0, 15.0]


def test_a_launch_that_outlives_all_its_deadlines_fails_and_shows_the_stack_of_the_session(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("_REPORT_SECONDS", "_OVERDUE_SECONDS", "_END_SECONDS"):
        monkeypatch.setattr(launch_run, name, 0.01)
    killed = threading.Event()
    zygote: Any = SimpleNamespace(kill=killed.set)
    told = r"^a launch with a deadline of 0.02 s had not ended after 0.06 s: the test session was blocked, and its"

    def waits_for_an_answer() -> None:
        assert killed.wait(30)
        raise LaunchError("the process that forks ranks was killed by SIGKILL")

    with pytest.raises(LaunchError, match=told) as caught, launch_run.overdue_shown(job_of(0.02), [zygote]):
        waits_for_an_answer()
    assert str(caught.value.__cause__).endswith("was killed by SIGKILL")
    shown = capfd.readouterr().err
    assert "ddpperf: a launch with a deadline of 0.02 s had not ended after 0.06 s" in shown
    assert "in waits_for_an_answer" in shown


def test_a_launch_that_ends_in_time_fails_with_its_own_error(capfd: pytest.CaptureFixture[str]) -> None:
    before = threading.active_count()
    with pytest.raises(LaunchError, match=r"^mine$"), launch_run.overdue_shown(job_of(1000.0), []):
        raise LaunchError("mine")
    for thread in threading.enumerate():
        if thread.name == "ddpperf-overdue":
            thread.join(30)
    assert threading.active_count() == before
    assert capfd.readouterr().err == ""


BLOCKED = """
from pytest_ddpperf.launch import launch_run
from pytest_ddpperf.launch.streams import readable


def waits_for_ever(self, *_):
    for zygote in self.here.zygotes:
        readable([zygote.control], None)
        zygote.events(0)


launch_run._REPORT_SECONDS = launch_run._OVERDUE_SECONDS = launch_run._END_SECONDS = 0.1
launch_run.LaunchedRanks.watch = waits_for_ever
"""


@pytest.mark.slow
def test_a_blocked_session_prints_that_although_pytest_captures_output(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(BLOCKED)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.ddpperf(timeout=0.1, world_size=2, device="cpu", backend="gloo")
        def test_blocked(ddpperf_group):
            ddpperf_group.run(int)
        """
    )
    run = pytester.runpytest_subprocess("-q", timeout=120)
    run.assert_outcomes(failed=1)
    run.stdout.fnmatch_lines(["*a launch with a deadline of 0.1 s had not ended after 0.5 s: the test session was bl*"])
    run.stderr.fnmatch_lines(['*conftest.py", line * in waits_for_ever'])
