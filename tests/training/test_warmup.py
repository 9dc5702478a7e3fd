"""The untimed steps of a launch: how many there are, and which loss is told after them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training import timing
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob
from pytest_ddpperf.training.loop import run_launch
from pytest_ddpperf.training.preparing import prepare_launch
from pytest_ddpperf.training.timing import keeping_loss, warmup_seconds

ON: dict[str, Any] = {"world_size": 2, "backend": "gloo", "device": "cpu"}


Launch = Callable[[RankContext, LaunchJob], RankLaunch]


def warmed_up_for_half_a_second(ctx: RankContext, steps: int, launch: Launch) -> tuple[int, float | None, int]:
    """The steps of a warm-up of 12 and half a second, the loss that is told, and the timed steps.

    A step's loss is its number. It takes 0.1 s on rank 0, and 0.02 s on rank 1.
    """
    now, timed, length = 0.0, [], (0.1, 0.02)[ctx.rank]
    numbers = itertools.count(1)

    def step() -> torch.Tensor:
        nonlocal now
        now += length
        timed.append(next(numbers))
        return torch.tensor(float(timed[-1]))

    job = LaunchJob(lambda _ctx: step, None, Settings(), Plan(warmup=12, steps=steps), growth=False, diagnosed=False)
    with (
        patch.object(timing, "time", SimpleNamespace(monotonic=lambda: now, process_time=lambda: now)),
        patch.object(timing, "warmup_seconds", lambda *_: 0.5),
        patch("pytest_ddpperf.training.loop.warmup_seconds", lambda *_: 0.5),
    ):
        report = launch(ctx, job)
    return timed[-1] - steps, report.loss, len(report.step_times)


@pytest.mark.parametrize("steps", [5, 40])
def test_ranks_agree_when_a_warm_up_is_over_and_tell_the_loss_of_the_planned_step(
    launcher: Launcher, steps: int
) -> None:
    """Rank 1 has done 26 steps 0.5 s after its first one; the warm-up goes on by five steps, from 12 to 27.

    The loss is that of step 12 + 5, which was one of the warm-up, or of 12 + 40, which was timed: so losses of launches
    are comparable, however long their warm-ups are.
    """
    ranks = launcher.run(warmed_up_for_half_a_second, steps, run_launch, **ON).values
    assert ranks == ((27, 12.0 + steps, steps),) * 2


def prepared(ctx: RankContext, job: LaunchJob) -> RankLaunch:
    timed = prepare_launch(ctx, PrepareJob(job, timed=True)).timed
    assert timed is not None
    return timed


def test_a_launch_that_prepares_is_warmed_up_for_as_long(launcher: Launcher) -> None:
    """Nobody reads its loss, which is that of its last step."""
    ranks = launcher.run(warmed_up_for_half_a_second, 5, prepared, **ON).values
    assert ranks == ((27, 32.0, 5),) * 2


def test_only_launches_on_cuda_whose_times_matter_are_warmed_up_for_long() -> None:
    job = LaunchJob(lambda _ctx: print, None, Settings(), Plan(warmup=1, steps=1))
    probe = LaunchJob(lambda _ctx: print, None, Settings(), Plan(warmup=1, steps=1), times_matter=False)
    cuda, cpu = torch.device("cuda", 0), torch.device("cpu")
    assert [warmup_seconds(*case) for case in ((cuda, job), (cuda, probe), (cpu, job))] == [0.5, 0.0, 0.0]


def test_the_loss_that_is_kept_outlives_a_step_that_overwrites_it() -> None:
    """As a CUDA graph does, which has one place for the loss of all steps."""
    place, kept = torch.zeros((), requires_grad=True), list[Any]()
    numbers = itertools.count(1)
    run = keeping_loss(lambda: place.data.fill_(next(numbers)) * 1 and place, 2, kept)
    for _ in range(4):
        run()
    assert (kept, kept[0].requires_grad) == ([torch.tensor(2.0)], False)
    keeping_loss(lambda: 0.5, 1, kept)()
    keeping_loss(lambda: None, 1, kept)()
    assert kept[1:] == [0.5, None]
