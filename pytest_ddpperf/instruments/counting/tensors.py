"""Counts the bytes of live tensors by category, such as gradients, from the sizes of their storages."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from pytest_ddpperf.instruments.counting.sites import Place, without_callers
from pytest_ddpperf.instruments.counting.storages import storages_of
from pytest_ddpperf.instruments.torch_internals import replaced

CATEGORIES = ("parameters", "gradients", "activations", "optimizer_state", "buffers", "buckets", "temporaries")
PASSING = ("activations", "temporaries")  # tensors that a step makes for itself
_GOOD_PART = 0.01  # of the peak
KEPT = "kept_tensors"  # the name of those that outlive their step


@dataclass(eq=False)
class _Record:
    nbytes: int
    category: str
    place: Place | None = None  # that made it; None if nobody saw that
    reference: weakref.ref[torch.UntypedStorage] | None = None  # None once it is dead


class TensorTracker:
    """A tracker that follows the storages of the tensors that are passed to it, until the storages die.

    A storage counts once, with all its bytes, however many views it has. It dies with its last tensor, even if only C++
    holds this tensor. So the numbers depend only on the program. The tracker does not see memory that an operator
    allocates inside its kernel.

    Only the optimizer shows which tensors are gradients. Until then, a gradient at the peak counts as temporary.
    """

    def __init__(self, device: str, *, fake: bool = False) -> None:
        self.live = dict.fromkeys(CATEGORIES, 0)  # bytes
        self._devices = {device, "meta"} if fake else {device}  # of storages; those of fake tensors have no other
        self._lock = threading.RLock()
        self._records: dict[int, _Record] = {}
        self._unnamed: dict[int, _Record] = {}  # the temporaries among them
        self._dead: deque[tuple[int, _Record]] = deque()  # tensors die in any thread, at any moment
        self._met: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self._step = 0
        self._loans: dict[_Record, list[weakref.ref[torch.UntypedStorage]]] = {}
        self._lent: dict[int, tuple[weakref.ref[torch.UntypedStorage], _Record]] = {}
        self._owners, self._owners_of_loan = (0, 0) if fake else _usual_owners()  # nothing fake is lent
        self._peak = 0
        self._rising = False
        self._at_peak = dict(self.live)
        self._unnamed_at_peak: list[tuple[_Record, int]] = []
        self._placed, self._placed_at_peak = Counter[tuple[str, Place]](), Counter[tuple[str, Place]]()

    def begin_step(self) -> None:
        """Begins a new step: the peak starts again from the bytes that are live now."""
        with self._lock:
            self.settle()
            self._lent = {key: lent for key, lent in self._lent.items() if lent[0]() is not None}
            self._step += 1
            self._peak = sum(self.live.values())
            self._rising = True

    def meet(self, tensor: torch.Tensor) -> None:
        """Follows a tensor of unknown origin from the second step that uses it."""
        with self._lock:
            self._bury()
            for key, storage in self._storages(tensor):
                if key in self._records:
                    continue
                if not self._is_met(key, storage):
                    self._met[key] = weakref.ref(storage), self._step
                elif self._met[key][1] != self._step:  # buffers of gloo live for one step only
                    self._add(key, storage, "temporaries")

    def see(
        self, tensor: torch.Tensor, category: str, *, mark: bool = False, made_by: Callable[[], Place] | None = None
    ) -> None:
        """Follows a tensor that the line ``made_by()`` made; gives it ``category`` if it is new or ``mark`` is True."""
        with self._lock:
            self._bury()
            for key, storage in self._storages(tensor):
                record = self._records.get(key)
                if record is None:
                    if mark or not self._is_met(key, storage):
                        self._add(key, storage, category, None if made_by is None else made_by())
                    continue
                if record.nbytes != storage.nbytes():
                    self._resize(record, storage.nbytes())
                if mark and record.category != category:
                    self._refile(key, record, category)

    def mark(self, tensors: Iterable[torch.Tensor], category: str) -> None:
        """Follows tensors, and gives their storages a category."""
        for tensor in tensors:
            self.see(tensor, category, mark=True)

    def mark_buckets(self, sent: Iterable[torch.Tensor]) -> None:
        """Gives tensors of an all-reduce the category ``buckets``, unless an operator made them in a counted step."""
        with self._lock:
            for key in [key for tensor in sent for key, _ in self._storages(tensor)]:
                if key in self._unnamed and self._unnamed[key].place is None:
                    self._refile(key, self._unnamed[key], "buckets")

    def is_state(self, tensor: torch.Tensor) -> bool:
        """Returns whether a tensor is part of an optimizer's state."""
        records = (self._records.get(storage._cdata) for storage in storages_of(tensor))  # noqa: SLF001  as above
        return any(record is not None and record.category == "optimizer_state" for record in records)

    def lend(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor with the same memory, but a separate storage, which a process group of gloo may hold.

        Chance decides when a thread of gloo releases a tensor, so memory that only gloo holds must count as dead. The
        separate storage shows whether only gloo holds the memory.
        """
        try:
            other = torch.utils.dlpack.from_dlpack(tensor.detach())
        except (BufferError, RuntimeError, TypeError, ValueError):  # DLPack does not support every kind of tensor
            return tensor
        with self._lock:
            self._bury()
            for storage, lent in zip(storages_of(tensor), storages_of(other), strict=True):
                record = self._records.get(storage._cdata)  # noqa: SLF001  as above
                if record is not None:
                    reference = weakref.ref(lent)
                    self._loans.setdefault(record, []).append(reference)
                    self._lent[lent._cdata] = reference, record  # noqa: SLF001  as above
        return other

    def peak(self) -> dict[str, int]:
        """Returns the bytes of live tensors by category, at the step's peak."""
        with self._lock:
            self._note_peak()
            at_peak = dict(self._at_peak)
            for record, nbytes in self._unnamed_at_peak:
                at_peak["temporaries"] -= nbytes
                at_peak[record.category] += nbytes
            return at_peak

    def peak_places(self) -> dict[tuple[str, Place], float]:
        """Returns the bytes at the step's peak, by category and line of code; lines below 1 % are omitted."""
        with self._lock:
            self._note_peak()
            found = self._placed_at_peak.copy()
            for record, nbytes in self._unnamed_at_peak:
                if record.place is not None:
                    found.subtract({("temporaries", record.place): nbytes})
                    found.update({(record.category, record.place): nbytes})
            of_line, least = without_callers(found), max(1, _GOOD_PART * self._peak)
            lines = {key: of_line[key[0], key[1]._replace(caller=None)] for key, nbytes in found.items() if nbytes > 0}
            return {key: float(found[key]) for key, nbytes in lines.items() if nbytes >= least}

    def passing(self) -> Counter[tuple[str, Place]]:
        """Returns the live bytes of activations and temporaries, by category and the line of code that made them."""
        with self._lock:
            self._bury()
            places: Counter[tuple[str, Place]] = Counter()
            for record in self._records.values():
                if record.category in PASSING and record.place is not None:
                    places[KEPT, record.place] += record.nbytes
            return places

    def settle(self) -> None:
        """Counts as dead all storages that have died or that only a process group, such as gloo's, still holds."""
        with self._lock:
            self._bury()
            for record, loans in list(self._loans.items()):
                storage = None if record.reference is None else record.reference()
                left = [reference for reference in loans if reference() is not None]
                if storage is None or not left:
                    del self._loans[record]
                    continue
                self._loans[record] = left
                if _owners(storage) <= self._owners + self._owners_of_loan * len(left):
                    self._resize(record, 0)

    @contextmanager
    def resizes_seen(self) -> Iterator[None]:
        """Follows, in this context, storages that change their size by ``resize_``, such as FSDP's."""
        storage_class: Any = torch.UntypedStorage
        original = storage_class.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            resized = original(storage, size)
            with self._lock:
                self._bury()
                record = self._records.get(storage._cdata)  # noqa: SLF001  as above
                if record is not None:
                    self._resize(record, storage.nbytes())
            return resized

        with replaced(storage_class, "resize_", resize_):  # torch has no hook for it
            yield

    def _storages(self, tensor: torch.Tensor) -> list[tuple[int, torch.UntypedStorage]]:
        """Returns (key, storage) of a tensor's storages on the device; if ``lend`` made it, the original's storages."""
        found: list[tuple[int, torch.UntypedStorage]] = []
        for storage in storages_of(tensor):
            key = storage._cdata  # noqa: SLF001  torch has no other identity for it
            if key not in self._records and storage.device.type not in self._devices:
                continue
            lent = self._lent.get(key)
            if lent is None or lent[0]() is not storage:
                found.append((key, storage))
                continue
            original = None if lent[1].reference is None else lent[1].reference()
            found += [] if original is None else [(original._cdata, original)]  # noqa: SLF001
        return found

    def _is_met(self, key: int, storage: torch.UntypedStorage) -> bool:
        return key in self._met and self._met[key][0]() is storage

    def _add(self, key: int, storage: torch.UntypedStorage, category: str, place: Place | None = None) -> None:
        record = _Record(0, category, place)
        record.reference = weakref.ref(storage, lambda _: self._dead.append((key, record)))
        self._records[key] = record
        if category == "temporaries":
            self._unnamed[key] = record
        self._resize(record, storage.nbytes())

    def _bury(self) -> None:
        while self._dead:
            key, record = self._dead.popleft()
            self._resize(record, 0)
            record.reference = None
            if self._records.get(key) is record:
                del self._records[key]
                self._unnamed.pop(key, None)

    def _resize(self, record: _Record, nbytes: int) -> None:
        more = nbytes - record.nbytes
        if more < 0:
            self._note_peak()
        elif self._loans and sum(self.live.values()) + more > self._peak:
            self.settle()
        self.live[record.category] += more
        if record.place is not None:
            self._placed[record.category, record.place] += more
        record.nbytes = nbytes
        total = sum(self.live.values())
        if total > self._peak:
            self._peak = total
            self._rising = True

    def _refile(self, key: int, record: _Record, category: str) -> None:
        self._note_peak()
        for where, more in ((record.category, -record.nbytes), (category, record.nbytes)):
            self.live[where] += more
            if record.place is not None:
                self._placed[where, record.place] += more
        record.category = category
        if category == "temporaries":
            self._unnamed[key] = record
        else:
            self._unnamed.pop(key, None)

    def _note_peak(self) -> None:
        if self._rising:
            self._rising = False
            self._at_peak, self._placed_at_peak = dict(self.live), self._placed.copy()
            self._unnamed_at_peak = [(record, record.nbytes) for record in self._unnamed.values()]


def _usual_owners() -> tuple[int, int]:
    """Returns how many C++ references a storage has besides its tensors, and how many a ``TensorTracker.lend`` adds."""
    tensor = torch.empty(1)
    reference = weakref.ref(tensor.untyped_storage())  # as records have it: Python's object may be C++'s by now

    def beside_the_tensor() -> int:
        storage = reference()
        assert storage is not None  # noqa: S101  its tensor lives
        return _owners(storage) - 1

    own = beside_the_tensor()
    loan = torch.utils.dlpack.from_dlpack(tensor.detach())
    of_loan = beside_the_tensor() - own
    del loan
    return own, of_loan


def _owners(storage: torch.UntypedStorage) -> int:
    """Returns how many references in C++ a storage has: from its tensors, and from its Python object."""
    return torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001  torch offers no other way to ask
