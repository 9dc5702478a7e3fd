"""Where the time of a step went on one rank: what the diagnosed pass reports. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

MemoryKind = Literal["allocated", "heap"]

DATA_WAIT = "data_wait"
FORWARD = "forward"
BACKWARD = "backward"
GRADIENT_SYNC = "gradient_sync"
OPTIMIZER = "optimizer"
OTHER = "other"

PHASES = (DATA_WAIT, FORWARD, BACKWARD, GRADIENT_SYNC, OPTIMIZER, OTHER)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryUse:
    """What a part of one step did to the memory of its rank, in bytes.

    Attributes:
        kind: what was counted. ``allocated``: live tensors, in blocks of CUDA's caching allocator. ``heap``: what the
            process had asked malloc for and not given back, tensors on the CPU and all else (mallinfo(3)).
        change: how much more there was after it than before.
        peak: the most there was inside it; None for ``heap``, of which malloc keeps no peak.
    """

    kind: MemoryKind
    change: int
    peak: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionTimes:
    """A part of a step that the user named, with ``ctx.phase(name)``.

    Attributes:
        path: its name behind those of the sections around it: ``outer/inner``.
        count: how many times a step entered it, on average.
        seconds: of each step, sections inside it included.
        own_seconds: the same without the sections inside it.
        memory: None where the system does not tell.
    """

    path: str
    count: float
    seconds: tuple[float, ...]
    own_seconds: tuple[float, ...]
    memory: MemoryUse | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTimes:
    """The steps of a diagnosed pass on one rank, taken apart.

    Attributes:
        seconds: of each step, by phase: all of ``PHASES``, which add up to the step.
        sections: in the order in which the steps first came to them.
        memory: by phase; empty where the system does not tell.
    """

    seconds: Mapping[str, tuple[float, ...]]
    sections: tuple[SectionTimes, ...] = ()
    memory: Mapping[str, MemoryUse] = field(default_factory=dict)

    @property
    def step_times(self) -> tuple[float, ...]:
        """Seconds of each step of the pass."""
        return tuple(math.fsum(parts) for parts in zip(*self.seconds.values(), strict=True))
