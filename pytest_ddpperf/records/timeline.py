"""One step of a rank as computing between collectives, as if each collective took no time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfer:
    """One collective of a step.

    Attributes:
        name: all_reduce, all_gather ...
        nbytes: of the whole buffer, as nccl-tests has it.
        ranks: that take part.
        stride: how far the numbers of two neighbours in its group are apart; 1 for neighbouring ranks.
    """

    name: str
    nbytes: int
    ranks: int
    stride: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """A point of a step at which a transfer is handed over, or waited for.

    Attributes:
        computed: seconds of computing since the moment before.
        transfer: the number of the transfer among those of its step.
        waits: whether the step waits for it to end.
    """

    computed: float
    transfer: int
    waits: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """A step of one rank, or several steps after which its work repeats.

    Attributes:
        transfers: its collectives, in the order in which they are handed over.
        moments: what computing is interrupted by, in order.
        rest: seconds of computing after the last moment.
        scatter: the standard error of the computing, relative.
        launches: seconds of computing in each launch that this is the mean of; empty for one launch.
        steps: how many steps all of this is of.
    """

    transfers: tuple[Transfer, ...]
    moments: tuple[Moment, ...]
    rest: float
    scatter: float = 0.0
    launches: tuple[float, ...] = ()
    steps: int = 1

    @property
    def computing(self) -> float:
        """Seconds of computing."""
        return sum(moment.computed for moment in self.moments) + self.rest
