"""The progress of ranks, in memory that the ranks share with their controller.

A write only copies some bytes, so ranks can write their progress even in timed steps.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.launch.messages import grouped, numbers

_SLOT = struct.Struct("=dq40s")  # seconds of the machine's monotonic clock, the step, the stage
FUNCTION = "its function"  # the stage of a rank whose function names no other
START, LOAD, BUILD = "the start", "the import of the function to run", "the build of its step"
WARM_UP, TIMED = "warm-up step", "timed step"
_BRIEF = 1.0  # seconds; a shorter time is not reported


@dataclass(frozen=True, slots=True)
class Progress:
    """The stage that a rank is in, and the seconds since the stage began; ``step`` is 0 for a stage without steps."""

    stage: str
    step: int
    seconds: float

    @property
    def text(self) -> str:
        """Returns the progress in words, such as ``warm-up step 3, for 0.2 s``."""
        where = f"{self.stage} {self.step}" if self.step else self.stage
        return f"{where} for {self.seconds:.0f} s" if self.seconds >= _BRIEF else where


class ProgressFile:
    """The memory for the progress of ranks, which the controller shares with ranks through ``descriptor``."""

    def __init__(self, ranks: int) -> None:
        self.descriptor = os.memfd_create("ddpperf-progress")
        os.ftruncate(self.descriptor, max(1, ranks) * _SLOT.size)

    def read(self, slot: int) -> Progress | None:
        """Returns the progress of the rank in ``slot``; None before the rank has begun."""
        began, step, stage = _SLOT.unpack(os.pread(self.descriptor, _SLOT.size, slot * _SLOT.size))
        name = stage.rstrip(b"\0").decode(errors="replace")
        return Progress(name, step, max(0.0, time.monotonic() - began)) if name else None

    def close(self) -> None:
        """Releases the memory."""
        os.close(self.descriptor)


class _Own:
    """The stage and step of this process if it is a rank, and the shared memory and offset to write them to."""

    memory: mmap.mmap | None = None
    offset = 0
    stage, step = b"", 0  # step 0: of a stage without steps


def begin(descriptor: int, slot: int) -> None:
    """Makes this process, a rank, write its progress into the shared memory from now on."""
    _Own.memory, _Own.offset = mmap.mmap(descriptor, 0), slot * _SLOT.size


def stage(name: str) -> None:
    """Records the new stage of this rank; does nothing if this process is not a rank."""
    _Own.stage, _Own.step = name.encode(), 0
    _write()


def step() -> None:
    """Records that this rank begins the next step of its stage."""
    _Own.step += 1
    _write()


def _write() -> None:
    if _Own.memory is not None:
        _SLOT.pack_into(_Own.memory, _Own.offset, time.monotonic(), _Own.step, _Own.stage)


def told(ranks: Mapping[int, Progress]) -> str:
    """Returns the progress of all ranks as one line of text; empty if no rank has named a stage."""
    if {each.stage for each in ranks.values()} <= {FUNCTION}:
        return ""
    parts = []
    for found in grouped((rank, (each.stage, each.step)) for rank, each in sorted(ranks.items())).values():
        longest = max((ranks[rank] for rank in found), key=lambda each: each.seconds)
        parts.append(f"{numbers(found)} in {longest.text}")
    return "; ".join(parts)


def advanced(before: Mapping[int, Progress], after: Mapping[int, Progress]) -> bool:
    """Returns whether any rank has reached another stage or step, which shows that the launch does not hang."""
    both = ((before[rank], each) for rank, each in after.items() if rank in before)
    return any((old.stage, old.step) != (new.stage, new.step) for old, new in both)
