"""What rounds of launches take, and what a launch tells."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class ExtraPasses:
    """What a launch is to tell, each by steps of its own.

    Attributes:
        diagnosed: where the time goes.
        growth: whether memory grows.
        times: how long steps are; of a launch that tells none, one step is timed and counts for nothing.
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
