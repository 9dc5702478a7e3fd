"""Gradients live in buckets, each all-reduced as soon as it is full, while backward fills the next one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytest_ddpperf.strategies.reducer import MB, Bucket, Slot, packed, reducing

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import Parallel, RankView


def parallelise(
    module: nn.Module, ctx: RankView, *, bucket_cap_mb: float = 25.0, first_bucket_mb: float = 1.0
) -> Parallel:
    """Starts all ranks from rank 0's parameters and buffers, and averages gradients bucket by bucket during backward.

    Buckets are filled in the order in which gradients arrive, with one type in each. They are allocated once and
    gradients are views of them, also while gradients are accumulated over micro-batches. ``synchronise`` sends the
    buckets that this backward did not fill (with zeros for unused parameters) and waits for all. Sizes have the meaning
    and the defaults of torch's DDP. Models that differ between ranks raise a WorkloadError.
    """
    form = partial(_filled_in_order, cap=bucket_cap_mb * MB, first_cap=first_bucket_mb * MB)
    return reducing(module, ctx, form)


def _filled_in_order(slots: Sequence[Slot], cap: float, first_cap: float) -> list[Bucket]:
    return [Bucket(group, buffered=True) for group in packed(slots, cap, min(first_cap, cap))]
