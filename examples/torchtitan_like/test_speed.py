"""A model and its parallelise function, as they are: sharded by FSDP2, or split by tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from model import ModelArgs, Transformer
from parallelize import parallelize_llama
from torch import Tensor

from pytest_ddpperf import Ddpperf, RankContext

ARGS = ModelArgs()
BATCH = 16  # of all ranks


@pytest.mark.parametrize("mesh", [{"dp": 2, "tp": 1}, {"dp": 1, "tp": 2}], ids=["fsdp", "tp"])
def test_step(ddpperf: Ddpperf, mesh: dict[str, int]) -> None:
    share = BATCH // mesh["dp"]  # of a data-parallel rank
    tokens = share * ARGS.max_seq_len
    ddpperf.check(one_step, mesh=mesh, reference=one_step, samples_per_step=share, tokens_per_step=tokens)


def one_step(ctx: RankContext) -> Callable[[], Tensor]:
    """Trains on the samples of this rank's part of the mesh; a single process has no mesh, and takes all of them."""
    torch.manual_seed(0)
    model = Transformer(ARGS).to(ctx.device)
    text = torch.randint(ARGS.vocab_size, (BATCH, ARGS.max_seq_len + 1), device=ctx.device)
    if ctx.mesh is not None:
        parallelize_llama(model, ctx.mesh)
        text = text.chunk(ctx.mesh["dp"].size())[ctx.mesh["dp"].get_local_rank()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
