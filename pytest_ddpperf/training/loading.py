"""Changes a workload's DataLoader: applies the given settings, or picks settings by measuring batches."""

from __future__ import annotations

import copy
import math
import os
import random
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils import data
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.host import usable_cores
from pytest_ddpperf.records.loader_settings import LoaderSettings
from pytest_ddpperf.strategies.strategy import RankView
from pytest_ddpperf.units import format_count, format_value

# What a worker's batch costs on its way to the rank: measured with torch 2.13 on a 2-core x86 machine as 0.9 ms for
# 512 bytes and 1.3 ms more for 1.5 MB; it is copied into shared memory, and a file descriptor is passed.
_HANDOVER_SECONDS = 1e-3
_HANDOVER_RATE = 1e9  # bytes per second
_PACE = 5e-3  # seconds from batch to batch: hardly any training then waits for data
_MAX_WORKERS = 8  # of a rank: more hardly help, and each copies the memory that the dataset writes to
_SCHEDULED = Path("/proc/thread-self/schedstat")  # nanoseconds on a core, nanoseconds of waiting, time slices
_FETCHES = 5
_FETCH_SECONDS = 1.0


def require_data_loader(loader: object, source: str) -> DataLoader[Any]:
    """Returns the loader if its settings can be changed; raises a WorkloadError otherwise."""
    if not isinstance(loader, DataLoader):
        reason = f"{source} returned a {type(loader).__name__}, but loader=... is for a torch DataLoader"
        raise WorkloadError(f"{reason}: return a DataLoader, or leave loader=... out")
    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__ or kind._get_iterator is not DataLoader._get_iterator:  # noqa: SLF001
        raise WorkloadError(
            f"{source} returned a {kind.__name__}, whose loading differs from torch's DataLoader, so loader=... cannot "
            "change its settings: set them in its constructor, and leave loader=... out"
        )
    return loader


def rebuilt(own: DataLoader[Any], settings: LoaderSettings, share: tuple[int, int], source: str) -> DataLoader[Any]:
    """Returns a DataLoader like ``own`` with these settings; a setting that is None keeps ``own``'s value.

    A loader that shuffles by torch's global generator gets a separate generator, so that training cannot change the
    order of samples. For ``sampler=rank``, ``share`` has this rank's number and the number of parts of the data.
    """
    workers = own.num_workers if settings.workers is None else settings.workers
    if not workers and (settings.prefetch_factor or settings.persistent_workers):
        word = "prefetch_factor" if settings.prefetch_factor else "persistent_workers"
        raise SettingError(
            f"loader={settings}: {word} needs workers, but the DataLoader of {source} has none; add workers=2"
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
    sizes = {"batch_size": own.batch_size, "drop_last": own.drop_last}
    if isinstance(own.dataset, data.IterableDataset):
        if settings.sampler:
            reason = f"loader={settings}: the dataset of {source} is an IterableDataset, which no sampler can split"
            cure = "let the dataset read its rank's part (loader gets rank and world_size), and leave sampler=rank out"
            raise SettingError(f"{reason}; {cure}")
        return sizes
    if own.batch_sampler is None or own.batch_size is not None:
        sampler = _shared_out(own, settings, share, source) if settings.sampler else _own_order(own.sampler)
        return {**sizes, "sampler": sampler}
    batch_sampler: Any = own.batch_sampler
    inner = getattr(batch_sampler, "sampler", None)
    if settings.sampler and not isinstance(inner, data.DistributedSampler):
        reason = f"loader={settings}: {source} has its own batch_sampler, which cannot be split among ranks"
        cure = "use batch_size and shuffle instead, or let the batch_sampler know the rank, and leave sampler=rank out"
        raise SettingError(f"{reason}; {cure}")
    if type(batch_sampler) is data.BatchSampler:
        batch_sampler = data.BatchSampler(_own_order(inner), batch_sampler.batch_size, batch_sampler.drop_last)
    return {"batch_sampler": batch_sampler}


def _own_order(sampler: Any) -> Any:
    """Returns the sampler, or if it would draw from torch's global generator, a copy with a separate generator."""
    if getattr(sampler, "generator", sampler) is not None:
        return sampler
    drawing = copy.copy(sampler)
    drawing.generator = _generator()
    return drawing


def _shared_out(
    own: DataLoader[Any], settings: LoaderSettings, share: tuple[int, int], source: str
) -> data.DistributedSampler[Any]:
    sampler: Any = own.sampler
    if isinstance(sampler, data.DistributedSampler):
        return sampler
    count = len(own.dataset)  # type: ignore[arg-type]  # a dataset that is no IterableDataset has a length
    shuffles = isinstance(sampler, data.RandomSampler) and not sampler.replacement and sampler.num_samples == count
    if not shuffles and type(sampler) is not data.SequentialSampler:
        raise SettingError(
            f"loader={settings}: sampler=rank replaces only a sequential or a shuffling sampler, but {source} uses a "
            f"{type(sampler).__name__}; let that sampler know the rank, and leave sampler=rank out"
        )
    part, parts = share
    return data.DistributedSampler(own.dataset, parts, part, shuffle=shuffles, drop_last=own.drop_last)


def _generator() -> torch.Generator:
    """Returns a new generator with the rank's seed; it does not depend on random numbers that were drawn before."""
    return torch.Generator().manual_seed(torch.initial_seed())


@dataclass(frozen=True)
class Fetch:
    """The cost of fetching a batch without workers: seconds, fraction of CPU time, and the batch's bytes."""

    seconds: float
    busy: float
    size: int


def pick(ctx: RankView, loader: DataLoader[Any]) -> tuple[LoaderSettings, str]:
    """Returns the fastest settings for rank 0's machine and data, and the reason; all ranks call this together."""
    picked: list[Any] = [None]
    if ctx.rank == 0:
        cores = usable_cores(of=os.getppid())  # ranks may be bound near their GPUs
        own = torch.get_num_threads() if ctx.device.type == "cpu" else 1
        picked[0] = choose(
            _measured(loader),
            cores=cores,
            ranks=ctx.local_world_size,
            threads=own,
            cuda=ctx.device.type == "cuda",
            max_workers=1 if isinstance(loader.dataset, data.IterableDataset) else _MAX_WORKERS,
        )
    dist.broadcast_object_list(picked, src=0)
    settings, reason = picked[0]
    return settings, f"data loading, picked by loader=auto: {settings} ({reason})"


def choose(
    fetch: Fetch, *, cores: int, ranks: int, threads: int, cuda: bool, max_workers: int = _MAX_WORKERS
) -> tuple[LoaderSettings, str]:
    """Returns the settings for a rank's DataLoader and the reason for them, from the cost of fetching a batch.

    There are no workers if fetching a batch is fast, or if fetching needs a core and no core is spare. Otherwise there
    are enough workers for a batch every 5 ms, but at most ``max_workers``. Batches are pinned only with workers,
    because pinning in the rank's own thread takes longer than a plain copy to the GPU. The machine has ``cores`` CPU
    cores for ``ranks`` ranks, and each rank computes with ``threads`` threads.
    """
    took = f"a batch takes {format_value(fetch.seconds, 's')} to fetch"
    handover = _HANDOVER_SECONDS + fetch.size / _HANDOVER_RATE
    if fetch.seconds < 2 * handover:
        text = format_value(handover, "s")
        return LoaderSettings(workers=0, pin_memory=False), f"{took}, and about {text} to be handed over by a worker"
    spare = max(0, cores // ranks - threads)
    shared = f"with {format_count(cores, 'core')} for {format_count(ranks, 'rank')}"
    waits = fetch.busy < 0.5  # noqa: PLR2004  less than half of the time on a core
    if not spare and not waits:
        return LoaderSettings(workers=0, pin_memory=False), f"{took}, and {shared} no core is free for a worker"
    wanted = math.ceil(fetch.seconds / _PACE)
    workers = min(wanted, max_workers) if waits else min(spare, max_workers, wanted)
    settings = LoaderSettings(
        workers=workers,
        pin_memory=cuda,
        prefetch_factor=max(2, math.ceil(4 / workers)),  # four batches ahead even out a slow one
        persistent_workers=True,
    )
    left = f"and {shared} a rank has {spare} free" if spare else "which is mostly waiting and needs no separate core"
    return settings, f"{took}, {left}"


def _measured(loader: DataLoader[Any]) -> Fetch:
    """Measures the cost of fetching a batch in this process, without changing random numbers of the training."""
    walls: list[float] = []
    cores: list[float] = []
    size = 0
    with _randomness_kept(loader):
        batches = iter(rebuilt(loader, LoaderSettings(workers=0, pin_memory=False), (0, 1), "the loader"))
        while len(walls) <= _FETCHES and sum(walls) < _FETCH_SECONDS:
            wall, core = _undisturbed(), time.process_time()
            batch = next(batches, None)
            if batch is None:
                break
            walls.append(_undisturbed() - wall)
            cores.append(time.process_time() - core)
            size = sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))
    if not walls:
        return Fetch(0.0, 1.0, 0)  # the loader's first epoch will raise that it is empty
    walls, cores = walls[1:] or walls, cores[1:] or cores  # the first fetch also opens files and fills caches
    return Fetch(statistics.median(walls), sum(cores) / max(sum(walls), 1e-9), size)


def _undisturbed() -> float:
    """Returns the seconds of a clock that stops while this thread waits for a busy CPU core."""
    try:
        _, waited, _ = _SCHEDULED.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        waited = "0"  # not every kernel reports it
    return time.perf_counter() - int(waited) * 1e-9


@contextmanager
def _randomness_kept(loader: DataLoader[Any]) -> Iterator[None]:
    own = [getattr(part, "generator", None) for part in (loader, loader.sampler)]
    generators = [torch.default_generator, *(found for found in own if isinstance(found, torch.Generator))]
    states = [generator.get_state() for generator in generators]
    pythons, numpys = random.getstate(), np.random.get_state()  # noqa: NPY002  datasets draw from the global one
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(pythons)
        np.random.set_state(numpys)  # noqa: NPY002  the same
