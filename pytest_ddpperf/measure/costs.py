"""What rounds of launches take, by what their launches have to tell."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Telling:
    """What a launch is to tell after its timed steps, by steps of their own.

    Attributes:
        diagnosed: where the time goes.
        growth: whether memory grows.
    """

    diagnosed: bool
    growth: bool

    def covers(self, other: Telling) -> bool:
        """Whether it is all that the other is, or more."""
        return self.diagnosed >= other.diagnosed and self.growth >= other.growth


ONLY_TIMES = Telling(diagnosed=False, growth=False)


class Costs:
    """What rounds have taken, and so will take.

    Args:
        pilot: seconds that a round of nothing but timed steps takes, going by launches that may have been slow: what
            comes first fills caches, compiles, connects.
    """

    def __init__(self, pilot: float) -> None:
        self._pilot = pilot
        self._rounds: dict[Telling, list[float]] = {}

    def add(self, telling: Telling, seconds: float) -> None:
        """Learn from a round."""
        self._rounds.setdefault(telling, []).append(seconds)

    def of(self, telling: Telling) -> float:
        """Seconds of a round: as those like it took; else as the pilot did, between those that told less and more."""
        if telling in self._rounds:
            return median(self._rounds[telling])
        known = {kind: median(took) for kind, took in self._rounds.items()}
        most = min([self._pilot, *(seconds for kind, seconds in known.items() if kind.covers(telling))])
        return max([most, *(seconds for kind, seconds in known.items() if telling.covers(kind))])
