"""DataLoaders that are followed, of the sizes that a test can count by hand."""

from __future__ import annotations

import pickle
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, cast

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    dataloader,
    get_worker_info,
)

from pytest_ddpperf.instruments.counting.counting import Countable
from pytest_ddpperf.instruments.counting.loaders import Loaders, loading_left_out
from pytest_ddpperf.instruments.counting.sites import made_at
from tests.counted import count_step

ITERATOR = dataloader._BaseDataLoaderIter


class Stream(IterableDataset[int]):
    def __init__(self, batches: int) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[int]:
        yield from range(self.batches)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


def loader(batches: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.zeros(batches)))


def streaming(batches: int, workers: int = 1) -> DataLoader[int]:
    return DataLoader(Stream(batches), 1, num_workers=workers, persistent_workers=workers > 0)


def forever(batches: DataLoader[tuple[torch.Tensor, ...]]) -> Iterator[object]:
    while True:
        yield from batches


@pytest.mark.parametrize(("given", "epoch"), [(7, 6.0), (14, 3.0), (28, 1.5), (9, 6.0)])
def test_an_epoch_has_the_batches_of_the_loader_divided_by_the_batches_of_a_step(given: int, epoch: float) -> None:
    """A loader of six batches, which begins anew within the seven steps; of nine batches two are fetched ahead."""
    with Loaders().followed() as loaders:
        batches = forever(loader(6))
        for _ in range(given):
            next(batches)
        assert loaders.epoch_steps(7) == epoch


def test_a_loader_that_most_steps_do_not_ask_has_no_epoch() -> None:
    """An evaluation takes two batches in five steps, and a loader without a length gives a batch to each step."""
    with Loaders().followed() as loaders:
        endless, evaluation = iter(DataLoader(Endless())), forever(loader(2))
        for _ in range(5):
            next(endless)
        for _ in range(2):
            next(evaluation)
        assert loaders.epoch_steps(5) is None
        assert loaders.used(6) == []
        assert loaders.samples(6, 2) == ()


def test_loaders_are_not_followed_afterwards() -> None:
    before = ITERATOR.__next__
    with Loaders().followed() as loaders:
        assert ITERATOR.__next__ is not before
    assert ITERATOR.__next__ is before
    assert len(list(loader(3))) == 3
    assert loaders.epoch_steps(1) is None


class TooLong(IterableDataset[int]):
    """A stream that gives more than its length says, of which torch warns."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(2))


def test_a_warning_of_torchs_names_the_line_that_asks_for_a_batch() -> None:
    loader = DataLoader(TooLong(), batch_size=1)
    assert len(loader) == 1
    batches = iter(loader)
    next(batches)
    with Loaders().followed(), loading_left_out(nullcontext), pytest.warns(UserWarning, match="Length of Iter") as said:
        next(batches)
    assert [(each.filename, each.lineno) for each in said] == [(__file__, sys._getframe().f_lineno - 1)]


def test_loaders_of_one_length_are_counted_apart_and_a_sampler_without_one_raises_nothing() -> None:
    """Two loaders of six batches give each step one: an epoch has six steps."""

    class Sampler(torch.utils.data.Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            yield from ([0], [1])

        def __len__(self) -> int:
            raise NotImplementedError

    with Loaders().followed() as loaders:
        first, second = forever(loader(6)), forever(loader(6))
        for _ in range(5):
            next(first)
            next(second)
        assert sum(1 for _ in DataLoader(TensorDataset(torch.zeros(2)), batch_sampler=Sampler())) == 2
        assert loaders.epoch_steps(5) == 6.0


def samples(*orders: list[int], ranks: int = 2) -> tuple[int, ...]:
    """What loaders are known by that draw in these orders, one sample a step."""
    with Loaders().followed() as loaders:
        for order in orders:
            assert len(list(DataLoader(TensorDataset(torch.zeros(6)), sampler=order))) == 3
        return loaders.samples(3, ranks)


def test_samples_are_known_by_their_numbers_in_the_order_in_which_they_are_drawn() -> None:
    assert samples([0, 2, 4]) == samples([0, 2, 4])
    assert samples([0, 2, 4]) != samples([0, 4, 2])
    assert samples([0, 2, 4], [1, 3, 5]) != samples([0, 2, 4], [1, 3, 4])


def test_samples_of_a_stream_and_of_too_small_a_dataset_are_unknown() -> None:
    assert samples([0, 1, 2], ranks=6)
    assert samples([0, 1, 2], ranks=7) == ()
    with Loaders().followed() as loaders:
        next(iter(DataLoader(Endless())))
        assert loaders.samples(1, 1) == ()
        assert loaders.used(1)


@pytest.mark.parametrize(("persistent", "anew"), [(False, 1), (True, 0)])
def test_each_epoch_starts_workers_that_a_loader_does_not_keep(persistent: bool, anew: int) -> None:  # noqa: FBT001
    with Loaders().followed() as loaders:
        data = TensorDataset(torch.zeros(2))
        for number in (anew, 1):  # a second loader replaces the first one
            assert len(list(DataLoader(data, num_workers=1, persistent_workers=persistent))) == 2
            assert len(loaders.of_epochs(2)["workers_restarted"]) == number


@pytest.mark.parametrize(("kept", "found"), [(0, 0), (1, 0), (2, 1), (9, 1)])
def test_loaders_of_earlier_epochs_that_are_still_there_are_kept(kept: int, found: int) -> None:
    """Each of four epochs makes a loader; a registry holds the last ones, beside that of the last epoch."""
    registry: deque[object] = deque(maxlen=kept + 1)
    with Loaders().followed() as loaders:
        for epoch in range(4):
            assert ("loaders_kept" in loaders.of_epochs(epoch)) is (epoch >= 3)
            batches = loader(1)
            registry.append(batches)
            assert len(list(batches)) == 1
        del batches
        assert [place.function for place in loaders.of_epochs(4)["loaders_kept"]] == ["loader"] * found


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize(
    ("kind", "samples", "repeating"), [("set_epoch", 8, 0), ("forgotten", 8, 1), ("forgotten", 7, None)]
)
def test_epochs_that_come_in_one_order_repeat(kind: str, samples: int, repeating: int | None, anew: bool) -> None:  # noqa: FBT001
    data = TensorDataset(torch.zeros(samples))
    sampler: Any = DistributedSampler(data, 1, 0)
    batches: Any = None
    with Loaders().followed() as loaders:
        for epoch in range(3):
            if kind == "set_epoch":
                sampler.set_epoch(epoch)
            batches = DataLoader(data, 2, sampler=sampler) if anew or not epoch else batches
            for _ in batches:
                loaders.look()
        found = loaders.of_epochs(12).get("loaders_repeating")
    assert (None if found is None else len(found)) == repeating


def test_an_epoch_that_has_not_ended_is_not_compared() -> None:
    with Loaders().followed() as loaders:
        batches = DataLoader(TensorDataset(torch.zeros(8)), shuffle=True)
        list(batches)
        loaders.look()
        assert "loaders_repeating" not in loaders.of_epochs(8)
        next(iter(batches))
        assert "loaders_repeating" not in loaders.of_epochs(8)
        list(batches)
        assert loaders.of_epochs(8)["loaders_repeating"] == []


def test_two_loaders_of_one_kind_side_by_side_replace_none() -> None:
    with Loaders().followed() as loaders:
        data = TensorDataset(torch.zeros(2))
        pair = [DataLoader(data, num_workers=1, persistent_workers=True) for _ in range(2)]
        assert len(list(zip(*pair, strict=False))) == 2
        assert loaders.of_epochs(2)["workers_restarted"] == []


@pytest.mark.parametrize(
    ("train", "check", "restarted"),
    [
        pytest.param(1, 1, 0, id="both stay"),
        pytest.param(3, 1, 1, id="each epoch makes one for training"),
        pytest.param(1, 3, 0, id="each epoch makes one for evaluation"),
        pytest.param(3, 3, 1, id="each epoch makes both"),
    ],
)
def test_of_several_loaders_of_one_line_only_training_loaders_restart_workers(
    train: int, check: int, restarted: int
) -> None:
    """In three epochs of four steps, each with an evaluation of two batches after it."""
    with Loaders().followed() as loaders:
        feeding, testing = streaming(4), streaming(2)
        for epoch in range(3):
            feeding = streaming(4) if 0 < epoch < train else feeding
            for _ in feeding:
                loaders.look()
            testing = streaming(2) if 0 < epoch < check else testing
            assert len(list(testing)) == 2
        next(iter(feeding))
        assert len(loaders.of_epochs(12)["workers_restarted"]) == restarted
        assert loaders.of_epochs(12)["loaders_without_workers"] == []


def test_a_loader_for_evaluation_does_not_hide_one_of_the_same_line() -> None:
    with Loaders().followed() as loaders:
        train, check = streaming(4, workers=0), streaming(2)
        for _ in range(2):
            for _ in train:
                loaders.look()
            assert len(list(check)) == 2
        assert len(loaders.of_epochs(8)["loaders_without_workers"]) == 1
        assert "workers_restarted" not in loaders.of_epochs(8)


def test_an_evaluation_after_the_last_batch_takes_no_place_of_the_loader_of_the_same_line() -> None:
    with Loaders().followed() as loaders:
        for samples, workers in ((8, 0), (6, 1)):
            for _ in DataLoader(
                TensorDataset(torch.zeros(samples)), num_workers=workers, persistent_workers=workers > 0
            ):
                if samples == 8:
                    loaders.look()
        loaders.look()
        assert len(loaders.of_epochs(8)["loaders_without_workers"]) == 1


def test_loaders_of_one_line_that_steps_use_in_rotation_feed_training_together() -> None:
    with Loaders().followed() as loaders:
        tasks = [iter(streaming(20, workers=0)) for _ in range(3)]
        for step in range(9):
            next(tasks[step % 3])
            loaders.look()
        assert len(loaders.of_epochs(9)["loaders_without_workers"]) == 3


def test_the_lines_of_a_loader_and_of_its_sampler_are_known() -> None:
    data = TensorDataset(torch.zeros(2))
    with Loaders().followed() as loaders:
        assert len(list(DataLoader(data, num_workers=1))) == 2
        assert loaders.drawn_by(2) == {("DataLoader", loaders.of_epochs(2)["workers_restarted"][0]): 1.0}
    with Loaders().followed() as loaders:
        sampler: DistributedSampler[Any] = DistributedSampler(data, 1, 0)
        batches = DataLoader(data, batch_sampler=BatchSampler(sampler, 1, drop_last=False))
        assert len(list(batches)) == 2
        assert loaders.drawn_by(2) == {("DistributedSampler", made_at(sampler)): 1.0}
        assert len(pickle.loads(pickle.dumps(batches))) == 2
    assert made_at(sampler) != made_at(batches)
    assert made_at(DistributedSampler(data, 1, 0)) is None


@pytest.mark.parametrize(("workers", "pinned"), [(0, False), (0, True), (1, False)])
def test_a_loader_counts_if_it_loads_in_the_training_process_or_does_not_pin_memory(
    workers: int, *, pinned: bool
) -> None:
    data = TensorDataset(torch.zeros(2))
    with warnings.catch_warnings(), Loaders().followed() as loaders:
        warnings.simplefilter("ignore")  # torch says that there is no GPU to pin memory for
        batches = forever(DataLoader(data, num_workers=workers, pin_memory=pinned))
        next(batches)
        loaders.look()
        found = loaders.of_epochs(1)
    assert len(found["loaders_without_workers"]) == (workers == 0)
    assert len(found["loaders_unpinned"]) == (not pinned)


class Numbers(IterableDataset[Any]):
    """Numbers that all workers read, or that they divide among themselves; or the same number again and again."""

    def __init__(self, *, divided: bool = False, constant: bool = False, words: bool = False) -> None:
        self.divided, self.constant, self.words = divided, constant, words

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, by = (worker.id, worker.num_workers) if worker is not None and self.divided else (0, 1)
        for number in range(first, 48, by):
            value = torch.full((3,), 7 if self.constant or self.words else number)
            yield (value, f"line {number} of worker {worker and worker.id}") if self.words else value


@pytest.mark.parametrize(
    ("data", "workers", "found"),
    [
        pytest.param(Numbers(), 2, 1, id="two workers read the same"),
        pytest.param(Numbers(), 1, 0, id="one worker"),
        pytest.param(Numbers(divided=True), 2, 0, id="workers divide the stream"),
        pytest.param(Numbers(constant=True), 2, 0, id="all batches are equal"),
        pytest.param(Numbers(words=True), 2, 0, id="texts of each worker"),
        pytest.param(TensorDataset(torch.zeros(48)), 2, 0, id="a dataset with indices"),
    ],
)
def test_a_loader_whose_workers_read_the_same_stream_is_counted(data: Any, workers: int, found: int) -> None:
    with Loaders().followed() as loaders:
        for _ in DataLoader(data, batch_size=4, num_workers=workers):
            loaders.look()
        assert len(loaders.of_epochs(8)["loaders_unsharded"]) == found


@pytest.mark.parametrize("first", [1, 6])
def test_a_loader_that_most_steps_do_not_ask_does_not_count(first: int) -> None:
    """An evaluation takes more batches than there were steps."""
    with Loaders().followed() as loaders:
        batches, evaluation = forever(loader(6)), DataLoader(TensorDataset(torch.zeros(20)), num_workers=1)
        for step in range(1, 9):
            next(batches)
            if step in {first, first + 5}:
                assert len(list(evaluation)) == 20
            loaders.look()
        found = loaders.of_epochs(8)
    assert [place.function for place in found["loaders_without_workers"]] == ["loader"]
    assert "workers_restarted" not in found


def training(batches: int) -> Callable[[], Any]:
    """A step on the next batch; an epoch has so many."""
    data = TensorDataset(torch.rand(4 * batches, 3))
    loader = DataLoader(data, batch_size=4, sampler=RandomSampler(data))
    model, stream = torch.nn.Linear(3, 1), cast("Iterator[Any]", forever(loader))

    def step() -> None:
        model.zero_grad()
        model(next(stream)[0]).sum().backward()

    return step


@pytest.mark.parametrize("batches", [1, 5])
def test_counts_do_not_depend_on_the_step_at_which_an_epoch_begins(batches: int) -> None:
    begin = DataLoader.__iter__
    counts = count_step(training(batches), Countable(device=torch.device("cpu")))
    inputs = torch.rand(4, 3)
    model = torch.nn.Linear(3, 1)

    def alone() -> None:
        model.zero_grad()
        model(inputs).sum().backward()

    assert DataLoader.__iter__ is begin, "loaders count again after the pass"
    assert counts.unstable == {}
    assert counts.totals["synchronisations"] == 0
    assert counts.details["operators"] == count_step(alone, Countable(device=torch.device("cpu"))).details["operators"]
