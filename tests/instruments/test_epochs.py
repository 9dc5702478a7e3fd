from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from pytest_ddpperf.instruments.epochs import batches_counted


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
