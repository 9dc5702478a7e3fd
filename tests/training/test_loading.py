"""DataLoaders made anew with other settings, and the settings that are picked for a machine and its data."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    get_worker_info,
)

from pytest_ddpperf.errors import SettingError, WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.loader_settings import LoaderSettings, loader_settings
from pytest_ddpperf.training.loading import Fetch, choose, pick, rebuilt, require_data_loader

Loader = DataLoader[Any]


def numbers(count: int = 12) -> TensorDataset:
    return TensorDataset(torch.arange(float(count)), torch.zeros(count))


def global_draws() -> list[float]:
    """A number each from the global generators of Python and numpy, which users' datasets draw from."""
    return [random.random(), np.random.rand()]  # noqa: S311, NPY002


def anew(own: Loader, text: str, share: tuple[int, int] = (0, 1)) -> Loader:
    return rebuilt(own, loader_settings(text), share, "load (test.py:1)")


def epochs(loader: Loader, count: int = 2) -> list[list[list[float]]]:
    return [[inputs.tolist() for inputs, _ in loader] for _ in range(count)]


def test_loader_arguments_that_the_settings_do_not_name_are_kept() -> None:
    def collate(samples: list[Any]) -> list[Any]:
        return samples

    def begin(_worker: int) -> None: ...

    data = numbers()
    own: Loader = DataLoader(
        data,
        batch_size=4,
        drop_last=True,
        collate_fn=collate,
        worker_init_fn=begin,
        num_workers=2,
        timeout=30,
        prefetch_factor=3,
        multiprocessing_context="spawn",
    )
    new = anew(own, "pin_memory=true,persistent_workers=true")
    assert (new.dataset, new.batch_size, new.drop_last) == (data, 4, True)
    assert (new.collate_fn, new.worker_init_fn, new.timeout) == (collate, begin, 30)
    assert (new.num_workers, new.prefetch_factor, new.multiprocessing_context) == (2, 3, own.multiprocessing_context)
    assert (new.pin_memory, new.persistent_workers) == (True, True)
    assert isinstance(new.sampler, SequentialSampler)
    assert not own.persistent_workers  # the workload's own is not touched
    new = anew(own, "workers=0")  # without what only workers have
    assert (new.num_workers, new.prefetch_factor, new.timeout, new.multiprocessing_context) == (0, None, 0, None)


@pytest.mark.parametrize("word", ["prefetch_factor=2", "persistent_workers=true"])
def test_settings_that_need_workers_are_refused_if_the_loader_has_none(word: str) -> None:
    message = (
        rf"^loader={word}: {word.partition('=')[0]} needs workers, but the DataLoader of load .* has none; add workers="
    )
    with pytest.raises(SettingError, match=message):
        anew(DataLoader(numbers()), word)


def shuffled() -> Loader:
    return DataLoader(numbers(), batch_size=3, shuffle=True)


def shuffled_by_a_generator() -> Loader:
    return DataLoader(numbers(), batch_size=3, shuffle=True, generator=torch.Generator().manual_seed(5))


def batches_drawn() -> Loader:
    return DataLoader(numbers(), batch_sampler=BatchSampler(RandomSampler(numbers()), 3, drop_last=True))


def streamed() -> Loader:
    return DataLoader(Stream(), batch_size=3)


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """Reads the share of its worker: with one worker, all of it."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        info = get_worker_info()
        for number in range(0 if info is None else info.id, 6, 1 if info is None else info.num_workers):
            yield torch.tensor(float(number)), 0


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (shuffled, "workers=2,persistent_workers=true,prefetch_factor=1"),
        (shuffled_by_a_generator, "workers=2,persistent_workers=true"),
        (batches_drawn, "workers=1"),
        (streamed, "workers=1"),
        (lambda: DataLoader(numbers(2), batch_size=None), "workers=1"),  # without batching
    ],
)
def test_the_batches_are_the_same_with_any_settings(make: Callable[[], Loader], other: str) -> None:
    torch.manual_seed(3)
    expected = epochs(anew(make(), "workers=0"))
    torch.rand(7)  # what a model draws on the way has no influence either
    assert len(expected[0]) > 1
    assert epochs(anew(make(), other)) == expected
    if make is shuffled:
        torch.manual_seed(4)  # another rank's seed, and each epoch, has an order of its own
        orders = [*expected, *epochs(anew(make(), "workers=0"))]
        assert len({str(order) for order in orders}) == 4


class Drawn(Dataset[tuple[torch.Tensor, float]]):
    """What a worker draws."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _index: int) -> tuple[torch.Tensor, float]:
        return torch.tensor([torch.rand(1).item(), *global_draws()]), 0.0


def test_workers_have_separate_seeds_that_follow_from_the_seed_of_the_rank() -> None:
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([inputs for inputs, _ in anew(DataLoader(Drawn()), "workers=2")])

    first = drawn(1)
    torch.rand(3)
    assert torch.equal(drawn(1), first)
    assert not torch.isin(drawn(2), first).any()
    assert len(set(first.flatten().tolist())) == 12  # two workers with two samples each: nobody repeats another


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_data_are_divided_among_ranks_in_the_order_of_the_loader(*, shuffle: bool) -> None:
    own: Loader = DataLoader(numbers(), batch_size=2, shuffle=shuffle, drop_last=True)
    new = anew(own, "sampler=rank", share=(1, 3))
    sampler: Any = new.sampler
    assert (sampler.rank, sampler.num_replicas, sampler.shuffle, sampler.drop_last) == (1, 3, shuffle, True)
    assert (new.batch_size, new.drop_last, len(new)) == (2, True, 2)
    shares = [epochs(anew(own, "sampler=rank", share=(rank, 3)), 1)[0] for rank in range(3)]
    assert sorted(number for share in shares for batch in share for number in batch) == list(range(12))


def test_a_loader_that_divides_its_data_already_keeps_its_sampler() -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(numbers(), 2, 1, seed=7)
    own: Loader = DataLoader(numbers(), sampler=sampler)
    assert anew(own, "sampler=rank", share=(0, 4)).sampler is sampler
    batched: Loader = DataLoader(numbers(), batch_sampler=BatchSampler(sampler, 3, drop_last=False))
    kept: Any = anew(batched, "sampler=rank").batch_sampler
    assert kept.sampler is sampler


class Pairs(Sampler[list[int]]):
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1], [2, 3]])

    def __len__(self) -> int:
        return 2


def test_a_batch_sampler_of_the_users_own_is_kept() -> None:
    pairs = Pairs()
    assert anew(DataLoader(numbers(), batch_sampler=pairs), "workers=1").batch_sampler is pairs


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (DataLoader(Stream()), r"the dataset of load \(test.py:1\) is an IterableDataset, .*leave sampler=rank out"),
        (DataLoader(numbers(), batch_sampler=Pairs()), "has its own batch_sampler, .* use batch_size"),
        (DataLoader(numbers(), sampler=SubsetRandomSampler([1])), "uses a SubsetRandomSampler; let that"),
        (
            DataLoader(numbers(), sampler=RandomSampler(numbers(), replacement=True)),
            "uses a RandomSampler; let that sampler know the rank",
        ),
    ],
)
def test_a_loader_that_cannot_be_divided_is_refused_with_the_cure(own: Loader, message: str) -> None:
    with pytest.raises(SettingError, match=f"^loader=sampler=rank: .*{message}"):
        anew(own, "sampler=rank")


def test_only_a_data_loader_can_be_changed() -> None:
    class Own(DataLoader[Any]):
        def __iter__(self) -> Any:
            return super().__iter__()

    class Named(DataLoader[Any]):
        """Adds nothing to how it loads."""

    with pytest.raises(WorkloadError, match=r"^load returned a list, but loader=\.\.\. is for a torch DataLoad"):
        require_data_loader([1], "load")
    with pytest.raises(WorkloadError, match=r"returned a Own, whose loading differs .* set them in its"):
        require_data_loader(Own(numbers()), "load")
    named = Named(numbers())
    assert require_data_loader(named, "load") is named


NONE = LoaderSettings(workers=0, pin_memory=False)


def test_fast_batches_are_fetched_by_the_rank() -> None:
    """512 bytes are handed over in 1 ms, 19 MB in 20 ms: fetching has to take twice as long to be worth a worker."""
    many: dict[str, Any] = {"cores": 64, "ranks": 2, "threads": 1, "cuda": False}
    assert choose(Fetch(0.0005, 1.0, 512), **many) == (
        NONE,
        "a batch takes 500 us to fetch, and about 1.00 ms to be handed over by a worker",
    )
    assert choose(Fetch(0.039, 1.0, 19_000_000), **many)[0] == NONE
    assert choose(Fetch(0.041, 1.0, 19_000_000), **many)[0].workers == 8


@pytest.mark.parametrize(
    ("milliseconds", "busy", "cores", "ranks", "threads", "workers", "prefetch", "reason"),
    [
        # 8 cores // 2 ranks - 1 thread = 3 spare, and ceil(12 / 5) = 3 give a batch every 5 ms
        (12, 1.0, 8, 2, 1, 3, 2, "and with 8 cores for 2 ranks a rank has 3 free"),
        # the same batches: one of 16 cores would do for each 5 ms, so 3 of the 7 spare ones are taken
        (12, 1.0, 16, 2, 1, 3, 2, "and with 16 cores for 2 ranks a rank has 7 free"),
        # a single worker holds four batches ready
        (12, 1.0, 4, 2, 1, 1, 4, "and with 4 cores for 2 ranks a rank has 1 free"),
        # a rank that computes with three threads has none to spare of its four cores but one
        (90, 1.0, 4, 1, 3, 1, 4, "and with 4 cores for 1 rank a rank has 1 free"),
        # slow data take all that is spare, up to 8
        (900, 1.0, 96, 2, 1, 8, 2, "and with 96 cores for 2 ranks a rank has 47 free"),
        # what waits for a disk needs no core: as many workers as give a batch every 5 ms, up to 8
        (90, 0.2, 2, 2, 1, 8, 2, "which is mostly waiting and needs no separate core"),
    ],
)
def test_slow_batches_are_fetched_by_as_many_workers_as_cores_and_memory_allow(
    *, milliseconds: int, busy: float, cores: int, ranks: int, threads: int, workers: int, prefetch: int, reason: str
) -> None:
    fetch = Fetch(milliseconds / 1000, busy, 1000)
    settings, why = choose(fetch, cores=cores, ranks=ranks, threads=threads, cuda=False)
    assert settings == LoaderSettings(
        workers=workers, pin_memory=False, prefetch_factor=prefetch, persistent_workers=True
    )
    assert why.endswith(reason)


def test_without_a_core_to_spare_the_rank_fetches_by_itself() -> None:
    assert choose(Fetch(0.09, 1.0, 1000), cores=2, ranks=2, threads=1, cuda=False) == (
        NONE,
        "a batch takes 90.0 ms to fetch, and with 2 cores for 2 ranks no core is free for a worker",
    )


def test_memory_is_pinned_for_a_gpu_and_by_workers_only() -> None:
    assert choose(Fetch(0.09, 1.0, 1000), cores=8, ranks=1, threads=1, cuda=True)[0].pin_memory is True
    assert choose(Fetch(0.0001, 1.0, 1000), cores=8, ranks=1, threads=1, cuda=True)[0].pin_memory is False


class Waiting(Dataset[tuple[torch.Tensor, float]]):
    """Each sample takes 10 ms, as from a slow disk."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        time.sleep(0.01)
        return torch.tensor(float(index)), 0.0


class Computed(Waiting):
    """Each sample takes 5 ms on a core."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, float]:
        end = time.process_time() + 0.005
        while time.process_time() < end:
            math.sqrt(index)
        return torch.tensor(float(index)), 0.0


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="this kernel does not tell who waits")
def test_waiting_is_distinguished_from_computing_on_a_busy_machine_too(
    make_ctx: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_ddpperf.training.loading.usable_cores", lambda of: 1)
    slow, why = pick(make_ctx(), DataLoader(Waiting()))
    assert slow.workers
    assert f"picked by loader=auto: {slow} (a batch takes " in why
    computed, why = pick(make_ctx(), DataLoader(Computed()))
    assert computed == NONE
    assert why.endswith("to fetch, and with 1 core for 1 rank no core is free for a worker)")


def test_a_pick_leaves_random_numbers_as_they_were(make_ctx: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    loader: Loader = DataLoader(Drawn(), batch_size=2, shuffle=True, generator=generator)

    def drawn() -> list[float]:
        return [torch.rand(1, generator=generator).item(), torch.rand(1).item(), *global_draws()]

    def seeded() -> None:
        generator.manual_seed(1)
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002

    seeded()
    expected = drawn()
    seeded()
    pick(make_ctx(), loader)
    assert drawn() == expected
    assert pick(make_ctx(), DataLoader(numbers(3), batch_size=4, drop_last=True))[0] == NONE  # which is empty


def test_all_ranks_load_as_rank_0_picks(launcher: Launcher) -> None:
    """Rank 1 would pick otherwise: its data are cheap."""

    def picked(ctx: RankContext) -> tuple[str, str]:
        data = Waiting() if ctx.rank == 0 else numbers(40)
        settings, why = pick(ctx, DataLoader(data, batch_size=4))
        return str(settings), why

    first, second = launcher.run(picked, world_size=2, backend="gloo", device="cpu").values
    assert first == second
    assert not first[0].startswith("workers=0")
