"""Large gradients are all-reduced one by one as soon as they are there, small ones several at a time."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from pytest_ddpperf.strategies.reducer import MB, Bucket, Slot, packed, reducing

if TYPE_CHECKING:
    from torch import nn

    from pytest_ddpperf.strategies.parallel import Parallel, RankView


def parallelise(module: nn.Module, ctx: RankView, *, coalesce_mb: float = 1.0) -> Parallel:
    """Starts all ranks from rank 0's parameters and buffers, and averages the gradients during backward.

    A gradient of at least ``coalesce_mb`` is sent from where it lies. Smaller ones, such as biases and norms, whose
    all-reduces would cost little more than their latency, share a buffer and become views of it. Neighbours in the
    order of arrival go together, whatever large ones arrive in between; a buffer is full once it holds that much.
    Models that differ between ranks raise a WorkloadError.
    """
    return reducing(module, ctx, partial(_small_together, cap=coalesce_mb * MB))


def _small_together(slots: Sequence[Slot], cap: float) -> list[Bucket]:
    """The buckets in the order in which their last gradients arrive."""
    groups = [[slot] for slot in slots if slot.nbytes >= cap] + packed((s for s in slots if s.nbytes < cap), cap)
    place = {slot: place for place, slot in enumerate(slots)}
    groups.sort(key=lambda group: place[group[-1]])
    return [Bucket(group, buffered=len(group) > 1) for group in groups]
