"""Where the time of a call goes: kept while it goes, and a remark where too much of it goes into starting."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, TimeSpent

SLOW_START = 1.0  # seconds that launches take to start, on average: less is not worth a remark
WORTH_NAMING = 0.25  # the share of an import in these seconds


class TimeSheet:
    """The seconds of a call that began at ``begun`` on the clock, by default now."""

    def __init__(self, begun: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._begun = clock() if begun is None else begun
        self._parts: defaultdict[str, float] = defaultdict(float)
        self.note_launch(self._begun)  # what came before the first launch: the first one of all finds out about torch

    def note_launch(self, begun: float, **worked: float) -> None:
        """Notes a launch that began at ``begun`` and ends now: ``worked`` on these parts, starting the rest of it.

        Ranks have clocks of their own, which code under test may have patched: no launch works longer than it lasts.
        """
        left = self.now() - begun
        for part, seconds in worked.items():
            kept = min(max(0.0, seconds), left)
            self._parts[part] += kept
            left -= kept
        self._parts["starting"] += left

    @property
    def spent(self) -> TimeSpent:
        """The seconds until now."""
        whole = self.now() - self._begun
        return TimeSpent(**self._parts, other=max(0.0, whole - math.fsum(self._parts.values())))


def slow_starts(launches: Sequence[Launch], steps: int | None) -> list[Finding]:
    """That launches spent more on starting than on steps, where that is long enough to be worth a cure."""
    working = sum(max(rank.worked for rank in launch.ranks) for launch in launches)
    starting = sum(launch.seconds for launch in launches) - working
    if not 0 < working < starting or starting < SLOW_START * len(launches):
        return []
    imports = [launch.ranks[0].imported for launch in launches if launch.ranks[0].imported is not None]
    slowest = max(imports, key=lambda one: one.seconds, default=None)
    if slowest is not None and slowest.seconds * len(launches) < WORTH_NAMING * starting:
        slowest = None
    return [
        Finding(
            "slow_starts",
            {
                "starting": starting,
                "working": working,
                "launches": len(launches),
                "slowest": slowest,
                "setting": "max_time" if steps is None else "steps",
            },
        )
    ]
