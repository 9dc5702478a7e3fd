"""How far ranks have come, as their controller reads it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_ddpperf.errors import RanksTimedOut
from pytest_ddpperf.instruments.clock import system_time
from pytest_ddpperf.launch import progress
from pytest_ddpperf.launch.progress import Overdue, Progress, ProgressFile, StageWatch, advanced, told
from pytest_ddpperf.parsers import STAGES

if TYPE_CHECKING:
    from pytest_ddpperf.launch.context import RankContext
    from pytest_ddpperf.launch.launcher import Launcher


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[ProgressFile]:
    monkeypatch.setattr(progress._Own, "memory", None)
    monkeypatch.setattr(progress._Own, "offset", 0)
    file = ProgressFile(2)
    yield file
    file.close()


def test_what_a_rank_says_is_read_at_any_time(shared: ProgressFile, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 12.0, 13.5, 20.0])
    monkeypatch.setattr(system_time, "monotonic", lambda: next(now))
    progress.begin(shared.descriptor, 1)
    assert shared.read(1) is None
    progress.stage("timed step")  # at 10
    assert shared.read(1) == Progress("timed step", 0, 2.0)
    progress.step()  # at 13.5
    assert shared.read(1) == Progress("timed step", 1, 6.5)
    assert shared.read(0) is None


def test_ranks_that_are_equally_far_are_told_together_with_the_longest_time() -> None:
    ranks = {
        0: Progress("timed step", 41, 9.2),
        1: Progress("warm-up step", 2, 11.7),
        2: Progress("timed step", 41, 9.8),
    }
    assert told(ranks) == "ranks 0, 2 in timed step 41 for 10 s; rank 1 in warm-up step 2 for 12 s"
    assert told({0: Progress("the start", 0, 0.4)}) == "rank 0 in the start"
    assert told({}) == told({0: Progress(progress.FUNCTION, 0, 5.0)}) == ""


def test_a_launch_advances_where_a_rank_has_begun_another_step() -> None:
    first = {0: Progress("timed step", 3, 0.5), 1: Progress("timed step", 3, 0.5)}
    assert not advanced(first, {0: Progress("timed step", 3, 1.0), 1: Progress("timed step", 3, 1.0)})
    assert advanced(first, {0: Progress("timed step", 3, 1.0), 1: Progress("timed step", 4, 0.1)})
    assert not advanced({}, first)  # nothing is known of before


def test_each_stage_that_has_a_name_for_its_deadline_is_one_of_the_setting() -> None:
    stages = [progress.START, progress.LOAD, progress.BUILD, progress.TIMED]
    found = [Progress(stage, 0, 0.0).budget for stage in stages]
    found += [Progress(progress.WARM_UP, step, 0.0).budget for step in (0, 1, 2)]
    assert found == ["start", "start", "build", "measure", "compile", "compile", "warm_up"]
    assert {*found} == {*STAGES}
    assert Progress(progress.FUNCTION, 0, 0.0).budget == ""


def test_a_stage_is_overdue_where_a_rank_has_been_in_it_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(system_time, "monotonic", lambda: now)
    watch = StageWatch({"start": 5.0, "warm_up": 3.0})
    assert watch.overdue({0: None, 1: Progress(progress.BUILD, 0, 0.0)}) is None
    now = 105.5
    assert watch.overdue({0: None, 1: Progress(progress.WARM_UP, 2, 3.5)}) == Overdue("start", 5.0, (0,))
    build = Progress(progress.BUILD, 0, 0.5)
    assert watch.overdue({0: build, 1: Progress(progress.WARM_UP, 3, 0.1)}) == Overdue("warm_up", 3.0, (1,))
    assert watch.overdue({0: build, 1: Progress(progress.TIMED, 3, 9.0)}) is None


def test_a_rank_that_waits_in_a_later_stage_is_not_the_one_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system_time, "monotonic", lambda: 100.0)
    watch = StageWatch({"build": 5.0, "compile": 5.0})
    stuck = {0: Progress(progress.WARM_UP, 1, 6.0), 1: Progress(progress.BUILD, 0, 6.0)}
    assert watch.overdue(stuck) == Overdue("build", 5.0, (1,))


def test_a_stage_that_takes_too_long_ends_its_launch(launcher: Launcher) -> None:
    def builds(ctx: RankContext) -> None:
        import torch
        import torch.distributed as dist

        progress.stage(progress.BUILD)
        if ctx.rank == 1:
            time.sleep(600)
        progress.stage(progress.WARM_UP)
        dist.all_reduce(torch.ones(1))

    begun = time.monotonic()
    with pytest.raises(RanksTimedOut) as caught:
        launcher.run(builds, world_size=2, device="cpu", backend="gloo", timeout=600.0, stage_timeouts={"build": 1.0})
    assert time.monotonic() - begun < 60.0
    assert caught.value.rank == 1
    assert "rank 1 took more than 1 s for the stage build (stage_timeouts, build=1)" in str(caught.value)
