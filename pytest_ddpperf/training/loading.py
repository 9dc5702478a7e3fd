"""Rebuilds a workload's DataLoader with other settings."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.records.loader_settings import LoaderSettings


def require_data_loader(loader: object, source: str) -> DataLoader[Any]:
    """Returns the loader if its settings can be changed; raises a WorkloadError otherwise."""
    if not isinstance(loader, DataLoader):
        raise WorkloadError(
            f"{source} gave a {type(loader).__name__}, and loader=... changes the settings of a torch DataLoader: "
            "give one, or leave loader=... out"
        )
    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator:  # noqa: SLF001
        raise WorkloadError(
            f"{source} gave a {kind.__name__}, a DataLoader that loads in its own way, so loader=... cannot change its "
            "settings: set them where it is made, and leave loader=... out"
        )
    return loader


def rebuilt(own: DataLoader[Any], settings: LoaderSettings, share: tuple[int, int], source: str) -> DataLoader[Any]:
    """Rebuilds a DataLoader with the settings in place of its own; settings that are None are kept.

    Of all settings only the sampler decides which samples a batch holds. A loader that shuffles by torch's global
    generator gets a generator of its own: workers leave the global one alone, a rank that loads by itself may not.
    ``share`` is the number of this rank's share of the data and of all shares, for ``sampler=rank``.
    """
    workers = own.num_workers if settings.workers is None else settings.workers
    if not workers and (settings.prefetch_factor or settings.persistent_workers):
        word = "prefetch_factor" if settings.prefetch_factor else "persistent_workers"
        raise SettingError(
            f"loader={settings}: {word} needs workers, and the DataLoader of {source} has none; add workers=2"
        )
    with_workers = {
        "prefetch_factor": own.prefetch_factor if settings.prefetch_factor is None else settings.prefetch_factor,
        "persistent_workers": (
            own.persistent_workers if settings.persistent_workers is None else settings.persistent_workers
        ),
        "timeout": own.timeout,
        "multiprocessing_context": own.multiprocessing_context,
    }
    return DataLoader(
        own.dataset,
        **_order(own, settings, share, source),
        num_workers=workers,
        collate_fn=own.collate_fn,
        pin_memory=own.pin_memory if settings.pin_memory is None else settings.pin_memory,
        worker_init_fn=own.worker_init_fn,
        generator=_generator(),  # for the workers' seeds alone
        pin_memory_device=own.pin_memory_device,
        in_order=own.in_order,
        **(with_workers if workers else {}),
    )


def _order(own: DataLoader[Any], settings: LoaderSettings, share: tuple[int, int], source: str) -> dict[str, Any]:
    """The arguments that decide which samples make up which batch."""
    if isinstance(own.dataset, IterableDataset):
        if settings.sampler:
            raise SettingError(
                f"loader={settings}: the dataset of {source} is an IterableDataset, which no sampler can share out; "
                "let it read its rank's part (loader(rank, world_size) is told both), and leave sampler=rank out"
            )
        return {"batch_size": own.batch_size, "drop_last": own.drop_last}
    sizes = {"batch_size": own.batch_size, "drop_last": own.drop_last}
    if own.batch_sampler is None or own.batch_size is not None:
        return {
            **sizes,
            "sampler": _shared_out(own, settings, share, source) if settings.sampler else _own_order(own.sampler),
        }
    batch_sampler: Any = own.batch_sampler
    inner = getattr(batch_sampler, "sampler", None)
    if settings.sampler and not isinstance(inner, DistributedSampler):
        raise SettingError(
            f"loader={settings}: {source} has a batch_sampler of its own, which cannot be shared out; give it "
            "batch_size and shuffle instead, or share out the batches in it, and leave sampler=rank out"
        )
    if type(batch_sampler) is BatchSampler:
        batch_sampler = BatchSampler(_own_order(inner), batch_sampler.batch_size, batch_sampler.drop_last)
    return {"batch_sampler": batch_sampler}


def _own_order(sampler: Any) -> Any:
    """The sampler; one that draws from torch's global generator gets a generator of its own."""
    if getattr(sampler, "generator", sampler) is not None:
        return sampler
    drawing = copy.copy(sampler)
    drawing.generator = _generator()
    return drawing


def _shared_out(
    own: DataLoader[Any], settings: LoaderSettings, share: tuple[int, int], source: str
) -> DistributedSampler[Any]:
    sampler: Any = own.sampler
    if isinstance(sampler, DistributedSampler):
        return sampler
    count = len(own.dataset)  # type: ignore[arg-type]  # a dataset that is no IterableDataset has a length
    shuffles = isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == count
    if not shuffles and type(sampler) is not SequentialSampler:
        raise SettingError(
            f"loader={settings}: sampler=rank shares out data that are read in order or shuffled, and the loader of "
            f"{source} draws them by a {type(sampler).__name__}; let that one know the rank, and leave sampler=rank out"
        )
    part, parts = share
    return DistributedSampler(own.dataset, parts, part, shuffle=shuffles, drop_last=own.drop_last)


def _generator() -> torch.Generator:
    """A generator that depends on the rank's seed alone, however many numbers were drawn since it was set."""
    return torch.Generator().manual_seed(torch.initial_seed())
