"""Every gradient is all-reduced as soon as it is there, while backward computes the next ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddpperf.strategies.reducer import Bucket, reducing

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import Parallel, RankView


def parallelise(module: nn.Module, ctx: RankView) -> Parallel:
    """Starts all ranks from rank 0's parameters and buffers, and averages the gradients one by one during backward.

    A gradient is sent from where it lies, so no memory is needed beside the gradients. ``synchronise`` sends those that
    this backward did not bring (zeros for unused parameters) and waits for all. Models that differ between ranks raise
    a WorkloadError.
    """
    return reducing(module, ctx, lambda slots: [Bucket([slot], buffered=False) for slot in slots])
