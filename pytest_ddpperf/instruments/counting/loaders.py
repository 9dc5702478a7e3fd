"""Observes the DataLoaders of training code: batches, epochs, samples, workers, and loaders that stay in memory."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset, RandomSampler, dataloader

from pytest_ddpperf.instruments.counting.sites import Place, Stack, made_at, making_noted
from pytest_ddpperf.instruments.torch_internals import SEED, forget_received, replaced, uncompiled, unnamed

_DRAWN, _COMPARED = 256, 16  # batches whose indices are kept, and those that are compared
HEAD = 2**18  # elements of a tensor that are looked at
_SHUFFLED = 8  # samples of a dataset, at least, that do not come in the same order by chance
_EARLIER = 2  # loaders before the last one that have to exist: a variable may still hold a single one
_RECORD = "_ddpperf_followed"  # of a loader and of its iterators
_BEFORE = "_ddpperf_given_before"  # batches of all loaders until a loader was made


@dataclass(eq=False, slots=True)
class _Followed:
    made: Place  # the line that made it, else the one that first asked it for batches
    by: tuple[str, Place]  # the type of what draws its samples, if the line that made that is known, and that line
    data: tuple[str, int]  # the type of its dataset, and the number of samples; 0 if nobody knows
    length: int  # batches of an epoch; 0 if nobody knows
    workers: int
    persistent: bool
    pinned: bool  # whether it copies batches to memory from which a GPU copies without waiting
    before: tuple[int, int]  # batches of all loaders until it was made, and until it was first asked
    by_our_seed: bool  # whether it shuffles by numbers that are alike on all ranks only because we seeded them alike
    given: int = 0  # batches
    steps: int = 0  # that were given one
    first: int = 0  # the number of its first batch among the batches of all loaders
    last: int = 0  # the same of its last one
    epochs: int = 0  # that ended
    drawn: list[int] = field(default_factory=list)  # checksums of each batch's indices; of each batch, without indices

    def replaces(self, other: _Followed) -> bool:
        """Returns whether ``other``, made at the same line, gave batches before this loader existed, and none later."""
        made, begun = self.before
        return other.made == self.made and 0 < other.first <= made and other.last <= begun

    def gave(self, batch: Any, number: int) -> None:
        """Records a batch; ``number`` is its number among the batches of all loaders."""
        self.given, self.first, self.last = self.given + 1, self.first or number, number
        if self.workers > 1 and not self.data[1] and len(self.drawn) < max(_COMPARED, 2 * self.workers):
            leaves = tree_leaves(batch)
            plain = repr([leaf for leaf in leaves if isinstance(leaf, (str, bytes, int, float))]).encode()
            with suppress(Exception):  # of a layout without a plain storage, or a class of the user
                self.drawn.append(checksum(filter(torch.is_tensor, leaves), zlib.crc32(plain), HEAD))

    def unsharded(self) -> bool:
        """Returns whether all workers give equal batches, because the dataset does not split its data among workers."""
        many = max(1, self.workers)
        rounds = [{*self.drawn[i : i + many]} for i in range(0, len(self.drawn) - many + 1, many)]
        return many > 1 and self.data[1] == 0 and all(len(each) == 1 for each in rounds) and rounds[1:] != rounds[:-1]


class Loaders:
    """An observer of the DataLoaders that training code iterates over."""

    def __init__(self) -> None:
        self._known: dict[_Followed, ReferenceType[Any]] = {}  # and the loaders themselves, as long as they are there
        self._given, self._looked, self._looks = 0, 0, 0  # batches so far; until the last look; looks

    @contextmanager
    def followed(self) -> Iterator[Loaders]:
        """Counts the batches of DataLoaders in this context, and notes the lines that make loaders."""
        kind: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  all loaders' iterators are of it
        begun, following, drawing = kind.__init__, kind.__next__, kind._next_index  # noqa: SLF001
        lines, making = Stack(), dataloader.DataLoader.__init__

        @uncompiled
        @functools.wraps(making)
        def make(loader: Any, *args: Any, **kwargs: Any) -> None:
            making(loader, *args, **kwargs)
            vars(loader)[_BEFORE] = self._given

        @uncompiled
        def begin(batches: Any, loader: Any) -> None:
            if _RECORD not in vars(loader):
                record = _record(loader, self._given, made_at(loader) or lines.place())
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
                known.gave(batch, self._given + 1)
            self._given += 1
            return batch

        @uncompiled
        def draw(batches: Any) -> Any:
            numbers, known = drawing(batches), vars(batches).get(_RECORD)
            if known is not None and known.data[1] and len(known.drawn) < _DRAWN:
                known.drawn.append(zlib.crc32(repr(numbers).encode()))
            return numbers

        first, last = replaced(dataloader.DataLoader, "__init__", make), replaced(kind, "_next_index", draw)
        with first, making_noted(), replaced(kind, "__init__", begin), replaced(kind, "__next__", give), last:
            yield self

    def look(self) -> None:
        """Records which DataLoaders the last step used; called after each step."""
        for each in self._known:
            each.steps += each.last > self._looked
        self._looked, self._looks = self._given, self._looks + 1

    def used(self, steps: int) -> list[list[_Followed]]:
        """Returns lists of the DataLoaders that feed training; in a list, each loader replaced the loader before it.

        For example, a line of code may make a new loader for each epoch. A list feeds training if its loaders gave at
        least ``steps`` batches in all, and gave batches in at least half of the steps. Loaders for evaluation give
        fewer. If no list feeds training, the batches of all loaders that were made at one line of code are added up.
        """
        found: list[list[_Followed]] = []
        for each in self._known:
            ended = [loaders for loaders in found if any(map(each.replaces, loaders))]
            same = [loaders for loaders in ended if each.data in (other.data for other in loaders)]
            ended = same or ended * (2 * each.steps >= each.given)  # an evaluation has many batches in one step
            found = [*(loaders for loaders in found if loaders not in ended), [*chain(*ended), each]]

        def feed(loaders: Sequence[_Followed]) -> bool:
            enough = sum(each.given for each in loaders) >= steps
            return enough and 2 * sum(each.steps for each in loaders) >= self._looks

        at_line = {each.made: [other for other in self._known if other.made == each.made] for each in self._known}
        return [*filter(feed, found)] or [loaders for loaders in found if feed(at_line[loaders[0].made])]

    def samples(self, steps: int, ranks: int) -> tuple[int, ...]:
        """Returns checksums of the first sample indices that loaders gave to training, to find ranks with equal data.

        The result is empty if the indices are unknown or a dataset has fewer samples than ranks. It is also empty if a
        loader shuffles with the seed that the plugin gave all ranks, because the plugin then makes the indices equal.
        """
        used = [each for loaders in self.used(steps) for each in loaders]
        known = all(each.drawn and not each.by_our_seed and each.data[1] >= ranks for each in used)
        return tuple(zlib.crc32(repr(each.drawn[:_COMPARED]).encode()) for each in used) if known else ()

    def drawn_by(self, steps: int) -> dict[tuple[str, Place], float]:
        """Returns {(type of sampler, line that made it): 1.0} of the first loader that feeds training; {} if none."""
        return {each.by: 1.0 for loaders in self.used(steps)[:1] for each in loaders[:1]}

    def of_epochs(self, steps: int) -> dict[str, list[Place]]:
        """Returns, by metric (``loaders_without_workers``, say), the lines of code that made slow or wrong DataLoaders.

        ``workers_restarted`` is for loaders whose workers stop after each epoch. ``loaders_kept`` is for loaders that
        stay in memory, and needs three epochs. ``loaders_repeating`` is for equal orders of samples in all epochs.
        """
        found: dict[str, list[Place]] = {}
        used = self.used(steps)
        last = [loaders[-1] for loaders in used]
        if last:
            found["loaders_without_workers"] = [each.made for each in last if not each.workers]
            found["loaders_unpinned"] = [each.made for each in last if not each.pinned]
            found["loaders_unsharded"] = [each.made for each in last if each.unsharded()]
        for loaders in (loaders for loaders in used if loaders[0].data[1] >= _SHUFFLED):
            parts = [(each.drawn, range(0, each.epochs * each.length, max(1, each.length))) for each in loaders]
            orders = [drawn[at : at + ends.step] for drawn, ends in parts for at in ends]
            repeats = [loaders[-1].made] * all(order == orders[0] for order in orders)
            if len(orders) > 1:
                found.setdefault("loaders_repeating", []).extend(repeats)
        if any(each.workers for each in last):
            anew = [each for *earlier, each in used if not each.persistent or any(other.epochs for other in earlier)]
            found["workers_restarted"] = [each.made for each in anew if each.workers]
        used = [loaders for loaders in used if sum(each.epochs for each in loaders) > _EARLIER]
        if used:
            earlier = [[each for each in loaders if each.epochs][:-1] for loaders in used]
            kept = [[each for each in loaders if self._known[each]() is not None] for loaders in earlier]
            found["loaders_kept"] = [loaders[0].made for loaders in kept if len(loaders) >= _EARLIER]
        return found

    def epoch_steps(self, steps: int) -> float | None:
        """Returns the number of steps in the longest epoch of a loader; None if no loader gives a batch per step."""
        told = [(each.length, each.given) for each in self._known if each.length and each.given >= steps]
        return max((length / round(given / steps) for length, given in told), default=None)


def _record(loader: Any, given: int, made: Place) -> _Followed:
    data, size, length = loader.dataset, 0, 0
    with suppress(Exception):  # a sampler or dataset may have no length; asked for it, a stream would warn later
        if not isinstance(data, IterableDataset):
            size, length = len(data), -1
            length = len(loader)
    kept, pinned = (bool(getattr(loader, name, False)) for name in ("persistent_workers", "pin_memory"))
    shuffles = isinstance(loader.sampler, RandomSampler) and loader.sampler.generator is None
    ours = shuffles and torch.initial_seed() == SEED
    before, alike = (vars(loader).get(_BEFORE, 0), given), (type(data).__qualname__, size)
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    drawing = made_at(sampler)
    by = (type(loader).__name__, made) if drawing is None else (type(sampler).__name__, drawing)
    return _Followed(made, by, alike, max(0, length), loader.num_workers, kept, pinned, before, ours)


def checksum(tensors: Iterable[Tensor], start: int = 0, most: int | None = None) -> int:
    """Returns the CRC-32 of the first ``most`` elements of each tensor (None: all), continued from ``start``."""
    for tensor in tensors:
        head = tensor.detach().reshape(-1)[:most].contiguous().to("cpu")
        start = zlib.crc32(head.view(torch.uint8).numpy().tobytes(), start)
    return start


@contextmanager
def loading_left_out(
    paused: Callable[[], AbstractContextManager[Any]], loaded: Callable[[Any, Any], object] = lambda *_: None
) -> Iterator[None]:
    """Enters ``paused()`` while DataLoaders begin epochs or make batches. Calls ``loaded`` with iterator and batch."""

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
