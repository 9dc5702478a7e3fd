from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pytest_ddpperf.instruments.counting.python import ObjectCensus, batches_counted


class Spec:
    """What a faulty step keeps."""


@pytest.fixture
def frozen() -> Iterator[None]:
    """As in a rank: what was there before is not counted."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@pytest.mark.usefixtures("frozen")
def test_the_objects_that_each_step_leaves_behind_are_counted_by_type() -> None:
    """Three steps, then two: each leaves four objects and a list of them."""
    census, kept = ObjectCensus(), list[list[Spec]]()
    for steps in range(6):
        kept.append([Spec() for _ in range(4)])
        if steps in {0, 3, 5}:
            census.take(steps)
    found = census.left_behind()
    assert found is not None
    assert found[name(Spec)] == 4.0
    assert found["list"] == 1.0


@pytest.mark.usefixtures("frozen")
def test_what_grows_in_one_stretch_only_is_a_cache() -> None:
    census, kept = ObjectCensus(), list[Spec]()
    for steps in (0, 2, 4):
        if steps == 2:
            kept.extend(Spec() for _ in range(100))
        census.take(steps)
    found = census.left_behind()
    assert found is not None
    assert name(Spec) not in found


@pytest.mark.usefixtures("frozen")
def test_garbage_in_cycles_is_not_left_behind() -> None:
    census = ObjectCensus()
    for steps in (0, 2, 4):
        for _ in range(20):
            spec = Spec()
            spec.__dict__["me"] = spec
        del spec
        census.take(steps)
    found = census.left_behind()
    assert found is not None
    assert name(Spec) not in found


@pytest.mark.usefixtures("frozen")
def test_fewer_than_three_counts_tell_nothing() -> None:
    census, kept = ObjectCensus(), list[Spec]()
    assert census.left_behind() is None
    for steps in (0, 2):
        kept.extend(Spec() for _ in range(100))
        census.take(steps)
    assert census.left_behind() is None


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


def loader(batches: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.zeros(batches)))


def forever(batches: DataLoader[tuple[torch.Tensor, ...]]) -> Iterator[object]:
    while True:
        yield from batches


@pytest.mark.parametrize(("of_each_step", "epoch"), [(1, 6.0), (2, 3.0), (4, 1.5)])
def test_an_epoch_has_the_batches_of_the_loader_divided_by_those_of_a_step(of_each_step: int, epoch: float) -> None:
    """A loader of six batches, which begins anew within the seven steps."""
    with batches_counted() as epoch_steps:
        batches = forever(loader(6))
        for _ in range(7 * of_each_step):
            next(batches)
        assert epoch_steps(7) == epoch


def test_batches_that_are_fetched_ahead_do_not_shorten_the_epoch() -> None:
    with batches_counted() as epoch_steps:
        batches = forever(loader(30))
        for _ in range(9 + 2):
            next(batches)
        assert epoch_steps(9) == 30.0


def test_a_loader_that_most_steps_do_not_ask_has_no_epoch() -> None:
    """An evaluation takes two batches in five steps, and a loader without a length gives a batch to each step."""
    with batches_counted() as epoch_steps:
        endless, evaluation = iter(DataLoader(Endless())), forever(loader(2))
        for _ in range(5):
            next(endless)
        for _ in range(2):
            next(evaluation)
        assert epoch_steps(5) is None


def test_afterwards_loaders_are_not_followed() -> None:
    before = DataLoader.__iter__
    with batches_counted() as epoch_steps:
        assert DataLoader.__iter__ is not before
    assert DataLoader.__iter__ is before
    assert len(list(loader(3))) == 3
    assert epoch_steps(1) is None


def test_loaders_of_one_length_are_counted_apart_and_a_sampler_without_one_raises_nothing() -> None:
    """Two loaders of six batches give each step one: an epoch has six steps."""

    class Sampler(torch.utils.data.Sampler[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            yield from ([0], [1])

        def __len__(self) -> int:
            raise NotImplementedError

    with batches_counted() as epoch_steps:
        first, second = forever(loader(6)), forever(loader(6))
        for _ in range(5):
            next(first)
            next(second)
        assert sum(1 for _ in DataLoader(TensorDataset(torch.zeros(2)), batch_sampler=Sampler())) == 2
        assert epoch_steps(5) == 6.0


@pytest.mark.usefixtures("frozen")
def test_an_object_of_a_type_without_a_module_is_counted() -> None:
    """As a template makes one."""
    made: dict[str, object] = {}
    exec("kept = [type('T', (), {})()]", {}, made)  # noqa: S102
    assert not hasattr(type(made["kept"][0]), "__module__")  # type: ignore[index]
    census = ObjectCensus()
    for steps in (0, 1, 2):
        census.take(steps)
    assert census.left_behind() is not None
