"""Findings about results, as data: notes, and the cause that limits a step. ``reports`` has their sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

APART = frozenset({"ranks_apart", "same_data", "parameters_apart"})
"""Codes of findings that make a result ``broken``: steps run, but the ranks do not train one model together."""
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


@dataclass(frozen=True, slots=True)
class Finding:
    """A note on a result, as a code with facts.

    Attributes:
        code: identifies the sentence of the note in ``reports.findings``, in snake_case.
        facts: the values that the sentence contains, by name. A fact is a whole sentence only if it comes from
            elsewhere, such as an error message or a line of a file.
    """

    code: str
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        """Hashes only the code, because facts may be of unhashable types."""
        return hash(self.code)


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
