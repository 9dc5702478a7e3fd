"""The timeline of a rank's step: its computing, and the points at which it starts or awaits collectives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One collective of a step."""

    name: str  # all_reduce, all_gather
    nbytes: int  # bytes of the whole buffer, as nccl-tests counts them
    ranks: int  # number of ranks that take part
    stride: int = 1  # distance between the numbers of neighbouring ranks in its group


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A point of a step at which a transfer starts, or the rank waits for one."""

    computed: float  # seconds of computing since the previous moment
    transfer: int  # index of the transfer in ``Timeline.transfers``
    waits: bool  # whether the step waits for the transfer to end


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """A step of one rank, or several steps after which the work repeats."""

    transfers: tuple[Transfer, ...]  # its collectives, in the order in which they start
    moments: tuple[Moment, ...]  # the points that interrupt computing, in order
    rest: float  # seconds of computing after the last moment
    scatter: float = 0.0  # the relative standard error of the computing
    # Seconds of computing in each launch, if the timeline is their mean; empty for one launch.
    launches: tuple[float, ...] = ()
    steps: int = 1  # number of steps in the timeline

    @property
    def computing(self) -> float:
        """The seconds of computing in the timeline."""
        return sum(moment.computed for moment in self.moments) + self.rest
