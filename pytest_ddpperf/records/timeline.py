"""One step of a rank as computing between collectives, as if each collective took no time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One collective of a step.

    Attributes:
        name: all_reduce, all_gather ...
        nbytes: bytes of the whole buffer, as nccl-tests counts them.
        ranks: number of ranks that take part.
        stride: distance between the numbers of neighbouring ranks in its group.
    """

    name: str
    nbytes: int
    ranks: int
    stride: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A point of a step that starts a transfer, or waits for one.

    Attributes:
        computed: seconds of computing since the previous moment.
        transfer: index of the transfer in ``Timeline.transfers``.
        waits: whether the step waits for the transfer to end.
    """

    computed: float
    transfer: int
    waits: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """A step of one rank, or several steps after which its work repeats.

    Attributes:
        transfers: its collectives, in the order in which they start.
        moments: the points that interrupt computing, in order.
        rest: seconds of computing after the last moment.
        scatter: the relative standard error of the computing.
        launches: seconds of computing in each launch, if the timeline is their mean; empty for one launch.
        steps: number of steps in the timeline.
    """

    transfers: tuple[Transfer, ...]
    moments: tuple[Moment, ...]
    rest: float
    scatter: float = 0.0
    launches: tuple[float, ...] = ()
    steps: int = 1

    @property
    def computing(self) -> float:
        """Seconds of computing in the timeline."""
        return sum(moment.computed for moment in self.moments) + self.rest
