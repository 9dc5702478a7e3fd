"""Two ranks that train copies of one model, and what they have in common after counted steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.copies import alike
from pytest_ddpperf.records.measurement import Plan
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.jobs import LaunchJob, PrepareJob
from pytest_ddpperf.training.preparing import prepare_launch


def training(*, shared_out: bool = True, last: bool = True) -> Callable[[Any], Callable[[], None]]:
    """Steps of two micro-batches, of which the last or the first synchronises."""

    def build(ctx: Any) -> Callable[[], None]:
        model = DistributedDataParallel(nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = TensorDataset(torch.arange(64.0).reshape(16, 4) / 64)
        sampler: Any = DistributedSampler(data, ctx.world_size, ctx.rank) if shared_out else None
        loader = DataLoader(data, 2, sampler=sampler, shuffle=None if shared_out else True)

        def forever() -> Any:
            while True:
                yield from loader

        batches = forever()

        def step() -> None:
            for synchronises in (not last, last):
                with nullcontext() if synchronises else model.no_sync():
                    model(next(batches)[0]).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return build


@pytest.mark.parametrize(
    ("build", "same", "apart"),
    [(training(), (), ()), (training(shared_out=False), (0, 1), ()), (training(last=False), (), (0, 1))],
)
def test_copies_are_compared(launcher: Launcher, build: Any, same: tuple[int, ...], apart: tuple[int, ...]) -> None:
    job = PrepareJob(LaunchJob(build, None, Settings(), Plan(warmup=2, steps=2)), counted=True)
    ranks = launcher.run(prepare_launch, job, world_size=2, backend="gloo", device="cpu").values
    told = alike([rank.copy for rank in ranks if rank.copy is not None])
    assert told is not None
    assert (told.samples, told.batches, told.apart) == (same, same, apart)
    assert told.wrapped
