"""The DataLoaders of training code, whoever made them: the steps of an epoch, and the samples that are drawn."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import IterableDataset, dataloader

from pytest_ddpperf.instruments.torch_internals import replaced, uncompiled

_DRAWN = 16  # batches whose numbers are kept


@dataclass(eq=False, slots=True)
class _Followed:
    """One DataLoader."""

    loader: Any  # kept alive, so that its id is no other one's
    length: int | None  # batches of an epoch; None if nobody knows
    given: int = 0  # batches
    drawn: list[int] = field(default_factory=list)  # checksums of the numbers of each batch's samples
    trained: bool = False  # whether a batch of it was trained on


class Loaders:
    """Follows the DataLoaders of a training."""

    def __init__(self) -> None:
        self._known: dict[int, _Followed] = {}  # by the id of the loader
        self._of_iterator: dict[int, _Followed] = {}
        self._last: _Followed | None = None  # that gave a batch

    @contextmanager
    def followed(self) -> Iterator[Loaders]:
        """Within, what DataLoaders give is counted."""
        kind = dataloader._BaseDataLoaderIter  # noqa: SLF001  all loaders' iterators are of it
        begun, following, drawing = kind.__init__, kind.__next__, kind._next_index  # noqa: SLF001

        @uncompiled
        def begin(batches: Any, loader: Any) -> None:
            known = self._known.setdefault(id(loader), _Followed(loader, _batches_of(loader)))
            self._of_iterator[id(batches)] = known
            begun(batches, loader)

        @uncompiled
        def give(batches: Any) -> Any:
            batch = following(batches)
            self._last = known = self._of_iterator.get(id(batches))
            if known is not None:
                known.given += 1
            return batch

        @uncompiled
        def draw(batches: Any) -> Any:
            numbers = drawing(batches)
            known = self._of_iterator.get(id(batches))
            if (
                known is not None
                and len(known.drawn) < _DRAWN
                and not isinstance(known.loader.dataset, IterableDataset)
            ):
                known.drawn.append(zlib.crc32(repr(numbers).encode()))
            return numbers

        with ExitStack() as stack:
            for name, by in (("__init__", begin), ("__next__", give), ("_next_index", draw)):
                stack.enter_context(replaced(kind, name, by))
            yield self

    def note_training(self) -> None:
        """Notes that the last batch is trained on."""
        if self._last is not None:
            self._last.trained = True

    @property
    def trains(self) -> bool:
        """Whether batches of a loader were trained on."""
        return any(each.trained for each in self._known.values())

    def samples(self, ranks: int) -> tuple[int, ...]:
        """Returns a checksum of the samples that each loader drew to train on.

        Empty if a loader knows no numbers of samples, or has too few samples for so many ranks.
        """
        trained = [each for each in self._known.values() if each.trained]
        if not all(each.drawn and _size(each.loader) >= ranks for each in trained):
            return ()
        return tuple(zlib.crc32(repr(each.drawn).encode()) for each in trained)

    def epoch_steps(self, steps: int) -> float | None:
        """Returns the steps of an epoch, after so many steps; None without a loader that gives each step a batch.

        It is the batches of the longest loader that gives each step one or more, divided by those that it gives a step.
        """
        told = [(each.length, each.given) for each in self._known.values() if each.length and each.given >= steps]
        return max((length / round(given / steps) for length, given in told), default=None)


def _size(loader: Any) -> int:
    with suppress(Exception):  # a dataset of the user's may have no length
        return len(loader.dataset)
    return 0


def _batches_of(loader: Any) -> int | None:
    """The batches of an epoch; None if nobody knows. Asked for them, an iterable dataset would warn of more later."""
    with suppress(Exception):  # a sampler of the user's may have no length
        return None if isinstance(loader.dataset, IterableDataset) else len(loader)
    return None
