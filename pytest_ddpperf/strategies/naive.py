"""The simplest data parallelism that is right: after backward, one blocking all-reduce for each gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pytest_ddpperf.strategies.parallel import Parallel

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import RankView


def parallelise(module: nn.Module, ctx: RankView) -> Parallel:
    """Start all ranks from rank 0's parameters and buffers, and average the gradients in parameter order.

    Buffers (the statistics of a BatchNorm) are made equal once, at the start; after that each rank keeps its own.

    A parameter that took no part in this rank's forward pass still joins, with zeros: the others may have used it and
    wait for this rank. Where no rank used it, its gradient becomes zeros, where torch's DDP with
    ``find_unused_parameters`` would leave it None; to tell the two apart would cost a collective in every step.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        dist.broadcast(tensor.detach(), src=0)
    # parameters() yields a tied weight once.
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]

    def synchronise() -> None:
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
            parameter.grad.div_(ctx.world_size)  # gloo has no ReduceOp.AVG

    return Parallel(module, synchronise)
