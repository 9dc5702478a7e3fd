"""FSDP2 twice: a Workload that the plugin shards, and a step that calls fully_shard itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from model import SEQUENCE, Transformer, next_byte_loss, random_bytes
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from pytest_ddpperf import Ddpperf, RankContext, Workload

BATCH = 8

workload = Workload(
    model=Transformer,
    batch=lambda: random_bytes(BATCH),
    loss=next_byte_loss,
    optimizer=partial(torch.optim.AdamW, lr=1e-3),
    samples_per_step=BATCH,
    tokens_per_step=BATCH * SEQUENCE,
)


def test_workload(ddpperf: Ddpperf) -> None:
    ddpperf.check(workload, strategy="fsdp2", communication=True)


def test_step(ddpperf: Ddpperf) -> None:
    ddpperf.check(one_step, reference=one_step, samples_per_step=BATCH, tokens_per_step=BATCH * SEQUENCE)


def one_step(ctx: RankContext) -> Callable[[], Tensor]:
    """Trains the sharded model; a single process takes the samples of two ranks, and shards nothing."""
    torch.manual_seed(0)
    model = Transformer().to(ctx.device)
    tokens, targets = (part.to(ctx.device).chunk(ctx.world_size)[ctx.rank] for part in random_bytes(2 * BATCH))
    if ctx.world_size > 1:
        mesh = init_device_mesh(ctx.device.type, (ctx.world_size,))
        for unit in (*model.blocks, model):
            fully_shard(unit, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = next_byte_loss(model(tokens), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
