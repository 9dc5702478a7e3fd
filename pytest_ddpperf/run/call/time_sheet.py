"""The seconds of a call by purpose, and a finding if starting takes too much of the time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, TimeSpent

SLOW_START = 1.0  # seconds that launches take to start, on average: fewer are not worth a finding
WORTH_NAMING = 0.25  # the share of these seconds from which on an import is named


class TimeSheet:
    """The seconds of a call by purpose; the call began at ``begun`` on the clock (default: now)."""

    def __init__(self, begun: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._begun = clock() if begun is None else begun
        self._parts: defaultdict[str, float] = defaultdict(float)
        self.note_launch(self._begun)  # the time before the first launch, in which a session finds out about torch

    def note_launch(self, begun: float, **worked: float) -> None:
        """Records the seconds of a launch from ``begun`` until now; seconds without a purpose count as starting time.

        ``worked``: seconds by purpose. Tests may patch the ranks' clocks, so the launch's duration limits their sum.
        """
        left = self.now() - begun
        for part, seconds in worked.items():
            kept = min(max(0.0, seconds), left)
            self._parts[part] += kept
            left -= kept
        self._parts["starting"] += left

    @property
    def spent(self) -> TimeSpent:
        """The seconds until now, by purpose."""
        whole = self.now() - self._begun
        return TimeSpent(**self._parts, other=max(0.0, whole - math.fsum(self._parts.values())))


def slow_starts(launches: Sequence[Launch], steps: int | None) -> list[Finding]:
    """Returns a finding if launches took longer to start than to run steps; ``steps``: the setting, None if unset."""
    working = sum(max(rank.worked for rank in launch.ranks) for launch in launches)
    starting = sum(launch.seconds for launch in launches) - working
    if not 0 < working < starting or starting < SLOW_START * len(launches):
        return []
    imports = [launch.ranks[0].imported for launch in launches if launch.ranks[0].imported is not None]
    slowest = max(imports, key=lambda one: one.seconds, default=None)
    if slowest is not None and slowest.seconds * len(launches) < WORTH_NAMING * starting:
        slowest = None
    setting = "max_time" if steps is None else "steps"
    made = len(launches)
    return [
        Finding(
            "slow_starts",
            {"starting": starting, "working": working, "launches": made, "slowest": slowest, "setting": setting},
        )
    ]
