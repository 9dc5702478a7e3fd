"""What is known of the communication of a step on one rank. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockTimes:
    """Steps with and without synchronisation of gradients on one rank, from blocks that alternated.

    Attributes:
        synchronised: seconds of each step of the blocks that were whole, in order.
        unsynchronised: of each step that averaged no gradients.
        still_sent: what those steps sent all the same, in words; empty for nothing.
        pairs: how many blocks there were of either kind, all of them equally long.
    """

    synchronised: tuple[float, ...]
    unsynchronised: tuple[float, ...]
    still_sent: str = ""
    pairs: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryHeadroom:
    """What copies of what is trained take of a machine's memory, all its ranks' together, and what there is for them.

    Attributes:
        needed: bytes; ``free`` likewise.
    """

    needed: int
    free: int

    @property
    def enough(self) -> bool:
        """Whether the copies fit."""
        return self.needed <= self.free


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective as the profiler saw it on one rank.

    Attributes:
        kind: ``all_reduce``, ``all_gather`` ...
        seconds: from when this rank began with it, before the others had come, to its end.
        nbytes: what this rank puts into it; None where the profile does not tell.
        ranks: how many there are in its group; None where the profile does not tell.
    """

    kind: str
    seconds: float
    nbytes: float | None
    ranks: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledStep:
    """One step under the profiler on one rank, in seconds.

    Attributes:
        seconds: the whole step, which the profiler makes longer.
        busy: in which at least one collective was under way.
        computed: in which something was computed.
        overlapped: in which both was so.
        collectives: in the order in which they began.
    """

    seconds: float
    busy: float
    computed: float
    overlapped: float
    collectives: tuple[Collective, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What DDP itself says of its backward, in seconds, averaged over its own sample of steps.

    Attributes:
        communication: from the start of the first all-reduce to the end of the last one: what lies between is in it.
        overlapped: from the same start to the end of backward's computation.
    """

    communication: float
    overlapped: float

    @property
    def exposed(self) -> float:
        """What of the window came after backward's computation."""
        return self.communication - self.overlapped


@dataclass(frozen=True, kw_only=True, slots=True)
class RankProfile:
    """What one rank reports of a launch under the profiler.

    Attributes:
        window: DDP's own figures; None for other strategies.
        subgroups: whether process groups of fewer ranks than the world's were made, as far as this rank knows.
    """

    steps: tuple[ProfiledStep, ...]
    window: Window | None = None
    subgroups: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Bandwidth:
    """How fast collectives of one kind were, in bytes per second, as nccl-tests has it.

    Attributes:
        kind: ``all_reduce`` ...
        algorithm: the size over the time.
        bus: what that means for the links, whatever the number of ranks.
    """

    kind: str
    algorithm: float
    bus: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationProfile:
    """The communication of a step as the profiler sees it: averages over steps and ranks, in seconds.

    Attributes:
        step: a step under the profiler.
        busy: in which at least one collective was under way.
        overlapped: of that, in which something was computed.
        gaps: of ``exposed``, what may be no waiting but the host between two operators: an estimate of the error.
        transfer: of the collectives, each as long as on the rank where it was shortest; None where they are not the
            same on all ranks, or nobody knows which ranks met in them.
        wait: how much longer they were on the average rank: the wait for the last one to come; None likewise.
        slowest: the rank that came last most often, and the share of the collectives for which it did; None likewise.
        bandwidths: by kind of collective, from transfers; empty where there are none or the profile tells no sizes.
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
        """The share of busy time in which something was computed; None where nothing was sent."""
        return self.overlapped / self.busy if self.busy else None
