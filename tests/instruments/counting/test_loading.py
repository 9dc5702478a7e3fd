"""What a DataLoader does is no part of a step's counts, whether an epoch begins in it or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from pytest_ddpperf.instruments.counting.counting import Countable
from tests.counted import count_step

CPU = torch.device("cpu")


def training(batches: int, workers: int = 0) -> Callable[[], Any]:
    """A step on the next batch; an epoch has so many."""
    data = TensorDataset(torch.rand(4 * batches, 3))
    loader = DataLoader(data, batch_size=4, sampler=RandomSampler(data), num_workers=workers)
    model = torch.nn.Linear(3, 1)

    def endless() -> Iterator[torch.Tensor]:
        while True:
            for (batch,) in loader:
                yield batch

    stream = endless()

    def step() -> None:
        model.zero_grad()
        model(next(stream)).sum().backward()

    return step


@pytest.mark.parametrize("batches", [1, 2, 5, 6, 100])
def test_counts_do_not_depend_on_where_an_epoch_begins(batches: int) -> None:
    counts = count_step(training(batches), Countable(device=CPU))
    inputs = torch.rand(4, 3)
    model = torch.nn.Linear(3, 1)

    def alone() -> None:
        model.zero_grad()
        model(inputs).sum().backward()

    assert counts.unstable == {}
    assert counts.totals["synchronisations"] == 0
    assert counts.details["operators"] == count_step(alone, Countable(device=CPU)).details["operators"]


def test_a_loader_counts_again_after_the_pass() -> None:
    before = DataLoader.__iter__
    count_step(training(2), Countable(device=CPU))
    assert DataLoader.__iter__ is before


@pytest.mark.slow
def test_workers_change_no_count() -> None:
    here, there = (count_step(training(8, workers), Countable(device=CPU)) for workers in (0, 1))
    assert here.totals == there.totals
