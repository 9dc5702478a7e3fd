"""What a piece is, where it runs, and where it leaves what it has found."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
MAX_SECONDS = 540.0  # of a piece; with its end it stays below ten minutes
MIN_SECONDS = 120.0  # the first contact with a driver can take its time
PATIENCE = 3  # times as long as expected


@dataclass(frozen=True)
class Place:
    """Where a piece runs: on CUDA, or in a dry run on the CPU."""

    folder: Path  # for what it writes
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


class Notes:
    """What a piece has found so far, in a file: a piece that is ended from outside loses nothing."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.found: dict[str, Any] = {}

    def __call__(self, **facts: Any) -> None:
        """Add facts, which have to be JSON."""
        self.found.update(facts)
        partial = self._file.with_name(f".{self._file.name}.partial")
        partial.write_text(json.dumps(self.found), encoding="utf-8")
        partial.replace(self._file)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One question to the hardware."""

    name: str
    question: str
    seconds: float  # that it is expected to take on one GPU
    run: Callable[[Place, Notes], None]
    lines: Callable[[Mapping[str, Any]], list[str]]  # what was found as text; of a piece that did not end, a part
    dry: str = "the same on the CPU with gloo, tiny"  # what a dry run does

    @property
    def limit(self) -> float:
        """Seconds after which it is ended."""
        return min(MAX_SECONDS, max(MIN_SECONDS, PATIENCE * self.seconds))
