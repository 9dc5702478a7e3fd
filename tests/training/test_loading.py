"""DataLoaders made anew: what is changed, what is kept, what is refused, and what workers may rely on."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
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

from pytest_ddpperf.errors import RankFailed, SettingError, WorkloadError
from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.records.loader_settings import LoaderSettings, loader_settings
from pytest_ddpperf.training.loading import rebuilt, require_data_loader

Loader = DataLoader[Any]


def numbers(count: int = 12) -> TensorDataset:
    return TensorDataset(torch.arange(float(count)), torch.zeros(count))


def global_draws() -> list[float]:
    """A number each from the global generators of Python and numpy, which users' datasets draw from."""
    return [random.random(), np.random.rand()]  # noqa: S311, NPY002


def words(text: str) -> LoaderSettings:
    return loader_settings(text)


def anew(own: Loader, text: str, share: tuple[int, int] = (0, 1)) -> Loader:
    return rebuilt(own, words(text), share, "load (test.py:1)")


def epochs(loader: Loader, count: int = 2) -> list[list[list[float]]]:
    return [[inputs.tolist() for inputs, _ in loader] for _ in range(count)]


def test_what_the_settings_leave_open_is_kept() -> None:
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


def test_without_workers_what_only_they_have_goes_too() -> None:
    own: Loader = DataLoader(numbers(), num_workers=2, timeout=30, prefetch_factor=3, multiprocessing_context="spawn")
    new = anew(own, "workers=0")
    assert (new.num_workers, new.prefetch_factor, new.timeout, new.multiprocessing_context) == (0, None, 0, None)


@pytest.mark.parametrize("word", ["prefetch_factor=2", "persistent_workers=true"])
def test_what_needs_workers_is_refused_where_the_loader_has_none(word: str) -> None:
    message = (
        rf"^loader={word}: {word.partition('=')[0]} needs workers, and the DataLoader of load .* has none; add workers="
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
    ("make", "others"),
    [
        (lambda: DataLoader(numbers(), batch_size=4), ["workers=2"]),
        (shuffled, ["workers=2", "workers=2,persistent_workers=true,prefetch_factor=1"]),
        (shuffled_by_a_generator, ["workers=2,persistent_workers=true"]),
        (batches_drawn, ["workers=1"]),
        (streamed, ["workers=1"]),
    ],
)
def test_the_batches_are_the_same_with_any_settings(make: Callable[[], Loader], others: list[str]) -> None:
    torch.manual_seed(3)
    expected = epochs(anew(make(), "workers=0"))
    torch.rand(7)  # what a model draws on the way has no influence either
    assert len(expected[0]) > 1
    for other in others:
        assert epochs(anew(make(), other)) == expected, other


def test_a_shuffled_loader_shuffles_by_the_ranks_seed_and_anew_in_each_epoch() -> None:
    orders = []
    for seed in (3, 4):
        torch.manual_seed(seed)
        orders += epochs(anew(shuffled(), "workers=0"))
    assert len({str(order) for order in orders}) == 4


class Drawn(Dataset[tuple[torch.Tensor, list[float]]]):
    """What a worker draws, and how many threads it computes with."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, _index: int) -> tuple[torch.Tensor, list[float]]:
        return torch.tensor([torch.rand(1).item(), *global_draws()]), [float(torch.get_num_threads())]


def test_workers_have_seeds_of_their_own_that_follow_from_the_ranks() -> None:
    def drawn(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([inputs for inputs, _ in anew(DataLoader(Drawn()), "workers=2")])

    first = drawn(1)
    torch.rand(3)
    assert torch.equal(drawn(1), first)
    assert not torch.isin(drawn(2), first).any()
    assert len(set(first.flatten().tolist())) == 12  # two workers with two samples each: nobody repeats another


def test_workers_compute_with_one_thread() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert [threads for _, threads in anew(DataLoader(Drawn()), "workers=1")] == [[torch.tensor([1.0])]] * 4
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_data_are_shared_out_as_the_loader_ordered_them(*, shuffle: bool) -> None:
    own: Loader = DataLoader(numbers(), batch_size=2, shuffle=shuffle, drop_last=True)
    new = anew(own, "sampler=rank", share=(1, 3))
    sampler: Any = new.sampler
    assert (sampler.rank, sampler.num_replicas, sampler.shuffle, sampler.drop_last) == (1, 3, shuffle, True)
    assert (new.batch_size, new.drop_last, len(new)) == (2, True, 2)
    shares = [epochs(anew(own, "sampler=rank", share=(rank, 3)), 1)[0] for rank in range(3)]
    assert sorted(number for share in shares for batch in share for number in batch) == list(range(12))


def test_a_loader_that_shares_out_already_keeps_its_sampler() -> None:
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
    new = anew(DataLoader(numbers(), batch_sampler=pairs), "workers=1")
    assert new.batch_sampler is pairs
    assert epochs(new, 1) == [[[0.0, 1.0], [2.0, 3.0]]]


def test_a_loader_without_batching_stays_without() -> None:
    new = anew(DataLoader(numbers(2), batch_size=None), "workers=1")
    assert [inputs.item() for inputs, _ in new] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (DataLoader(Stream()), r"the dataset of load \(test.py:1\) is an IterableDataset, .*leave sampler=rank out"),
        (DataLoader(numbers(), batch_sampler=Pairs()), "has a batch_sampler of its own, .* give it batch_size"),
        (DataLoader(numbers(), sampler=SubsetRandomSampler([1])), "draws them by a SubsetRandomSampler; tell that"),
        (
            DataLoader(numbers(), sampler=RandomSampler(numbers(), replacement=True)),
            "draws them by a RandomSampler; tell that sampler the rank",
        ),
    ],
)
def test_what_cannot_be_shared_out_is_refused_with_the_cure(own: Loader, message: str) -> None:
    with pytest.raises(SettingError, match=f"^loader=sampler=rank: .*{message}"):
        anew(own, "sampler=rank")


def test_only_a_data_loader_can_be_changed() -> None:
    class Own(DataLoader[Any]):
        def __iter__(self) -> Any:
            return super().__iter__()

    class Named(DataLoader[Any]):
        """Adds nothing to how it loads."""

    with pytest.raises(WorkloadError, match=r"^load gave a list, and loader=\.\.\. changes .* torch DataLoader: give"):
        require_data_loader([1], "load")
    with pytest.raises(WorkloadError, match=r"gave a Own, a DataLoader that loads in its own way, .* set them where"):
        require_data_loader(Own(numbers()), "load")
    named = Named(numbers())
    assert require_data_loader(named, "load") is named


KEPT: list[Iterable[Any]] = []


def pids_of_workers(ctx: RankContext, *, fail: bool) -> list[int]:
    """Workers of a rank of a group, left behind."""
    loader = rebuilt(DataLoader(numbers()), LoaderSettings(workers=2), (ctx.rank, ctx.world_size), "load")
    batches = iter(loader)
    next(batches)
    pids = [worker.pid for worker in batches._workers]  # type: ignore[attr-defined]
    print(*pids, flush=True)
    if fail:
        os._exit(3)
    KEPT.append(batches)
    return pids


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("fail", [False, True])
def test_workers_end_with_their_rank(launcher: Launcher, *, fail: bool) -> None:
    """When a launch is over, so is every process of it, whether the rank returned or died."""

    def ranks(ctx: RankContext) -> list[int]:
        return pids_of_workers(ctx, fail=fail)

    if fail:
        with pytest.raises(RankFailed) as failed:
            launcher.run(ranks, world_size=1, backend="gloo", device="cpu")
        text = dict(failed.value.sections)["rank 0 stdout"]
    else:
        text = launcher.run(ranks, world_size=1, backend="gloo", device="cpu").outputs[0].stdout
    pids = [int(word) for word in text.split()]
    assert len(pids) == 2
    assert not any(map(alive, pids))
