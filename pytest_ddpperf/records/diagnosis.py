"""The cause that limits a benchmark's step, as data; ``reports.diagnosis`` has the words."""

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
    """One cause and its time in a step.

    Attributes:
        bottleneck: the cause.
        seconds: of the step.
        share: ``seconds`` as a share of the step; the shares of all causes add up to one.
        facts: the figures that support it, by name.
        text: the cause and its figures in words; empty unless read from a file.
    """

    bottleneck: Bottleneck
    seconds: float
    share: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """One change that may pay.

    Attributes:
        code: of the change, in snake_case; ``reports.diagnosis`` has its words.
        bottleneck: the cause that it reduces.
        gain: the share of the step, or of a sample's time, that it saves at most; None if it only makes room, or if
            the gain is unknown.
        estimated: whether the gain is an estimate, which the change may exceed.
        facts: the figures that the words need, by name.
        text: the advice in words; empty unless read from a file.
    """

    code: str
    bottleneck: Bottleneck
    gain: float | None
    estimated: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """The causes that limit a benchmark's step.

    Attributes:
        bottleneck: the cause with the largest share. If no cause has a third of the step: ``disturbed`` if other
            processes took a third of the cores, else ``unclear``.
        step: seconds of a step.
        causes: all causes, the largest first.
        advice: changes that may pay, the largest gain first; changes that make room in memory come last.
        memory: the largest share of its memory limit that a rank uses; None if no limit is known.
        lost: the share of the cores' time that other processes took.
        text: the diagnosis in one line; empty unless read from a file.
    """

    bottleneck: Bottleneck
    step: float
    causes: tuple[Cause, ...]
    advice: tuple[Advice, ...] = ()
    memory: float | None = None
    lost: float = 0.0
    text: str = ""

    def cause(self, bottleneck: Bottleneck) -> Cause | None:
        """Returns one cause; None if it has no share."""
        return next((cause for cause in self.causes if cause.bottleneck == bottleneck), None)
