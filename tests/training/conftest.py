"""A process group of one, in the test's own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.records.measurement import Mode

MakeContext = Callable[..., RankContext]


@pytest.fixture(scope="module")
def make_ctx() -> Iterator[MakeContext]:
    """Gives contexts; the group behind them is of one rank, whatever rank and world size they tell."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)

    def make(rank: int = 0, world_size: int = 1, mode: Mode | None = None) -> RankContext:
        return RankContext(rank, world_size, rank, world_size, torch.device("cpu"), "gloo", mode)

    yield make
    dist.destroy_process_group()
