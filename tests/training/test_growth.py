"""Growth over steps on real ranks: what a step keeps is seen, what is only filled up is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch

from pytest_ddpperf.instruments.memory import memory_reader
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.metrics.memory import GROWTH_TOLERANCE, memory_growth
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.stats.launches import growth_per_step
from pytest_ddpperf.training.jobs import MIN_GROWTH_STEPS, LaunchJob
from pytest_ddpperf.training.loop import run_launch
from tests.factories import make_environment, make_measurement

pytestmark = pytest.mark.skipif(
    memory_reader(torch.device("cpu")) is None, reason="this system does not tell what malloc has given out"
)
LAUNCHES = 2
KEPT = 200_000


def growths(launcher: Launcher, keep: Callable[[int, int], object]) -> list[float]:
    """Of two ranks in each launch."""
    job = LaunchJob(sender(keep), None, Settings(), Plan(warmup=5, steps=MIN_GROWTH_STEPS))
    launches = [launcher.run(run_launch, job, world_size=2, backend="gloo", device="cpu") for _ in range(LAUNCHES)]
    return [growth_per_step(rank.held) for launch in launches for rank in launch.values]


def sender(keep: Callable[[int, int], object]) -> Callable[[Any], Callable[[], None]]:
    """Makes a step that all-reduces and calls ``keep(rank, step)``."""

    def build(ctx: Any) -> Callable[[], None]:
        import torch.distributed as dist

        tensor, done = torch.zeros(64), [0]

        def step() -> None:
            dist.all_reduce(tensor)
            keep(ctx.rank, done[0])
            done[0] += 1

        return step

    return build


def test_a_step_that_keeps_bytes_on_one_rank_is_caught(launcher: Launcher) -> None:
    """No tensor, so none of the counts sees it."""
    kept: list[bytes] = []

    def keep(rank: int, _step: int) -> None:
        if rank == 1:
            kept.append(bytes(KEPT))

    found = growths(launcher, keep)
    others, leaking = found[::2], found[1::2]
    assert max(others) < GROWTH_TOLERANCE
    assert all(KEPT <= growth < KEPT + GROWTH_TOLERANCE for growth in leaking)


def launched_without_reader(ctx: Any, job: LaunchJob) -> Any:
    """What a launch reports where rank 1 cannot read its memory."""
    if ctx.rank == 0:
        return run_launch(ctx, job)
    with patch("pytest_ddpperf.instruments.memory.memory_reader", return_value=None):
        return run_launch(ctx, job)


def test_where_one_rank_cannot_read_there_is_no_growth_and_none_waits_for_ever(launcher: Launcher) -> None:
    """Each step waits for the other rank: one that left out the steps would hang the launch."""
    job = LaunchJob(sender(lambda _rank, _step: None), None, Settings(), Plan(warmup=1, steps=MIN_GROWTH_STEPS))
    ranks = launcher.run(launched_without_reader, job, world_size=2, backend="gloo", device="cpu").values
    assert [len(rank.held) for rank in ranks] == [MIN_GROWTH_STEPS + 1, 0]
    environment = make_environment(cpu_model="some cpu")
    measured = make_measurement(
        name="custom",
        strategy="custom",
        plan=job.plan,
        environment=environment,
        launches=(Launch(round=0, ranks=ranks, seconds=1.0),),
    )
    assert memory_growth(measured) is None


def test_a_cache_that_fills_up_in_the_first_steps_is_no_leak(launcher: Launcher) -> None:
    """Eight entries, of 1.6 MB together, replaced again and again."""
    cache: dict[int, bytes] = {}

    def keep(_rank: int, step: int) -> None:
        cache[step % 8] = bytes(KEPT)

    assert max(growths(launcher, keep)) < GROWTH_TOLERANCE
