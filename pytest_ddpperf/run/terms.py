"""What measuring is agreed on: how much time there is, who runs launches, who looks on and says how to go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol, TypeAlias

from pytest_ddpperf.judge.sequential import Look, Next
from pytest_ddpperf.records.health import Health
from pytest_ddpperf.records.launch import RankLaunch
from pytest_ddpperf.records.measurement import Measurement, Plan
from pytest_ddpperf.run.variant import Variant
from pytest_ddpperf.settings import Settings


@dataclass(frozen=True)
class Budget:
    """How much measuring a benchmark may take: see the knobs of the same names.

    Attributes:
        screening: seconds by which something must look worse to be confirmed in time; ``max_time`` where nothing can.
        turns: whether all that is measured side by side is launched at the same time where it can be, and takes turns.
        slots: how many launches of a side can run at the same time; None for any number.
        memory: bytes that the ranks of launches which run at the same time may take; None where nobody knows.
    """

    steps: int | None
    warmup: int
    launches: int
    max_time: float
    screening: float
    turns: bool = True
    slots: int | None = None
    memory: int | None = None


@dataclass(frozen=True)
class ExtraPasses:
    """What a launch measures besides or in place of timed steps, each by steps of its own.

    Attributes:
        diagnosed: where the time goes.
        growth: whether memory grows.
        times: how long steps are; a launch without it times one step, which counts for nothing.
    """

    diagnosed: bool
    growth: bool
    times: bool = True


ONLY_TIMES = ExtraPasses(diagnosed=False, growth=False)
ONLY_GROWTH = ExtraPasses(diagnosed=False, growth=True, times=False)
DIAGNOSIS = ExtraPasses(diagnosed=True, growth=True, times=False)


class Costs:
    """What rounds have taken, and so will take."""

    def __init__(self, pilot: float) -> None:
        self._pilot = pilot
        self._rounds: list[float] = []

    def add(self, seconds: float) -> None:
        """Learn from a round."""
        self._rounds.append(seconds)

    @property
    def round(self) -> float:
        """Seconds of a round: as those before it took; before any, as the pilots did."""
        return median(self._rounds) if self._rounds else self._pilot


LaunchOutcome: TypeAlias = "tuple[tuple[RankLaunch, ...], float]"
"""What each rank of a launch reports, and how long the launch took, in seconds."""


class LaunchRunner(Protocol):
    """Runs one launch of each of these variants; several at the same time, which then time their steps in turns."""

    def __call__(self, launches: Sequence[tuple[Variant, Plan]], extra: ExtraPasses) -> Sequence[LaunchOutcome]:
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


def budget_of(settings: Settings, *, compared: bool = True) -> Budget:
    """How much measuring a benchmark with these settings may take."""
    return Budget(
        settings.steps,
        settings.warmup,
        settings.launches,
        settings.max_time,
        screening=settings.max_time / 2 if compared and not settings.accepting else settings.max_time,
        turns=settings.turns,
    )
