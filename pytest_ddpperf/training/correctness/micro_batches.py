"""The micro-batches that a strategy and a single process both train on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from pytest_ddpperf.records.loader_settings import LoaderSettings
from pytest_ddpperf.training.data import NextBatch, batches
from pytest_ddpperf.training.model import DATA_SEED, seed

if TYPE_CHECKING:
    from pytest_ddpperf.strategies.parallel import RankView
    from pytest_ddpperf.training.workload import Workload

Pair = tuple[Any, Any]
MicroBatchIndex = tuple[int, int]  # a micro-batch of a step: its rank, and its number there
MAX_SAMPLES = 4  # of a micro-batch; a BatchNorm fails with a single sample
_FORWARD_SEED = 1000


@dataclass(frozen=True)
class MicroBatches:
    """The micro-batches of all ranks.

    Attributes:
        shards: for each rank its micro-batches, step after step, on the CPU.
        in_step: the number of micro-batches that a rank has in a step.
    """

    shards: Sequence[Sequence[Pair]]
    in_step: int

    def places(self, ranks: Sequence[int]) -> list[MicroBatchIndex]:
        """The micro-batches of some ranks in a step, one rank after the other."""
        return [(rank, number) for rank in ranks for number in range(self.in_step)]

    def feed(
        self, places: Sequence[MicroBatchIndex], step: int, device: torch.device, on_turn: Callable[[], None]
    ) -> NextBatch:
        """The function that returns these micro-batches of a step one by one, each with its weight.

        Random numbers are seeded anew for each, so that it meets the same dropout masks wherever it is trained on.
        ``on_turn`` is called whenever the turn of another rank begins.
        """
        order = iter(places)
        turn = -1

        def next_batch() -> Pair:
            nonlocal turn
            rank, number = next(order)
            if rank != turn:
                turn = rank
                on_turn()
            index = step * self.in_step + number
            inputs, targets = tree_map(_mover(device), self.shards[rank][index])
            weight = torch.tensor(self.weight((rank, number)), device=device)
            seed(_FORWARD_SEED + index * len(self.shards) + rank)
            return inputs, (targets, weight)

        return next_batch

    def weight(self, place: MicroBatchIndex) -> float:
        """The factor of a micro-batch's loss: 0.5 for the first to 1.5 for the last, 1 on average.

        Every micro-batch so has a gradient of its own, even if all data are alike. Otherwise a rank that kept its own
        gradient would have the right one.
        """
        rank, number = place
        last = len(self.shards) * self.in_step - 1
        return 0.5 + (rank * self.in_step + number) / last if last else 1.0


def own_batches(ctx: RankView, workload: Workload, count: int, loader: LoaderSettings | None = None) -> list[Pair]:
    """This rank's first batches of the timed steps, cut down to a few samples.

    Of the loader's settings only the sampler is kept, because it decides which samples a batch holds; with ``auto``
    none is.
    """
    seed(DATA_SEED if ctx.mode == "strong" else DATA_SEED + ctx.rank)
    if workload.batch is not None or loader is None or loader.auto:
        source = batches(ctx, workload)
    else:
        source = batches(ctx, workload, LoaderSettings(workers=0, pin_memory=False, sampler=loader.sampler))
    try:
        return [cut_down(source()) for _ in range(count)]
    finally:
        source.close()


def cut_down(pair: Pair) -> Pair:
    """The first samples of a batch, copied to the CPU; a batch that cannot be cut along dimension 0 stays whole."""
    sizes = {leaf.shape[0] if isinstance(leaf, Tensor) and leaf.dim() else None for leaf in tree_leaves(pair)}
    kept = slice(MAX_SAMPLES) if len(sizes) == 1 and None not in sizes else ...

    def copied(leaf: Any) -> Any:
        # A slice would be pickled with its whole storage.
        return leaf[kept].detach().to(torch.device("cpu"), copy=True) if isinstance(leaf, Tensor) else leaf

    return tree_map(copied, pair)  # type: ignore[no-any-return]  # torch types what comes back as Any


def weighted(workload: Workload) -> Workload:
    """The workload with a loss that takes ``(targets, weight)`` for targets."""
    loss = workload.loss

    # So that messages name the user's function.
    @functools.wraps(loss.func if isinstance(loss, functools.partial) else loss, updated=())
    def weighted_loss(outputs: Any, targets: Pair) -> Any:
        found: Any = loss(outputs, targets[0])
        return found * targets[1] if isinstance(found, Tensor) else found

    return replace(workload, loss=weighted_loss)


def _mover(device: torch.device) -> Callable[[Any], Any]:
    return lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf
