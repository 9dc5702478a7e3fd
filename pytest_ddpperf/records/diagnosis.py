"""The cause that limits a benchmark's step, as data; ``reports.diagnosis`` has the texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Bottleneck = Literal[
    "compute",
    "communication",
    "memory_capacity",
    "memory_bandwidth",
    "data",
    "overhead",
    "straggler",
    "oversubscribed",
    "disturbed",
    "unclear",
]
"""Causes that can limit a step; overhead is the host's time for calling operators."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """A cause that limits the speed of a step, with the seconds that it takes in a step."""

    bottleneck: Bottleneck  # the cause
    seconds: float  # of the step
    share: float  # ``seconds`` as a share of the step; the shares of all causes add up to one
    facts: Mapping[str, Any] = field(default_factory=dict)  # the figures that support it, by name
    text: str = ""  # the cause and its figures in words; empty unless read from a file


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """A change that may make steps faster."""

    code: str  # of the change, in snake_case; ``reports.diagnosis`` has its words
    bottleneck: Bottleneck  # the cause that it reduces
    # The share of the step, or of a sample's time, that it saves at most; None if it only makes room, or if the gain is
    # unknown.
    gain: float | None
    estimated: bool = False  # whether the gain is an estimate, which the change may exceed
    facts: Mapping[str, Any] = field(default_factory=dict)  # the figures that the words need, by name
    text: str = ""  # the advice in words; empty unless read from a file


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """The causes that limit a benchmark's step."""

    # The cause with the largest share. If no cause takes a third of the step: ``disturbed`` if other processes took a
    # third of the cores, else ``unclear``.
    bottleneck: Bottleneck
    step: float  # seconds of a step
    causes: tuple[Cause, ...]  # all causes, the largest first
    # Changes that may pay, the largest gain first; changes that make room in memory come last.
    advice: tuple[Advice, ...] = ()
    memory: float | None = None  # the largest share of its memory limit that a rank uses; None if no limit is known
    lost: float = 0.0  # the share of the cores' time that other processes took
    text: str = ""  # the diagnosis in one line; empty unless read from a file

    def cause(self, bottleneck: Bottleneck) -> Cause | None:
        """Returns the cause with this name; None if it takes no time in the step."""
        return next((cause for cause in self.causes if cause.bottleneck == bottleneck), None)
