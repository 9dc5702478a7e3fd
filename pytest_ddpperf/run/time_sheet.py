"""Where the time of a call goes, kept while it goes."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict

from pytest_ddpperf.records.launch import TimeSpent


class TimeSheet:
    """The seconds of a call that began at ``begun`` on the clock, by default now, and of its run ``before``."""

    def __init__(
        self,
        begun: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        before: TimeSpent | None = None,
    ) -> None:
        self.now = clock
        self._begun = clock() if begun is None else begun
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._before = TimeSpent() if before is None else before
        self.launched(self._begun)  # what came before the first launch: the first one of all finds out about torch

    def launched(self, begun: float, **worked: float) -> None:
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
        now = TimeSpent(**self._parts, other=max(0.0, whole - math.fsum(self._parts.values())))
        return TimeSpent(**{part: seconds + getattr(self._before, part) for part, seconds in asdict(now).items()})
