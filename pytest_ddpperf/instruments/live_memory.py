"""The memory that a rank holds now, read cheaply enough for some tens of readings in a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.instruments.compiler import uncompiled
from pytest_ddpperf.records.phases import MemoryKind

if TYPE_CHECKING:
    import torch

Reading = tuple[int, "int | None"]  # bytes now, and the most since the reading before

_PROBE = 2**20
_PROBES = 5  # another thread may free memory during a probe
# The fields of struct mallinfo2 of glibc (mallinfo(3)).
_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _MallInfo(ctypes.Structure):
    """What malloc says of its heaps."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def memory_reader(device: torch.device) -> tuple[MemoryKind, Callable[[], Reading]] | None:
    """The kind of bytes that can be read, and the function that reads them; None if the system does not report any.

    On CUDA each reading resets the allocator's peak of the whole process.
    """
    if device.type == "cuda":
        return "allocated", _cuda_reader(device)
    read = _heap_reader()
    return None if read is None else ("heap", read)


def _cuda_reader(device: torch.device) -> Callable[[], Reading]:
    import torch

    @uncompiled
    def read() -> Reading:
        reading = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return reading

    return read


def _heap_reader() -> Callable[[], Reading] | None:
    """Reads malloc's heaps; None without glibc 2.33 or newer, or if tensors do not come from its malloc."""
    import torch

    mallinfo: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _MallInfo

    @uncompiled
    def read() -> Reading:
        info = mallinfo()
        return info.uordblks + info.hblkhd, None  # in the heaps, and in pages of their own

    def sees_tensors() -> bool:
        before, _ = read()
        probe = torch.empty(_PROBE, dtype=torch.uint8)
        after, _ = read()
        del probe
        return after - before >= _PROBE // 2

    return read if any(sees_tensors() for _ in range(_PROBES)) else None
