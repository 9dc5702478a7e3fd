"""The most memory a rank has used: resident on CPU, from the caching allocator on CUDA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LABELS: Mapping[str, str] = {
    "peak_resident": "peak resident memory above the level before the model was built, program files left out",
    "peak_allocated": "peak of the bytes in live tensors, in the caching allocator's blocks",
    "peak_reserved": "peak of the bytes that the caching allocator held",
}

_PROC = Path("/proc/self")


@dataclass(frozen=True)
class Resident:
    """Bytes of this process in memory, as the kernel counts them (proc(5)).

    Attributes:
        now: all of them (VmRSS).
        files: those that are pages of mapped files (RssFile), mostly the code of libraries.
        peak: the most there were since the process started or since the peak was reset (VmHWM).
    """

    now: int
    files: int
    peak: int


def watch_memory(device: torch.device) -> Callable[[], dict[str, float]]:
    """Start to watch, before the model is built; call what comes back for the peaks in bytes, by kind.

    The kinds are those of ``LABELS``. On a system that does not tell, there are none.
    """
    return _watch_cuda(device) if device.type == "cuda" else _watch_resident(_PROC)


def _watch_cuda(device: torch.device) -> Callable[[], dict[str, float]]:
    import torch

    torch.cuda.reset_peak_memory_stats(device)
    return lambda: {
        "peak_allocated": float(torch.cuda.max_memory_allocated(device)),
        "peak_reserved": float(torch.cuda.max_memory_reserved(device)),
    }


def _watch_resident(proc: Path) -> Callable[[], dict[str, float]]:
    reset = _reset_peak(proc)
    before = read_resident(proc)

    def peaks() -> dict[str, float]:
        after = read_resident(proc)
        if before is None or after is None:
            return {}
        return {"peak_resident": float(peak_above(before, after, reset=reset))}

    return peaks


def peak_above(before: Resident, after: Resident, *, reset: bool) -> int:
    """How many bytes the peak lies above the level before, pages of mapped files left out.

    Those pages are left out because a forked process maps them in anew as it first calls into a library: tens of MB
    that are no memory of the training. They hardly ever leave again, so the last count is that of the peak too.

    Args:
        before: read before the model was built.
        after: read after the last step.
        reset: whether the peak was reset before; if not, one that has not risen since belongs to an earlier time,
            and the level after the last step is the best that is known.
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
    """What the kernel says of this process now; None where it does not say."""
    try:
        lines = (proc / "status").read_text(encoding="utf-8").splitlines()
        kib = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if " kB" in rest}
        return Resident(now=kib["VmRSS"] * 1024, files=kib["RssFile"] * 1024, peak=kib["VmHWM"] * 1024)
    except (OSError, KeyError):
        return None
