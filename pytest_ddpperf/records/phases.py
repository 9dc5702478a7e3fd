"""The time of a step by phase on one rank, as a diagnosed launch reports it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MemoryKind = Literal["allocated", "heap"]
"""allocated: live tensors, in blocks of CUDA's caching allocator. heap: all memory that the process holds of malloc,
such as tensors on the CPU (mallinfo(3))."""

DATA_WAIT = "data_wait"
FORWARD = "forward"
BACKWARD = "backward"
GRADIENT_SYNC = "gradient_sync"
OPTIMIZER = "optimizer"
OTHER = "other"

PHASES = (DATA_WAIT, FORWARD, BACKWARD, GRADIENT_SYNC, OPTIMIZER, OTHER)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """The effect of a part of one step on its rank's memory, in bytes."""

    kind: MemoryKind  # see ``MemoryKind``
    change: int  # memory after the part minus memory before
    peak: int | None  # the most inside the part; None for the heap, because malloc keeps no peak


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionTimes:
    """A part of a step that the user named, with ``ctx.phase(name)``."""

    path: str  # its name after the names of the sections around it: outer/inner
    count: float  # how many times a step entered it, on average
    seconds: tuple[float, ...]  # of each step, sections inside it included
    own_seconds: tuple[float, ...]  # without the sections inside it
    memory: MemoryUse | None = None  # None if the system does not report it


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTimes:
    """The steps of a diagnosed launch on one rank, by phase."""

    seconds: Mapping[str, tuple[float, ...]]  # of each step, by phase: all of PHASES, which add up to the step
    sections: tuple[SectionTimes, ...] = ()  # in the order in which steps first entered them
    memory: Mapping[str, MemoryUse] = field(default_factory=dict)  # by phase; empty if the system does not report it

    @property
    def step_times(self) -> tuple[float, ...]:
        """Seconds of each step of the launch."""
        return tuple(math.fsum(parts) for parts in zip(*self.seconds.values(), strict=True))


@dataclass(frozen=True, slots=True)
class SectionSummary:
    """A section that the user named, over all ranks and launches."""

    path: str  # outer/inner
    count: float  # how many times a step enters it
    seconds: float  # of a step, over all entries, inner sections included
    own_seconds: float  # the same without inner sections
    share: float  # ``seconds`` as a fraction of the step
    memory: MemoryUse | None = None  # the largest change and the largest peak that a rank saw; None if unknown

    @property
    def mean(self) -> float:
        """Seconds of one entry."""
        return self.seconds / self.count
