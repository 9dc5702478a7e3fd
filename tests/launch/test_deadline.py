"""What is told of ranks that have not finished at their deadline."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from pytest_ddpperf.errors import RanksTimedOut
from pytest_ddpperf.launch.deadline import LateRanks
from pytest_ddpperf.launch.failures import RankEnd
from pytest_ddpperf.launch.messages import Job
from pytest_ddpperf.launch.progress import Overdue

if TYPE_CHECKING:
    from pytest_ddpperf.launch.context import RankContext
    from pytest_ddpperf.launch.launcher import Launcher


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"moved": {0: False, 1: True}, "advances": True}, "steps went on at the deadline, so the launch is slow"),
        ({"moved": {0: False, 1: True}}, "rank 1 moved on at the deadline, so the launch may only be slow"),
        (
            {"moved": {0: False, 1: False}},
            "no rank moved within 0.5 s, so the launch hangs, or a single call takes long",
        ),
        ({"moved": {0: False}}, ""),  # rank 1 gave no stack
    ],
)
def test_a_hang_is_told_from_a_slow_launch_by_steps_and_stacks(found: dict[str, object], told: str) -> None:
    pace = LateRanks(seconds=10.0, stacks={0: "x", 1: "x"}, **found).pace  # type: ignore[arg-type]
    assert pace.startswith(told)
    assert bool(pace) == bool(told)


def test_a_slow_stage_names_its_own_deadline_as_the_setting_to_raise() -> None:
    late = LateRanks(seconds=3.2, overdue=Overdue("build", 3.0, (1,)), stacks={1: "x"}, moved={1: True})
    assert late.pace.endswith("may only be slow: then raise build of stage_timeouts")


def test_what_nccl_says_of_itself_is_a_section_of_the_report() -> None:
    job = Job(call=b"", world_size=1, device="cuda", group="nccl", mode=None, timeout=10.0)
    for ras, sections in (("Job summary", (("NCCL RAS", "Job summary"),)), ("", ())):
        late = LateRanks(seconds=10.0, stacks={0: ""}, ras=ras).error([RankEnd(rank=0)], job, 0)
        assert late.sections == sections


def test_the_stacks_of_every_rank_are_taken_twice(launcher: Launcher) -> None:
    """Rank 1 is in one line, or in a new one every 10 ms."""

    def holds_up(ctx: RankContext, moving: bool) -> None:  # noqa: FBT001
        import torch
        import torch.distributed as dist

        def read_batch() -> None:
            time.sleep(60.0)

        if ctx.rank == 1 and moving:
            exec(compile("import time\n" + 6000 * "time.sleep(0.01)\n", "/x/data.py", "exec"))  # noqa: S102
        if ctx.rank == 1:
            read_batch()
        dist.all_reduce(torch.ones(1))

    def late(moving: bool) -> RanksTimedOut:  # noqa: FBT001
        with pytest.raises(RanksTimedOut) as caught:
            launcher.run(holds_up, moving, world_size=3, device="cpu", backend="gloo", timeout=2.0)
        return caught.value

    hangs, slow = late(moving=False), late(moving=True)
    assert hangs.rank == slow.rank == 1
    assert hangs.headline.startswith("ranks 0, 2 of 3 blocked after 2 s in all_reduce")
    assert "; rank 1 standing at " in hangs.headline
    assert hangs.headline.endswith(" in read_batch")
    assert "no rank moved within 0.5 s, so the launch hangs" in str(hangs)
    assert str(hangs).count("in read_batch") == 2  # the heading and one listing
    assert "; rank 1 moving at " in slow.headline
    assert "rank 1 moved on at the deadline, so the launch may only be slow" in str(slow)
