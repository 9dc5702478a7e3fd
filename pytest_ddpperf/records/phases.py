"""Records of a step: time and memory by phase (such as backward) and by the user's sections, and communication."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

MemoryKind = Literal["allocated", "heap"]
"""allocated: live tensors, in blocks of CUDA's caching allocator. heap: all memory that the process has from malloc,
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
    """The effect of one phase (such as backward) or section of a step on the rank's memory, in bytes."""

    kind: MemoryKind  # see ``MemoryKind``
    change: int  # memory after the part minus memory before
    peak: int | None  # the most inside the part; None for the heap, because malloc keeps no peak


@dataclass(frozen=True, kw_only=True, slots=True)
class SectionTimes:
    """The seconds and memory of a section, the code in ``with ctx.phase(name)``, in a step on one rank."""

    path: str  # its name after the names of the sections around it: outer/inner
    count: float  # how many times a step entered it, on average
    seconds: tuple[float, ...]  # of each step, including the sections inside it
    own_seconds: tuple[float, ...]  # of each step, without the sections inside it
    memory: MemoryUse | None = None  # None if the system does not report it


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTimes:
    """The times of phases (forward, backward ...) and sections on one rank, in a launch that measures phases."""

    seconds: Mapping[str, tuple[float, ...]]  # of each step, by phase: all of PHASES, which add up to the step
    sections: tuple[SectionTimes, ...] = ()  # in the order in which steps first entered them
    memory: Mapping[str, MemoryUse] = field(default_factory=dict)  # by phase; empty if the system does not report it

    @property
    def step_times(self) -> tuple[float, ...]:
        """The seconds of each step of the launch."""
        return tuple(math.fsum(parts) for parts in zip(*self.seconds.values(), strict=True))


@dataclass(frozen=True, slots=True)
class SectionSummary:
    """The mean seconds and memory of a section (``with ctx.phase(name)``) over all ranks and launches."""

    path: str  # outer/inner
    count: float  # how many times a step enters it
    seconds: float  # of a step, over all entries, inner sections included
    own_seconds: float  # the same without inner sections
    share: float  # ``seconds`` as a fraction of the step
    memory: MemoryUse | None = None  # the largest change and the largest peak that a rank saw; None if unknown

    @property
    def mean(self) -> float:
        """The mean seconds of one entry into the section."""
        return self.seconds / self.count


LearningRates: TypeAlias = tuple[tuple[int, tuple[float, ...]], ...]
"""For each optimizer step, its begin in nanoseconds of the system's clock and its parameter groups' learning rates."""

KINDS = (  # a name that others begin with comes after them
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "gather", "scatter", "reduce"),
    *("send_recv", "send", "recv", "barrier"),
)
"""Names of collectives, sends and receives, without the variants of torch and NCCL."""


def collective_kind(name: str) -> str:
    """Converts the name of a collective in NCCL or torch, such as ``_allgather_base``, to a name in ``KINDS``."""
    plain = name.replace("_", "").lower()
    return next((kind for kind in KINDS if plain.startswith(kind.replace("_", ""))), name)


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockTimes:
    """The seconds of one rank's steps with and without synchronisation of gradients, in alternating blocks of steps."""

    synchronised: tuple[float, ...]  # seconds of each whole step, in order
    unsynchronised: tuple[float, ...]  # seconds of each step that averaged no gradients
    still_sent: str = ""  # describes what those steps still sent
    pairs: int = 1  # pairs of blocks, one of either kind; all blocks are equally long


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryHeadroom:
    """The memory in bytes that all ranks of a machine need for copies of the training state, and the free memory."""

    needed: int
    free: int

    @property
    def enough(self) -> bool:
        """Returns whether the copies fit into the free memory."""
        return self.needed <= self.free


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective in the profiler's records of one rank."""

    kind: str  # all_reduce, all_gather ...
    seconds: float  # from this rank's start of it, before the others come, to its end
    nbytes: float | None  # that this rank contributes; None if the profile does not say
    ranks: int | None = None  # of its group; None if the profile does not say


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledStep:
    """One step in the profiler's records of one rank; times in seconds."""

    seconds: float  # the whole step, which the profiler lengthens
    busy: float  # the time in which at least one collective was under way
    computed: float  # the time in which something was computed
    overlapped: float  # the time in which both happened
    collectives: tuple[Collective, ...]  # in the order in which they began


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """The seconds of communication during backward, from DDP's logger, averaged over the steps that DDP samples."""

    communication: float  # from the start of the first all-reduce to the end of the last one
    overlapped: float  # from the same start to the end of backward's computation

    @property
    def exposed(self) -> float:
        """The seconds of communication after the end of backward's computation."""
        return self.communication - self.overlapped


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProfile:
    """The report of one rank on a launch under the profiler."""

    steps: tuple[ProfiledStep, ...]
    window: Window | None = None  # None for other strategies than DDP
    subgroups: bool = False  # whether this rank knows of process groups with fewer ranks than the world
    no_snapshot: str = ""  # why a requested snapshot of a GPU's memory is missing


@dataclass(frozen=True, kw_only=True, slots=True)
class Bandwidth:
    """The speed of one type of collective, such as all-reduces, in bytes per second, as defined by nccl-tests."""

    kind: str
    algorithm: float  # size over time
    bus: float  # the load of the links, comparable between numbers of ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationProfile:
    """The communication of a step in the profiler's records: averages over steps and ranks, in seconds."""

    step: float  # a step under the profiler
    busy: float  # time with at least one collective under way
    overlapped: float  # the part of ``busy`` in which something was computed
    gaps: float  # the possible error of ``exposed``: the part that may be the host's time between two operators
    # Time of the collectives, each as long as on the rank on which it was shortest; None if ranks had different
    # collectives, or the profile does not say which ranks met in them.
    transfer: float | None
    # Additional time of the collectives on the average rank: waiting for the last rank; None as ``transfer``.
    wait: float | None
    # The rank that most often began a collective last, and in which share of them; None as ``transfer``.
    slowest: tuple[int, float] | None
    # By kind of collective, from transfers; empty if there are none or the profile has no sizes.
    bandwidths: tuple[Bandwidth, ...]
    window: Window | None  # the figures of DDP's logger on rank 0; None for other strategies
    unplaced: bool = False  # whether collectives may have involved only some of the ranks, and no profile says which

    @property
    def busy_share(self) -> float:
        """The share of the step in which collectives run, including the part that computing hides."""
        return self.busy / self.step

    @property
    def exposed(self) -> float:
        """The time in which at least one collective was under way and nothing was computed."""
        return self.busy - self.overlapped

    @property
    def overlap(self) -> float | None:
        """The fraction of the communication time during which the rank also computed; None if nothing was sent."""
        return self.overlapped / self.busy if self.busy else None
