"""The peak memory of a rank: resident on CPU, from the caching allocator on CUDA; and its GPU's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.records.launch import DeviceMemory

if TYPE_CHECKING:
    import torch

LABELS: Mapping[str, str] = {
    "peak_resident": "peak resident memory above the level before the model was built, program files left out",
    "peak_allocated": "peak of the bytes in live tensors, in the caching allocator's blocks",
    "peak_reserved": "peak of the bytes that the caching allocator held",
    "peak_active": "peak of the bytes in live tensors and in those that a stream may still use",
    "peak_requested": "peak of the bytes in live tensors as they were asked for, not rounded up to blocks",
    "peak_inactive_split": "peak of the free bytes that could not be given back, their segment being in use",
    "alloc_retries": "how many times the caching allocator had to give back what it held to get more",
    "ooms": "how many times it got no memory at all",
}

# Where torch.cuda.memory_stats has them.
_STATISTICS: Mapping[str, str] = {
    "peak_allocated": "allocated_bytes.all.peak",
    "peak_reserved": "reserved_bytes.all.peak",
    "peak_active": "active_bytes.all.peak",
    "peak_requested": "requested_bytes.all.peak",
    "peak_inactive_split": "inactive_split_bytes.all.peak",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
}

_PROC = Path("/proc/self")


@dataclass(frozen=True)
class Resident:
    """Bytes of this process in memory, as the kernel counts them (proc(5)).

    Attributes:
        now: all of them (VmRSS).
        files: the pages of mapped files (RssFile), mostly the code of libraries.
        peak: the most since the process started or the peak was reset (VmHWM).
    """

    now: int
    files: int
    peak: int


def watch_memory(device: torch.device) -> Callable[[], dict[str, float]]:
    """Starts to watch, before the model is built; the result returns the peaks in bytes, by the kinds of ``LABELS``.

    If the system does not report memory, there are none.
    """
    return _watch_cuda(device) if device.type == "cuda" else _watch_resident(_PROC)


def begin_peaks(device: torch.device) -> None:
    """Resets the peaks of the caching allocator when all queued work is done; on CPU nothing happens.

    Called after the warm-up, because the building of a model and its first steps do much that never happens again.
    """
    if device.type != "cuda":
        return
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.reset_accumulated_memory_stats(device)  # the retries


def read_device_memory(device: torch.device) -> DeviceMemory | None:
    """The memory of the device that is in use now, by all its users, and what this process's allocator holds of it."""
    if device.type != "cuda":
        return None
    import torch

    free, total = torch.cuda.mem_get_info(device)
    uuid = torch.cuda.get_device_properties(device).uuid
    return DeviceMemory(device=f"GPU-{uuid}", used=total - free, reserved=torch.cuda.memory_reserved(device))


def allocator_figures(statistics: Mapping[str, Any]) -> dict[str, float]:
    """The figures of ``LABELS`` that are among torch.cuda's ``memory_stats``."""
    return {kind: float(statistics[name]) for kind, name in _STATISTICS.items() if name in statistics}


def _watch_cuda(device: torch.device) -> Callable[[], dict[str, float]]:
    import torch

    torch.cuda.reset_peak_memory_stats(device)
    return lambda: allocator_figures(torch.cuda.memory_stats(device))


def _watch_resident(proc: Path) -> Callable[[], dict[str, float]]:
    reset = _reset_peak(proc)
    before = read_resident(proc)

    def peaks() -> dict[str, float]:
        after = read_resident(proc)
        if before is None or after is None:
            return {}
        return {"peak_resident": float(peak_above(before, after, reset=reset))}

    return peaks


def most_taken(proc: Path = _PROC) -> int | None:
    """The most bytes that this process has taken from the machine; None if the system does not report them.

    It is what the process shares with no other now (Private_Clean and Private_Dirty, proc(5)), plus what it has
    returned since its peak. Memory inherited at the fork and the code of libraries are not its own.
    """
    resident = read_resident(proc)
    try:
        lines = (proc / "smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    own = [1024 * int(line.split()[1]) for line in lines if line.startswith("Private_")]
    return sum(own) + (0 if resident is None else resident.peak - resident.now)


def peak_above(before: Resident, after: Resident, *, reset: bool) -> int:
    """How many bytes the peak after the last step lies above the level before the model, without pages of mapped files.

    A forked process maps those pages anew as it first calls into a library: tens of MB that are no memory of the
    training. They hardly ever leave, so the last count is that of the peak too. If the peak was not ``reset`` before
    and has not risen since, it belongs to an earlier time, and the level after the last step is the best known figure.
    """
    peak = after.peak if reset or after.peak > before.peak else after.now
    return max(0, (peak - after.files) - (before.now - before.files))


def _reset_peak(proc: Path) -> bool:
    """Whether the kernel let us reset VmHWM; 5 is the command for it (proc(5), clear_refs)."""
    try:
        (proc / "clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def read_resident(proc: Path = _PROC) -> Resident | None:
    """What the kernel reports of this process now; None if it does not."""
    try:
        lines = (proc / "status").read_text(encoding="utf-8").splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if " kB" in rest}
        return Resident(now=kib["VmRSS"] * 1024, files=kib["RssFile"] * 1024, peak=kib["VmHWM"] * 1024)
    except (OSError, KeyError):
        return None
