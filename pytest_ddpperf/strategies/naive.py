"""The simplest correct data parallelism: after backward, one blocking all-reduce for each gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed as dist

from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.replicas import in_memory_order, replicate

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import RankView


def parallelise(module: nn.Module, ctx: RankView) -> Parallel:
    """Starts all ranks from rank 0's parameters and buffers, and averages the gradients in parameter order.

    Backward sends nothing. ``synchronise`` sends each gradient from where it lies and waits for it, so no memory is
    needed beside the gradients.

    A parameter that this rank's forward pass did not use takes part with zeros, because other ranks may have used it
    and wait for this one. If no rank used it, its gradient becomes zeros; torch's DDP with ``find_unused_parameters``
    would leave None, at the cost of a collective in every step. All hand-written strategies do the same. Models that
    differ between ranks raise a WorkloadError.
    """
    replica = replicate(module, ctx)
    share = 1 / ctx.world_size

    def synchronise() -> None:
        replica.check_same_trained()
        for trained in replica.trained:
            gradient = trained.gradient()
            gradient.mul_(share)  # before the sum, so that fp16 does not overflow; gloo has no ReduceOp.AVG
            dist.all_reduce(in_memory_order(gradient))

    return Parallel(module, synchronise)
