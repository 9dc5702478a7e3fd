"""Records of measurements of the network between ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.units import format_count, format_value, power_of_two

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all")
"""The collectives whose cost on the network is measured."""

ELEMENT = 4  # bytes of an element that is sent


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """The plan of a network measurement: each round calls every collective with every size, in a random order."""

    collectives: tuple[str, ...]
    sizes: tuple[int, ...]  # bytes of the whole buffer, ascending; every rank has a whole number of elements
    rounds: int
    seed: int = 0
    pair_bytes: int = 2**18  # of a message between two ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveTimes:
    """The times of each call of one collective with one size on one rank, in the order of calls.

    ``begun``: seconds until the call gave its work to the backend. ``waited``: seconds from then until the result came.
    ``handed``: the time at which the backend got the work, on a clock that all ranks of a machine share.
    """

    collective: str
    nbytes: int  # of the whole buffer, as nccl-tests has it
    begun: tuple[float, ...]
    waited: tuple[float, ...]
    handed: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Seconds of computing alone, of an all-reduce alone, and of both at the same time, on one rank."""

    computing: float
    sending: float
    both: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSweep:
    """The times of collectives and messages that one rank measured."""

    times: tuple[CollectiveTimes, ...]  # the calls of each collective and size
    pairs: Mapping[int, tuple[float, ...]]  # the seconds of the fastest message of each turn, by the other rank
    beside: tuple[Overlap, ...] = ()  # computing during an all-reduce, one for each round


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """The seconds of the fastest call of one collective with one size; each call is timed on its slowest rank."""

    collective: str
    nbytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A linear part of a collective's cost: seconds = latency + bytes x seconds_per_byte, up to ``max_bytes``."""

    max_bytes: int
    latency: float
    seconds_per_byte: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveFit:
    """The seconds of one collective by its size, for one number of ranks, fitted to measured calls."""

    collective: str  # its name
    world_size: int  # the number of ranks; the fit holds for no other number
    min_bytes: int  # the smallest size that was measured
    segments: tuple[Segment, ...]  # one or two, ascending; the last one ends with the largest size
    error: float  # the median relative error for sizes that the fit had not seen

    @property
    def max_bytes(self) -> int:
        """The largest size that was measured."""
        return self.segments[-1].max_bytes

    def seconds(self, nbytes: float) -> float:
        """Returns the seconds for a buffer of ``nbytes``; raises SettingError outside of the measured sizes."""
        if not self.min_bytes <= nbytes <= self.max_bytes:
            ends = " to ".join(format_value(end, "B") for end in (self.min_bytes, self.max_bytes))
            above = nbytes > self.max_bytes
            wider = f"--{'max' if above else 'min'}-size={power_of_two(nbytes, above=above)}"
            raise SettingError(
                f"nbytes={nbytes}: {self.collective} of {format_count(self.world_size, 'rank')} was measured only "
                f"from {ends}; measure this size too: ddpperf network --world-size={self.world_size} {wider}"
            )
        line = next(segment for segment in self.segments if nbytes <= segment.max_bytes)
        return line.latency + nbytes * line.seconds_per_byte
