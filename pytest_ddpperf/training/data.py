"""Makes the batches of a rank, on the rank's device; in strong scaling, slices of global batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.records.loader_settings import LoaderSettings
from pytest_ddpperf.strategies.strategy import RankView
from pytest_ddpperf.training.loading import pick, rebuilt, require_data_loader
from pytest_ddpperf.training.model import describe_value
from pytest_ddpperf.training.subject import Workload, located

NextBatch = Callable[[], tuple[Any, Any]]


@dataclass(eq=False)
class Batches:
    """A source of batches: each call returns the next ``(inputs, targets)`` on the rank's device."""

    next_batch: NextBatch  # what a call calls; a phase hook may replace it
    loads: bool  # whether a step waits for data; not if one batch was made for all steps
    size: int | None = None  # samples of a batch, by the first dimension of its first tensor; None if it has none
    length: int | None = None  # batches until the loader begins again; None for one batch, and without a length
    burst: int = 1  # how many batches workers hold ready: so many steps may be fast, and the next one slow
    shapes: tuple[tuple[int, ...], ...] = ()  # of a whole batch's tensors
    picked: tuple[str, str] | None = None  # what loader=auto picked, as the setting's text, and why; None without auto
    close: Callable[[], None] = lambda: None  # ends the workers

    def __call__(self) -> tuple[Any, Any]:
        """Returns the next batch."""
        return self.next_batch()


def batches(
    ctx: RankView, workload: Workload, settings: LoaderSettings | None = None, *, first_epoch: int = 0
) -> Batches:
    """Returns the source of this rank's batches; with ``settings`` of ``auto``, all ranks call this function together.

    ``first_epoch`` is the number of the first epoch for a sampler that shuffles. In strong mode, every rank makes the
    same global batches and takes its slice of each. Raises a WorkloadError if batches are no pairs or cannot be sliced,
    and a SettingError if ``settings`` do not fit the workload.
    """
    if workload.batch is not None:
        source = located(workload.batch)
        if settings is not None:
            reason = f"loader={settings}: this Workload uses one batch of {source} in all steps, and no DataLoader"
            cure = "give Workload(loader=...) in place of batch=..., or remove the setting loader"
            raise SettingError(f"{reason}; {cure}")
        whole = _pair(workload, workload.batch(), source)
        _require_samples(whole, source)
        pair = _mover(ctx, whole)(_rank_share(ctx, whole, source))
        return Batches(lambda: pair, loads=False, size=_size(pair), shapes=_shapes(whole))
    assert workload.loader is not None  # noqa: S101  a Workload has one of the two
    source = located(workload.loader)
    loader: Any = workload.loader(0, 1) if ctx.mode == "strong" else workload.loader(ctx.rank, ctx.world_size)
    picked = None
    if settings is not None:
        loader, picked = with_settings(ctx, loader, settings, source)
    if not isinstance(loader, Iterable):
        raise WorkloadError(f"loader {source} returned a {type(loader).__name__}: return an iterable of batches")
    stream = _endless(workload, loader, source, first_epoch)
    first = next(stream)
    _require_samples(first, source)
    stream_of_all = itertools.chain([first], stream)
    moved = _mover(ctx, first)

    torchs: Any = loader if isinstance(loader, DataLoader) else None
    workers = 0 if torchs is None else torchs.num_workers

    def close() -> None:
        # An iterator ends its workers when it is released; a DataLoader with persistent workers keeps its iterator.
        stream.close()
        if torchs is not None:
            torchs._iterator = None  # noqa: SLF001  torch has no other way to end persistent workers

    return Batches(
        lambda: moved(_rank_share(ctx, next(stream_of_all), source)),
        loads=True,
        size=_size(first),
        shapes=_shapes(first),
        length=_length(loader),
        burst=workers * (torchs.prefetch_factor or 1) if workers else 1,
        picked=picked,
        close=close,
    )


def with_settings(
    ctx: RankView, loader: object, settings: LoaderSettings, source: str
) -> tuple[DataLoader[Any], tuple[str, str] | None]:
    """Returns the DataLoader with these settings; for ``auto``, also the picked settings and the reason."""
    own = require_data_loader(loader, source)
    share = (0, 1) if ctx.mode == "strong" else (ctx.rank, ctx.world_size)  # strong: all data, a slice of each batch
    if not settings.auto:
        return rebuilt(own, settings, share, source), None
    picked, reason = pick(ctx, own)
    picked = replace(picked, sampler=settings.sampler)
    return rebuilt(own, picked, share, source), (str(picked), reason)


def _length(loader: Any) -> int | None:
    try:
        return len(loader) or None
    except (TypeError, NotImplementedError):
        return None


def _endless(
    workload: Workload, loader: Iterable[Any], source: str, first_epoch: int
) -> Generator[tuple[Any, Any], None, None]:
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    setters = (getattr(holder, "set_epoch", None) for holder in holders)
    set_epoch = next((setter for setter in setters if setter is not None), None)
    size = None
    epoch = first_epoch
    while True:
        if set_epoch is not None:
            set_epoch(epoch)  # a DistributedSampler shuffles anew only in a new epoch
        empty = True
        for batch in loader:
            pair = _pair(workload, batch, source)
            found = _size(pair)
            if size is not None and found != size:
                raise WorkloadError(
                    f"loader {source} yielded a batch of {found} after batches of {size}, but all steps must have the "
                    "same batch size: leave the incomplete last batch out, by drop_last=True"
                )
            size = found
            yield pair
            empty = False
        if empty and epoch == first_epoch:
            raise WorkloadError(f"loader {source} yielded no batch: give it data for at least one batch")
        if empty:
            reason = f"loader {source} yielded no batch in its second epoch"
            cure = "return an iterable that can be iterated many times, such as a DataLoader, not an iterator"
            raise WorkloadError(f"{reason}: {cure}")
        epoch += 1


def _pair(workload: Workload, batch: Any, source: str) -> tuple[Any, Any]:
    """Returns the inputs and targets of a batch; for a workload with ``forward``, the batch and an empty tuple."""
    if batch is None or isinstance(batch, (Iterator, DataLoader)):
        raise WorkloadError(
            f"{source} returned {describe_value(batch)} as a batch: return (inputs, targets), or for many batches "
            "give Workload(loader=lambda rank, world_size: ...) in place of batch"
        )
    if workload.forward is not None:
        # Such as the one that tokenizers give, which is no dict: torch would take it for a single leaf.
        return (dict(batch) if isinstance(batch, Mapping) else batch), ()
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:  # noqa: PLR2004
        raise WorkloadError(
            f"{source} gave a batch of type {type(batch).__name__}: return (inputs, targets), or for others give "
            "Workload(forward=...) in place of loss, such as forward=lambda model, batch: model(**batch).loss"
        )
    return batch[0], batch[1]


def _require_samples(pair: tuple[Any, Any], source: str) -> None:
    if any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in tree_leaves(pair)):
        reason = f"{source} gave a tensor on the meta device, which has no values"
        cure = "make batches on the CPU, without torch.device('meta') and torch.set_default_device('meta')"
        raise WorkloadError(f"{reason}: {cure}")
    if _size(pair) == 0:
        raise WorkloadError(
            f"{source} gave a batch of 0 samples (the first tensor's dimension 0 is empty): give at least one sample"
        )


def _shapes(pair: tuple[Any, Any]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(leaf.shape) for leaf in tree_leaves(pair) if isinstance(leaf, torch.Tensor))


def contradicting_size(shapes: Sequence[tuple[int, ...]], samples: float) -> int | None:
    """Returns dimension 0 of a batch's tensors if it contradicts the number of samples; else None."""
    sizes = {shape[0] for shape in shapes if shape}  # samples may also be packed, or lie along the second dimension
    if len(sizes) != 1 or 1 in sizes or any(samples in shape[:2] for shape in shapes):
        return None
    return sizes.pop()


def _size(pair: tuple[Any, Any]) -> int | None:
    """Returns the first dimension of a batch's first tensor that has dimensions; None if no tensor has any."""
    first = next((leaf for leaf in tree_leaves(pair) if isinstance(leaf, torch.Tensor) and leaf.dim()), None)
    return None if first is None else first.shape[0]


def _rank_share(ctx: RankView, pair: tuple[Any, Any], source: str) -> tuple[Any, Any]:
    if ctx.mode != "strong":
        return pair
    ranks = ctx.world_size

    def share(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.dim():
            return leaf
        if leaf.shape[0] % ranks:
            raise WorkloadError(
                f"{source} gave a batch of {leaf.shape[0]} samples, which {ranks} ranks cannot share equally (with "
                f"mode='strong', the batch is the global one): make the batch size a multiple of {ranks}"
            )
        size = leaf.shape[0] // ranks
        return leaf[ctx.rank * size : (ctx.rank + 1) * size]

    return tree_map(share, pair)  # type: ignore[no-any-return]  # torch types what comes back as Any


def _mover(ctx: RankView, first: tuple[Any, Any]) -> Callable[[tuple[Any, Any]], tuple[Any, Any]]:
    """Returns a function that moves batches to the rank's device, asynchronously if the ``first`` batch is pinned."""
    if ctx.device.type == "cpu":
        return lambda pair: pair  # it was made there
    on_host = [leaf for leaf in tree_leaves(first) if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu"]
    pinned = all(leaf.is_pinned() for leaf in on_host)  # to ask in each step would take time of the step

    def moved(leaf: Any) -> Any:
        return leaf.to(ctx.device, non_blocking=pinned) if isinstance(leaf, torch.Tensor) else leaf

    return partial(tree_map, moved)
