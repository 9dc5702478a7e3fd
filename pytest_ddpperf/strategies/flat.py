"""After backward, one all-reduce of all gradients, which lie side by side in one buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.reducer import Bucket, Slot, packed
from pytest_ddpperf.strategies.replicas import replicate

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import RankView


def parallelise(module: nn.Module, ctx: RankView) -> Parallel:
    """Starts all ranks from rank 0's parameters and buffers, and averages all gradients at once.

    Backward sends nothing. ``synchronise`` moves the gradients into a buffer that is allocated once, makes them views
    of it, and all-reduces it: one all-reduce for each type of parameter. An unused parameter has a gradient of zeros.
    Models that differ between ranks raise a WorkloadError.
    """
    replica = replicate(module, ctx)
    buckets = [Bucket(group, buffered=True) for group in packed(map(Slot, replica.trained), cap=float("inf"))]
    share = 1 / ctx.world_size

    def synchronise() -> None:
        replica.check_same_trained()
        for bucket in buckets:
            bucket.collect_rest(share)
            bucket.send()
            bucket.wait()

    return Parallel(module, synchronise)
