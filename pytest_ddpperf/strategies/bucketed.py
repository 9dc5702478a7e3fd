"""Gradients live in buckets, which are all-reduced as soon as they are full, while backward fills the next ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.strategies.reducer import MB, Bucket, Reducer, Slot, packed
from pytest_ddpperf.strategies.replicas import replicate

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import RankView


def parallelise(
    module: nn.Module, ctx: RankView, *, bucket_cap_mb: float = 25.0, first_bucket_mb: float = 1.0
) -> Parallel:
    """Start all ranks from rank 0's parameters and buffers, and average the gradients bucket by bucket during backward.

    Buckets are filled in the order in which gradients arrive, one type in each. They are allocated once and gradients
    are views of them, so these have their memory for good, also while they are added up over micro-batches.
    ``synchronise`` sends the buckets that this backward did not fill (with zeros for parameters that nothing used) and
    waits for all. Sizes mean what they mean in torch's DDP, and are by default its own.

    Args:
        module: on the rank's device.
        ctx: the rank.
        bucket_cap_mb: a bucket is full once it holds so much, in units of 2**20 bytes.
        first_bucket_mb: the same for the first one of each type, which begins to travel the earlier for being small.

    Raises:
        WorkloadError: the ranks' models are not built alike.
    """
    form = partial(_filled_in_order, cap=bucket_cap_mb * MB, first_cap=first_bucket_mb * MB)
    reducer = Reducer(replicate(module, ctx), ctx, form)
    return Parallel(module, reducer.synchronise, no_sync=reducer.no_sync)


def _filled_in_order(slots: Sequence[Slot], cap: float, first_cap: float) -> list[Bucket]:
    return [Bucket(group, buffered=True) for group in packed(slots, cap, min(first_cap, cap))]
