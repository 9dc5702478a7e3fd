"""What a piece is, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
MAX_SECONDS = 540.0  # of a piece; with its end it stays below ten minutes
MIN_SECONDS = 120.0  # the first contact with a driver can take its time
PATIENCE = 3  # times as long as expected


@dataclass(frozen=True)
class Place:
    """Where a piece runs: on CUDA, or in a dry run on the CPU."""

    dry: bool = False
    gpus: int = 1  # that ranks may use; in a dry run as many ranks stand for them

    @property
    def device(self) -> str:
        """The device of ranks, by name."""
        return self.chosen("cuda", "cpu")

    @property
    def backend(self) -> str:
        """The backend of ranks that have a GPU each."""
        return self.chosen("nccl", "gloo")

    def chosen(self, on_gpu: T, dry: T) -> T:
        """One value for GPUs, and a tiny one for a dry run."""
        return dry if self.dry else on_gpu


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One question to the hardware."""

    name: str
    question: str
    seconds: float  # that it is expected to take on one GPU
    lines: Callable[[Place], Iterator[str]]  # what it finds, as it finds it

    @property
    def limit(self) -> float:
        """Seconds after which it is ended."""
        return min(MAX_SECONDS, max(MIN_SECONDS, PATIENCE * self.seconds))
