"""Batches on their way to a rank: whole or a slice of the global one, on the rank's device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.training.workload import Workload, located

if TYPE_CHECKING:
    from pytest_ddpperf.strategies.parallel import RankView

NextBatch = Callable[[], tuple[Any, Any]]


def batches(ctx: RankView, workload: Workload) -> NextBatch:
    """What gives ``(inputs, targets)`` of the next step, on the rank's device.

    In strong mode every rank makes the same global batches and takes its own slice of each.

    Raises:
        WorkloadError: what the workload's batch or loader gave is no pair, or cannot be sliced.
    """
    if workload.batch is not None:
        source = located(workload.batch)
        pair = _on_device(ctx, _rank_share(ctx, _pair(workload.batch(), source), source))
        return lambda: pair
    assert workload.loader is not None  # noqa: S101  a Workload has one of the two
    source = located(workload.loader)
    loader = workload.loader(0, 1) if ctx.mode == "strong" else workload.loader(ctx.rank, ctx.world_size)
    stream = _endless(loader, source)
    return lambda: _on_device(ctx, _rank_share(ctx, next(stream), source))


def _endless(loader: Iterable[Any], source: str) -> Iterator[tuple[Any, Any]]:
    """Batch after batch, beginning again at the end, as a training over several epochs does."""
    set_epoch = getattr(getattr(loader, "sampler", None), "set_epoch", None)
    size = None
    epoch = 0
    while True:
        if set_epoch is not None:
            set_epoch(epoch)  # a DistributedSampler shuffles anew only when it is told the epoch
        empty = True
        for batch in loader:
            pair = _pair(batch, source)
            size = _same_size(pair, size, source)
            yield pair
            empty = False
        if empty and epoch == 0:
            raise WorkloadError(f"loader {source} gave no batch: its data must fill at least one")
        if empty:
            raise WorkloadError(
                f"loader {source} gave no batch when begun again: give an iterable that can be run through many "
                "times, such as a DataLoader, instead of an iterator"
            )
        epoch += 1


def _pair(batch: Any, source: str) -> tuple[Any, Any]:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:  # noqa: PLR2004
        raise WorkloadError(f"{source} gave a batch of type {type(batch).__name__}: a batch must be (inputs, targets)")
    return batch[0], batch[1]


def _same_size(pair: tuple[Any, Any], size: int | None, source: str) -> int | None:
    """The batch's first dimension; every step has to train on as many samples as the test says it does."""
    first = next((leaf for leaf in tree_leaves(pair) if isinstance(leaf, torch.Tensor) and leaf.dim()), None)
    found = None if first is None else first.shape[0]
    if size is not None and found != size:
        raise WorkloadError(
            f"loader {source} gave a batch of {found} after batches of {size}: steps must be alike to be "
            "compared (drop_last=True leaves out an incomplete batch)"
        )
    return found


def _rank_share(ctx: RankView, pair: tuple[Any, Any], source: str) -> tuple[Any, Any]:
    """In strong mode this rank's slice of every tensor along dimension 0; otherwise all of it."""
    if ctx.mode != "strong":
        return pair
    ranks = ctx.world_size

    def share(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return leaf
        if leaf.shape[0] % ranks:
            raise WorkloadError(
                f"{source} gave a tensor of {leaf.shape[0]} along dimension 0, which {ranks} ranks cannot share "
                f"equally: in strong mode a batch is the global one, so make it a multiple of {ranks}"
            )
        size = leaf.shape[0] // ranks
        return leaf[ctx.rank * size : (ctx.rank + 1) * size]

    return tree_map(share, pair)  # type: ignore[no-any-return]  # torch types what comes back as Any


def _on_device(ctx: RankView, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    if ctx.device.type == "cpu":
        return pair  # where it was made

    def moved(leaf: Any) -> Any:
        return leaf.to(ctx.device, non_blocking=leaf.is_pinned()) if isinstance(leaf, torch.Tensor) else leaf

    return tree_map(moved, pair)  # type: ignore[no-any-return]  # torch types what comes back as Any
