"""The memory of a rank: its peak, its present bytes, its bytes after each step, and its GPU's memory."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.instruments.torch_internals import pci_id, uncompiled
from pytest_ddpperf.records.launch import DeviceMemory
from pytest_ddpperf.records.phases import MemoryKind

if TYPE_CHECKING:
    import torch


LABELS: Mapping[str, str] = {
    "peak_resident": "peak resident memory above the level before the model was built, without mapped files",
    "peak_allocated": "peak of the bytes in live tensors, rounded up to the caching allocator's blocks",
    "peak_reserved": "peak of the bytes that the caching allocator held",
    "peak_active": "peak of the bytes in live tensors and in those that a stream may still use",
    "peak_requested": "peak of the bytes in live tensors as they were asked for, not rounded up to blocks",
    "peak_inactive_split": "peak of the free bytes that could not be released because their segment was in use",
    "alloc_retries": "how many times the caching allocator released cached memory to get more",
    "ooms": "how many times the caching allocator got no memory at all",
}

# Names in torch.cuda.memory_stats. Only torch's allocator has the last four; another one reports zeros.
_STATISTICS: Mapping[str, str] = {
    "peak_allocated": "allocated_bytes.all.peak",
    "peak_reserved": "reserved_bytes.all.peak",
    "peak_active": "active_bytes.all.peak",
    "peak_requested": "requested_bytes.all.peak",
    "peak_inactive_split": "inactive_split_bytes.all.peak",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
}
_OF_NATIVE = ("peak_requested", "peak_inactive_split", "alloc_retries", "ooms")

_PROC = Path("/proc/self")


@dataclass(frozen=True)
class Resident:
    """Bytes of this process in memory, as the kernel counts them (proc(5))."""

    now: int  # VmRSS
    files: int  # RssFile: pages of mapped files, mostly the code of libraries
    peak: int  # VmHWM: the most since the process started or the peak was reset


def watch_memory(device: torch.device) -> Callable[[], dict[str, float]]:
    """Starts to watch memory, before the model is built; the returned function returns peaks in bytes, by metric."""
    if device.type != "cuda":
        try:
            (_PROC / "clear_refs").write_text("5", encoding="ascii")  # the command to reset VmHWM (proc(5), clear_refs)
            reset = True
        except OSError:  # the kernel does not let us
            reset = False
        before = read_resident(_PROC)

        def peaks() -> dict[str, float]:
            after = read_resident(_PROC)
            if before is None or after is None:
                return {}
            return {"peak_resident": float(peak_above(before, after, reset=reset))}

        return peaks
    if not peaks_reset(device):
        return dict
    import torch

    native = torch.cuda.get_allocator_backend() == "native"
    names = {kind: name for kind, name in _STATISTICS.items() if native or kind not in _OF_NATIVE}

    def figures() -> dict[str, float]:
        found = torch.cuda.memory_stats(device)
        return {kind: float(found[name]) for kind, name in names.items() if name in found}

    return figures


def peaks_reset(device: torch.device) -> bool:
    """Resets the peaks of CUDA's allocator; returns False if a user's allocator, which has no statistics, is in use."""
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]  # until then the allocator knows no device
    try:
        torch.cuda.reset_peak_memory_stats(device)
    except RuntimeError:  # an error of the GPU comes again at its next use
        return False
    return True


def begin_peaks(device: torch.device) -> None:
    """Waits for queued work and resets the allocator's peaks: the first steps need memory that later ones do not."""
    if device.type != "cuda":
        return
    import torch

    torch.cuda.synchronize(device)
    if peaks_reset(device):
        torch.cuda.reset_accumulated_memory_stats(device)  # the retries


def read_device_memory(device: torch.device) -> DeviceMemory | None:
    """Returns the bytes in use on a GPU, by all processes and by this process's allocator; None on a CPU."""
    if device.type != "cuda":
        return None
    import torch

    free, total = torch.cuda.mem_get_info(device)
    try:
        reserved = torch.cuda.memory_reserved(device)
    except RuntimeError:  # as of peaks_reset
        reserved = None
    properties = torch.cuda.get_device_properties(device)
    return DeviceMemory(
        device=pci_id(properties), uuid=str(properties.uuid), used=total - free, total=total, reserved=reserved
    )


def most_taken(proc: Path = _PROC) -> int | None:
    """Returns the peak of this process's private memory in bytes; None if the system does not report it.

    This is the present private memory (Private_Clean and Private_Dirty, proc(5)), plus memory returned since the peak.
    Shared memory, memory inherited at the fork, and the code of libraries are not included.
    """
    resident = read_resident(proc)
    try:
        lines = (proc / "smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    own = [1024 * int(line.split()[1]) for line in lines if line.startswith("Private_")]
    return sum(own) + (0 if resident is None else resident.peak - resident.now)


def peak_above(before: Resident, after: Resident, *, reset: bool) -> int:
    """Returns by how many bytes the peak exceeds the memory before the model was built.

    Mapped files do not count, because a forked process maps tens of MB of files again when it first calls a library. If
    the peak was not ``reset`` and has not grown since ``before``, it is older than the model: present memory counts.
    """
    peak = after.peak if reset or after.peak > before.peak else after.now
    return max(0, (peak - after.files) - (before.now - before.files))


def read_resident(proc: Path = _PROC) -> Resident | None:
    """Returns the present memory of this process; None if the kernel does not report it."""
    try:
        lines = (proc / "status").read_text(encoding="utf-8").splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if " kB" in rest}
        return Resident(now=kib["VmRSS"] * 1024, files=kib["RssFile"] * 1024, peak=kib["VmHWM"] * 1024)
    except (OSError, KeyError):
        return None


Reading = tuple[int, "int | None"]  # bytes now, and the most since the reading before

_PROBE = 2**20
_PROBES = 5  # another thread may free memory during a probe
# The fields of struct mallinfo2 of glibc (mallinfo(3)).
_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _MallInfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _FIELDS)


def memory_reader(device: torch.device) -> tuple[MemoryKind, Callable[[], Reading]] | None:
    """Returns the kind of memory that can be read often on a device, and a function that reads it; None if none can."""
    if device.type != "cuda":
        read_heap = _heap_reader()
        return None if read_heap is None else ("heap", read_heap)
    if not peaks_reset(device):
        return None
    import torch

    @uncompiled
    def read() -> Reading:
        reading = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        return reading

    return "allocated", read


def _heap_reader() -> Callable[[], Reading] | None:
    """Returns a function that reads malloc's heaps; None before glibc 2.33, or if tensors use another allocator."""
    import torch

    mallinfo: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo is None:
        return None
    mallinfo.restype = _MallInfo

    @uncompiled
    def read() -> Reading:
        info = mallinfo()
        return info.uordblks + info.hblkhd, None  # in the heaps, and in separate pages

    def sees_tensors() -> bool:
        before, _ = read()
        probe = torch.empty(_PROBE, dtype=torch.uint8)
        after, _ = read()
        del probe
        return after - before >= _PROBE // 2

    return read if any(sees_tensors() for _ in range(_PROBES)) else None


BLOCK_BYTES = 64
"""The assumed size of a small Python object: Python has separate pages for them, and reports only their number."""


def held_after_steps(run: Callable[[], object], steps: int, device: torch.device) -> tuple[int, ...]:
    """Returns the bytes that this process holds before the first of ``steps`` calls of ``run``, and after each call.

    On CUDA these are the live tensors in the caching allocator's blocks. On CPU they are everything that malloc has
    given out, and Python's small objects. Garbage is collected before each reading. If the system does not report
    memory, the steps run, because other ranks wait for them, and the result is empty.
    """
    reader = memory_reader(device)
    if reader is None:
        for _ in range(steps):
            run()
        return ()
    kind, read = reader
    block = BLOCK_BYTES if kind == "heap" else 0

    def held() -> int:
        gc.collect()
        return read()[0] + block * sys.getallocatedblocks()

    readings = [held()]
    for _ in range(steps):
        run()
        readings.append(held())
    return tuple(readings)
