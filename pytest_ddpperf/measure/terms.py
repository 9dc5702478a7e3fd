"""What measuring is agreed on: how much time there is, who runs launches, who looks on and says how to go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from pytest_ddpperf.health import Health
from pytest_ddpperf.measure.costs import Telling
from pytest_ddpperf.measure.variant import Variant
from pytest_ddpperf.records import Measurement, Plan, RankLaunch


@dataclass(frozen=True)
class Budget:
    """How much measuring a benchmark may take: see the knobs of the same names.

    Attributes:
        screening: seconds by which something must look worse to be confirmed in time; ``max_time`` where nothing can.
        turns: whether all that is measured side by side is launched at the same time where it can be, and takes turns.
        seats: how many launches of a side can run at the same time; None for any number.
        memory: bytes that the ranks of launches which run at the same time may take; None where nobody knows.
    """

    steps: int | None
    warmup: int
    launches: int
    max_time: float
    screening: float
    turns: bool = True
    seats: int | None = None
    memory: int | None = None


@dataclass(frozen=True)
class Look:
    """Where a benchmark stands when a judge looks at it.

    Attributes:
        elapsed: seconds of measuring so far.
        round_seconds: that another launch of each variant takes.
        last: whether there is no time for another one.
        screened: whether there is no time any more to confirm what looks worse from now on.
        diagnosed: whether the launches that tell if memory grows have been made as well.
    """

    elapsed: float
    round_seconds: float
    last: bool
    screened: bool = False
    diagnosed: bool = False


@dataclass(frozen=True)
class Next:
    """What a judge wants after looking: to stop, ``launches`` more, or to start again with that many fresh ones.

    After launches that diagnose, ``confirm`` asks for fresh ones of these.

    Attributes:
        suspects: the metrics that looked worse, in words.
        explain: whether it is asked for where the time goes, though there is no time left.
    """

    action: Literal["stop", "more", "confirm"]
    launches: int = 0
    suspects: tuple[str, ...] = ()
    explain: bool = False


Ran: TypeAlias = "tuple[tuple[RankLaunch, ...], float]"
"""What each rank of a launch reports, and how long the launch took, in seconds."""


class Run(Protocol):
    """Runs one launch of each of these variants; several at the same time, which then time their steps in turns."""

    def __call__(self, launches: Sequence[tuple[Variant, Plan]], telling: Telling) -> Sequence[Ran]:
        """Run them; what became of each, in the same order."""


@dataclass(frozen=True)
class Progress:
    """Where a running benchmark stands; times in seconds."""

    launch: int
    of: int
    elapsed: float
    expected: float


def unwatched() -> Callable[[], Health | None]:
    """Nobody looks at the machine."""
    return lambda: None


@dataclass(frozen=True)
class Observer:
    """Who looks on while a benchmark runs: ``judge`` decides how to go on, ``progress`` tells the user.

    ``watch`` is called before each launch, and what it gives back after it, for the machine's health meanwhile.
    ``settled`` is told how many launches of a side run at the same time, at most, once that is settled.
    """

    judge: Callable[[tuple[Measurement, ...], Look], Next]
    progress: Callable[[Progress], None]
    seed: int = 0
    clock: Callable[[], float] = field(default=time.monotonic)
    watch: Callable[[], Callable[[], Health | None]] = field(default=unwatched)
    settled: Callable[[int], None] = field(default=lambda _: None)
