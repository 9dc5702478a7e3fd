"""Reading a rank's memory at the border of a phase, so cheaply that it can be done some tens of times in a step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.instruments.compiler import uncompiled
from pytest_ddpperf.instruments.phases.breakdown import Reading
from pytest_ddpperf.records.phases import MemoryKind

if TYPE_CHECKING:
    import torch

_PROBE = 2**20
_PROBES = 5  # another thread may give memory back while one of them looks


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc (mallinfo(3))."""

    _fields_ = (
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    )


def memory_reader(device: torch.device) -> tuple[MemoryKind, Callable[[], Reading]] | None:
    """The kind of bytes that can be read and what reads them; None where the system does not tell.

    On CUDA each reading begins the allocator's peak again, of the whole process.
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
    """None where there is no glibc of 2.33 or newer, or where tensors do not come from its malloc."""
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
