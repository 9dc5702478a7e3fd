"""Counts with functional collectives are the same every time, though a backend's threads have a time of their own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

from pytest_ddpperf.instruments.counting.counting import Countable
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.strategies.table import parallelise
from tests.counted import count_step

WORLD: Any = dist.group  # its WORLD are all ranks, once they are there


def count_functional_often(ctx: RankContext, times: int) -> list[Counts]:
    def run() -> None:
        for _ in range(4):
            reduced = functional.all_reduce(torch.ones(300_000), "sum", WORLD.WORLD)
            reduced = reduced + 1
            del reduced
            functional.all_to_all_single(torch.ones(10), None, None, WORLD.WORLD).sum().item()

    return [count_step(run, Countable(device=ctx.device), warmup=1) for _ in range(times)]


@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_when_a_backend_lets_go_of_what_it_sends_does_not_show(launcher: Launcher, times: int) -> None:
    """Gloo's thread does so when it pleases; what it still held would be part of the next tensors' peak."""
    for often in launcher.run(count_functional_often, times, world_size=2, backend="gloo", device="cpu").values:
        assert [counts.unstable for counts in often] == [{}] * len(often)
        assert all(counts == often[0] for counts in often)
        assert often[0].totals["peak_tensor_bytes"] == 2 * 300_000 * 4


def count_clipped_often(ctx: RankContext) -> list[Counts]:
    def clipped() -> Counts:
        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        parallel = parallelise("fsdp2", model, ctx, list(model))
        optimizer = torch.optim.SGD(parallel.module.parameters(), lr=1e-3)

        def run() -> None:
            optimizer.zero_grad()
            parallel.module(torch.ones(4, 16)).square().mean().backward()
            nn.utils.clip_grad_norm_(parallel.module.parameters(), 1.0)
            optimizer.step()

        return count_step(run, Countable(device=ctx.device))

    return [clipped() for _ in range(20)]


@pytest.mark.slow
def test_the_norm_over_shards_leaves_nothing_behind(launcher: Launcher) -> None:
    for often in launcher.run(count_clipped_often, world_size=2, backend="gloo", device="cpu", timeout=120).values:
        assert [counts.unstable for counts in often] == [{}] * len(often)
        assert {counts.totals["retained_bytes"] for counts in often} == {0.0}
        assert all(counts == often[0] for counts in often)
