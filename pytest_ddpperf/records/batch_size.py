"""The result of a search for the largest batch that fits into memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Trial:
    """A batch size that the search has tried, and whether it fits into memory."""

    size: int  # samples of one rank's batch
    fits: bool  # whether every rank could train with it
    peak: float | None  # the most bytes that a rank used; None if it ran out of memory, or if the peak is unknown


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSize:
    """The largest batch size that fits into memory.

    Attributes:
        size: the number that the user's function got, usually the samples of one rank's batch.
        peak: the most bytes that a rank used with this size: resident on CPU, reserved on CUDA; None if unknown.
        tried: all sizes that the search has tried, in order.
    """

    size: int
    peak: float | None
    tried: tuple[Trial, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Search(BatchSize):
    """A test's search for the largest batch, with its arguments and its result."""

    test: str  # pytest node id
    training: str  # strategy and recipe in one line
    world_size: int  # number of ranks
    environment_key: str  # the key of the environment of the search
    limit: int | None  # the largest size to try; None for no limit
    memory_limit: int | None  # bytes for each rank; None for all of the device's memory
