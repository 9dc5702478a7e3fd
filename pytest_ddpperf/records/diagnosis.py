"""What the step of a benchmark is bound by, as data; ``reports.diagnosis`` has the words."""

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
"""What a step can be bound by; overhead is the host's time for calling operators."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """One cause and the time that it has in a step.

    Attributes:
        bottleneck: the cause.
        seconds: of the step.
        share: that as a share of the step; those of all causes add up to one.
        facts: the figures that it rests on, by name.
        text: in words, with the figures that it rests on; empty unless a file has them.
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
        bottleneck: the cause that it takes effect on.
        gain: the share of the step, or of a sample's time, that it saves at most; None if it makes room and no
            time, or where nobody knows how much.
        estimated: whether the gain is an estimate, which the change may exceed.
        facts: what the words need, by name.
        text: in words; empty unless a file has them.
    """

    code: str
    bottleneck: Bottleneck
    gain: float | None
    estimated: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What a benchmark's step is bound by.

    Attributes:
        bottleneck: the cause with the largest share; where none has a third of the step, ``unclear``, or ``disturbed``
            where other processes took a third of the cores.
        step: seconds of a step.
        causes: all causes, the largest first.
        advice: changes that may pay, the largest gain first; those that make room in memory come last.
        memory: the share of its memory that a rank uses at most; None if no limit is known.
        lost: the share of the cores' time that other processes took.
        text: in one line; empty unless a file has it.
    """

    bottleneck: Bottleneck
    step: float
    causes: tuple[Cause, ...]
    advice: tuple[Advice, ...] = ()
    memory: float | None = None
    lost: float = 0.0
    text: str = ""

    def cause(self, bottleneck: Bottleneck) -> Cause | None:
        """One cause; None if it has no share."""
        return next((cause for cause in self.causes if cause.bottleneck == bottleneck), None)
