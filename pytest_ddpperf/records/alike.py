"""The copies of a model and of its data on several ranks, as checksums, and which of them are equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_ddpperf.records.sites import CallSite


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCopy:
    """The checksums of one rank's model and data, to compare ranks with each other."""

    place: tuple[str, ...] = ()  # its mesh coordinates in dimensions that do not split data
    samples: tuple[int, ...] = ()  # checksums of the samples its loaders drew; empty if none draws by number
    batch: int | None = None  # a checksum of its models' input; None if the input was no tensor
    loaded: bool = False  # whether a DataLoader gave the batch
    model: int = 0  # a checksum of the names and shapes of ``parameters``
    # For each parameter that is no shard: the largest difference by rounding, and some sums over the parameter.
    parameters: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    peers: tuple[int, ...] = ()  # the ranks whose parameters DistributedDataParallel keeps equal; empty without it
    # Code that draws samples ("drawn"), and code that does not synchronise a step's last micro-batch ("deferred").
    sites: Mapping[str, tuple[CallSite, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Alike:
    """The ranks that trained on equal data, and the ranks whose parameters differ; None in a field means unknown."""

    samples: tuple[int, ...] | None = None  # the ranks that drew the same samples as another one
    batches: tuple[int, ...] | None = None  # the ranks that trained on the same batches as another one
    loaded: bool = False  # whether DataLoaders gave the batches
    apart: tuple[int, ...] | None = None  # the ranks whose parameters differ after steps, though they train one model
    parameter: str = ""  # name of the first differing parameter; empty if none differs
    wrapped: bool = False  # whether DistributedDataParallel keeps parameters equal
    model: int = 0  # the first rank's checksum of names and shapes of parameters
    sites: Mapping[str, tuple[CallSite, ...]] = field(default_factory=dict)  # of ``RankCopy``; only shown
    copies: tuple[int, ...] = ()  # for each rank, the first rank with equal parameters; empty if unknown
    data: tuple[int, ...] = ()  # for each rank, the first rank that trained on the same data; empty if unknown

    @property
    def sources(self) -> tuple[int, ...]:
        """For each rank, the number of different batches of the ranks with this rank's parameters; empty if unknown."""
        pairs = set(zip(self.copies, self.data, strict=False))
        return tuple(sum(first == copy for copy, _ in pairs) for first in self.copies) if pairs else ()
