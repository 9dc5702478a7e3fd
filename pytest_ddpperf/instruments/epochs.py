"""How many steps an epoch of the training has, from the DataLoaders that it takes batches from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_ddpperf.instruments.torch_internals import replaced, uncompiled


@contextmanager
def batches_counted() -> Iterator[Callable[[int], float | None]]:
    """Within, counts the batches that DataLoaders give, for training code whose loader nobody named.

    Yields:
        A function of the number of steps so far. It returns the steps of an epoch: the batches of the longest loader
        that gives each step at least one, divided by the batches that it gives a step. None without such a loader.
    """
    from torch.utils.data import dataloader

    given: Counter[int] = Counter()  # batches, by the number that an epoch of their loader has
    lengths: dict[int, int] = {}  # of the epoch that an iterator gives, by its id
    iterated, following = dataloader.DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__  # noqa: SLF001

    @uncompiled
    def begun(loader: Any) -> Any:
        batches = iterated(loader)
        try:
            lengths[id(batches)] = len(loader)
        except TypeError:  # an iterable dataset without a length
            lengths.pop(id(batches), None)
        return batches

    @uncompiled
    def followed(batches: Any) -> Any:
        batch = following(batches)
        if id(batches) in lengths:
            given[lengths[id(batches)]] += 1
        return batch

    def epoch_steps(steps: int) -> float | None:
        of_each_step = {length: round(number / steps) for length, number in given.items() if number >= steps}
        return max((length / number for length, number in of_each_step.items()), default=None)

    kind = dataloader._BaseDataLoaderIter  # noqa: SLF001  all loaders' iterators are of it
    with replaced(dataloader.DataLoader, "__iter__", begun), replaced(kind, "__next__", followed):
        yield epoch_steps
