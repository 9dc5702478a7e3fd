"""What is measured of the network between ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ELEMENT = 4  # bytes of what is sent


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """What every rank measures: each collective with each size in each round, in an order drawn by ``seed``."""

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]  # bytes of the whole buffer, ascending; of each every rank has a whole number of elements
    rounds: int
    seed: int = 0
    pair_bytes: int = 2**18  # of a message between two ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTimes:
    """The calls of one collective and size on one rank, in seconds and in order.

    ``begun``: until the call had handed its work over; ``waited``: from then until the result was there; ``handed``:
    when that was, by the clock that all ranks of a machine have in common.
    """

    collective: str
    nbytes: int  # of the whole buffer, as nccl-tests has it
    begun: tuple[float, ...]
    waited: tuple[float, ...]
    handed: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Beside:
    """Seconds on one rank: of some computing, of an all-reduce, and of both at the same time."""

    computing: float
    sending: float
    both: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSweep:
    """What one rank measured.

    Attributes:
        times: of collectives.
        pairs: the seconds of the fastest message of each turn, by the other rank.
        beside: computing beside an all-reduce, one for each round.
    """

    times: tuple[CollectiveTimes, ...]
    pairs: Mapping[int, tuple[float, ...]]
    beside: tuple[Beside, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """A measured size of a collective: the fastest of its calls, each as long as on the slowest rank."""

    collective: str
    nbytes: int
    seconds: float
