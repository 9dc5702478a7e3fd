"""The communication of a step on one rank, and over a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

LearningRates: TypeAlias = tuple[tuple[int, tuple[float, ...]], ...]
"""When an optimizer began its steps, in nanoseconds of the system's clock, and the rates of its groups then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockTimes:
    """Steps with and without synchronisation of gradients on one rank, from blocks that alternated."""

    synchronised: tuple[float, ...]  # seconds of each whole step, in order
    unsynchronised: tuple[float, ...]  # seconds of each step that averaged no gradients
    still_sent: str = ""  # what those steps sent all the same, in words
    pairs: int = 1  # blocks of either kind, all of them equally long


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryHeadroom:
    """Bytes that copies of the training state of all ranks of a machine take, and that are free for them."""

    needed: int
    free: int

    @property
    def enough(self) -> bool:
        """Returns whether the copies fit."""
        return self.needed <= self.free


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective as the profiler saw it on one rank."""

    kind: str  # all_reduce, all_gather ...
    seconds: float  # from when this rank began with it, before the others had come, to its end
    nbytes: float | None  # that this rank puts into it; None if the profile does not tell
    ranks: int | None = None  # in its group; None if the profile does not tell


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledStep:
    """One step under the profiler on one rank, in seconds."""

    seconds: float  # the whole step, which the profiler makes longer
    busy: float  # in which at least one collective was under way
    computed: float  # in which something was computed
    overlapped: float  # in which both was so
    collectives: tuple[Collective, ...]  # in the order in which they began


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """DDP's own figures on its backward, in seconds, averaged over its own sample of steps."""

    communication: float  # from the start of the first all-reduce to the end of the last one
    overlapped: float  # from the same start to the end of backward's computation

    @property
    def exposed(self) -> float:
        """The part of the window after backward's computation."""
        return self.communication - self.overlapped


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProfile:
    """What one rank reports of a launch under the profiler."""

    steps: tuple[ProfiledStep, ...]
    window: Window | None = None  # None for other strategies than DDP
    subgroups: bool = False  # whether this rank knows of process groups with fewer ranks than the world
    no_snapshot: str = ""  # why there is no snapshot of a GPU's memory, where one was to be written


@dataclass(frozen=True, kw_only=True, slots=True)
class Bandwidth:
    """How fast collectives of one kind were, in bytes per second, as nccl-tests has it."""

    kind: str
    algorithm: float  # the size over the time
    bus: float  # the load of the links that this means, whatever the number of ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationProfile:
    """The communication of a step as the profiler sees it: averages over steps and ranks, in seconds.

    Attributes:
        step: a step under the profiler.
        busy: in which at least one collective was under way.
        overlapped: of that, in which something was computed.
        gaps: of ``exposed``, the host's time between two operators: an estimate of the error.
        transfer: of the collectives, each as long as on the rank where it was shortest; None if they are not the
            same on all ranks, or nobody knows which ranks met in them.
        wait: how much longer they were on the average rank: the wait for the last one to come; None likewise.
        slowest: the rank that came last most often, and the share of the collectives for which it did; None likewise.
        bandwidths: by kind of collective, from transfers; empty if there are none or the profile tells no sizes.
        window: DDP's own figures on rank 0; None for other strategies.
        unplaced: whether collectives may have been among some of the ranks only, and nobody knows which.
    """

    step: float
    busy: float
    overlapped: float
    gaps: float
    transfer: float | None
    wait: float | None
    slowest: tuple[int, float] | None
    bandwidths: tuple[Bandwidth, ...]
    window: Window | None
    unplaced: bool = False

    @property
    def busy_share(self) -> float:
        """Busy time as a share of the step. Not its overhead: part of it is hidden."""
        return self.busy / self.step

    @property
    def exposed(self) -> float:
        """Busy time in which nothing was computed."""
        return self.busy - self.overlapped

    @property
    def overlap(self) -> float | None:
        """The share of busy time in which something was computed; None if nothing was sent."""
        return self.overlapped / self.busy if self.busy else None
