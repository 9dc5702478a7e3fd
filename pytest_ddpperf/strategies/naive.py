"""The simplest data parallelism that is right: after backward, one blocking all-reduce for each gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.replicas import in_memory_order, replicate

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import RankView


def parallelise(module: nn.Module, ctx: RankView) -> Parallel:
    """Start all ranks from rank 0's parameters and buffers, and average the gradients in parameter order.

    Nothing is sent in backward; ``synchronise`` sends each gradient from where it lies and waits for it, so no memory
    is needed beside the gradients.

    A parameter that took no part in this rank's forward pass still joins, with zeros: the others may have used it and
    wait for this rank. Where no rank used it, its gradient becomes zeros, where torch's DDP with
    ``find_unused_parameters`` would leave it None; to tell the two apart would cost a collective in every step. All
    hand-written strategies are alike in this.

    Raises:
        WorkloadError: the ranks' models are not built alike.
    """
    replica = replicate(module, ctx)
    share = 1 / ctx.world_size

    def synchronise() -> None:
        replica.check_same_trained()
        for trained in replica.trained:
            gradient = trained.gradient()
            gradient.mul_(share)  # before the sum: fp16 must not overflow. gloo has no ReduceOp.AVG
            dist.all_reduce(in_memory_order(gradient))

    return Parallel(module, synchronise)
