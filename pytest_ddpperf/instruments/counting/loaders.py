"""Observes the DataLoaders of training code: batches, epochs, samples, workers, and loaders that stay in memory."""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch.utils.data import IterableDataset, RandomSampler, dataloader

from pytest_ddpperf.instruments.counting.sites import Place, Stack, made_at, making_noted
from pytest_ddpperf.instruments.torch_internals import SEED, forget_received, replaced, uncompiled, unnamed

_DRAWN = 16  # batches whose numbers are kept
_EARLIER = 2  # loaders before the last one that have to exist: a variable may still hold a single one
_RECORD = "_ddpperf_followed"  # of a loader and of its iterators


@dataclass(eq=False, slots=True)
class _Followed:
    made: Place  # the line that made it, else the one that first asked it for batches
    by: tuple[str, Place]  # the type of what draws its samples, if the line that made that is known, and that line
    data: tuple[str, int]  # the type of its dataset, and the number of samples; 0 if nobody knows
    length: int  # batches of an epoch; 0 if nobody knows
    workers: int
    persistent: bool
    pinned: bool  # whether it copies batches to memory from which a GPU copies without waiting
    replaces: bool  # whether an earlier loader of the same dataset type and length had ended an epoch
    by_our_seed: bool  # whether it shuffles by numbers that are alike on all ranks only because we seeded them alike
    given: int = 0  # batches
    epochs: int = 0  # that ended
    drawn: list[int] = field(default_factory=list)  # checksums of the numbers of each batch's samples


class Loaders:
    """An observer of the DataLoaders that training code iterates over."""

    def __init__(self) -> None:
        self._known: dict[_Followed, ReferenceType[Any]] = {}  # and the loaders themselves, as long as they are there
        self._given, self._giving = Counter[Place](), Counter[Place]()  # batches so far; steps that were given one
        self._looks = 0

    @contextmanager
    def followed(self) -> Iterator[Loaders]:
        """Counts the batches of DataLoaders in this context, and notes the lines that make loaders."""
        kind: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  all loaders' iterators are of it
        begun, following, drawing = kind.__init__, kind.__next__, kind._next_index  # noqa: SLF001
        lines = Stack()

        @uncompiled
        def begin(batches: Any, loader: Any) -> None:
            if _RECORD not in vars(loader):
                record = _record(loader, [*self._known], made_at(loader) or lines.place())
                self._known[record], vars(loader)[_RECORD] = ref(loader), record
            vars(batches)[_RECORD] = vars(loader)[_RECORD]
            begun(batches, loader)

        @uncompiled
        def give(batches: Any) -> Any:
            known = vars(batches).get(_RECORD)
            try:
                batch = following(batches)
            except StopIteration:
                if known is not None:
                    known.epochs += 1
                raise
            if known is not None:
                known.given += 1
            return batch

        @uncompiled
        def draw(batches: Any) -> Any:
            numbers, known = drawing(batches), vars(batches).get(_RECORD)
            if known is not None and known.data[1] and not known.by_our_seed and len(known.drawn) < _DRAWN:
                known.drawn.append(zlib.crc32(repr(numbers).encode()))
            return numbers

        with making_noted(), ExitStack() as stack:
            for name, by in (("__init__", begin), ("__next__", give), ("_next_index", draw)):
                stack.enter_context(replaced(kind, name, by))
            yield self

    def look(self) -> None:
        """Records which lines of code made the DataLoaders that the last step used; called after each step."""
        given = self._batches()
        self._giving.update(place for place, batches in given.items() if batches > self._given[place])
        self._given, self._looks = given, self._looks + 1

    def _batches(self) -> Counter[Place]:
        given = Counter[Place]()
        for each in self._known:
            given[each.made] += each.given
        return given

    def used(self, steps: int) -> list[list[_Followed]]:
        """Returns the DataLoaders that feed training: a list of loaders for each dataset.

        A line of code counts if its loaders give at least one batch per step on average, and batches in at least half
        of the steps. This excludes loaders for evaluation.
        """
        given, found = self._batches(), dict[tuple[str, int], list[_Followed]]()
        for each in self._known:
            if given[each.made] >= steps and 2 * self._giving[each.made] >= self._looks:
                found.setdefault(each.data, []).append(each)
        return list(found.values())

    def samples(self, steps: int, ranks: int) -> tuple[int, ...]:
        """Returns a checksum of the first samples of each loader in ``used``, to compare ranks.

        The checksum is made of indices in the dataset. The result is empty if the indices are unknown or come from the
        plugin's seed, or if a dataset has fewer samples than ranks.
        """
        used = [each for loaders in self.used(steps) for each in loaders]
        known = all(each.drawn and each.data[1] >= ranks for each in used)
        return tuple(zlib.crc32(repr(each.drawn).encode()) for each in used) if known else ()

    def drawn_by(self, steps: int) -> dict[tuple[str, Place], float]:
        """Returns type and line of the first loader's sampler (or of a loader without sampler), with the value 1.0."""
        return {each.by: 1.0 for loaders in self.used(steps)[:1] for each in loaders[:1]}

    def of_epochs(self, steps: int) -> dict[str, list[Place]]:
        """Returns the lines of code that made slow DataLoaders, by metric, such as ``loaders_without_workers``.

        ``workers_restarted`` is for loaders whose workers stop after each epoch. ``loaders_kept`` is for loaders that
        stay in memory, and needs three epochs.
        """
        found: dict[str, list[Place]] = {}
        last = [loaders[-1] for loaders in self.used(steps)]
        if last:
            found["loaders_without_workers"] = [each.made for each in last if not each.workers]
            found["loaders_unpinned"] = [each.made for each in last if not each.pinned]
        if with_workers := [each for each in last if each.workers]:
            found["workers_restarted"] = [each.made for each in with_workers if each.replaces or not each.persistent]
        used = [loaders for loaders in self.used(steps) if sum(each.epochs for each in loaders) > _EARLIER]
        if used:
            earlier = [[each for each in loaders if each.epochs][:-1] for loaders in used]
            kept = [[each for each in loaders if self._known[each]() is not None] for loaders in earlier]
            found["loaders_kept"] = [loaders[0].made for loaders in kept if len(loaders) >= _EARLIER]
        return found

    def epoch_steps(self, steps: int) -> float | None:
        """Returns the number of steps in the longest epoch of a loader; None if no loader gives a batch per step."""
        told = [(each.length, each.given) for each in self._known if each.length and each.given >= steps]
        return max((length / round(given / steps) for length, given in told), default=None)


def _record(loader: Any, others: Sequence[_Followed], made: Place) -> _Followed:
    data, size, length = loader.dataset, 0, 0
    with suppress(Exception):  # a sampler or dataset may have no length; asked for it, a stream would warn later
        if not isinstance(data, IterableDataset):
            size, length = len(data), -1
            length = len(loader)
    kept = bool(getattr(loader, "persistent_workers", False))
    pinned = bool(getattr(loader, "pin_memory", False))
    shuffles = isinstance(loader.sampler, RandomSampler) and loader.sampler.generator is None
    ours = shuffles and torch.initial_seed() == SEED
    alike = (type(data).__qualname__, size)
    replaces = any(each.data == alike and each.epochs for each in others)
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    drawing = made_at(sampler)
    by = (type(loader).__name__, made) if drawing is None else (type(sampler).__name__, drawing)
    return _Followed(made, by, alike, max(0, length), loader.num_workers, kept, pinned, replaces, ours)


@contextmanager
def loading_left_out(
    paused: Callable[[], AbstractContextManager[Any]], loaded: Callable[[Any, Any], object] = lambda *_: None
) -> Iterator[None]:
    """Enters ``paused()`` while a DataLoader makes a batch or begins an epoch; ``loaded`` gets iterator and batch."""

    def left_out(function: Callable[[Any], Any], made_by: Callable[[Any, Any], object]) -> Callable[[Any], Any]:
        @unnamed
        @functools.wraps(function)
        def uncounted(loader: Any) -> Any:
            with paused():
                made = function(loader)
                forget_received()
                made_by(loader, made)
                return made

        return uncounted

    kind, batches = dataloader.DataLoader, dataloader._BaseDataLoaderIter  # noqa: SLF001  all loaders' iterators are of it
    with (
        replaced(kind, "__iter__", left_out(kind.__iter__, lambda *_: None)),
        replaced(batches, "__next__", left_out(batches.__next__, loaded)),
    ):
        yield
