"""The launches of earlier runs of a test, which later ones are told again."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from pytest_ddpperf.errors import DdpperfError

if TYPE_CHECKING:
    from pytest_ddpperf.judge.sequential import Look
    from pytest_ddpperf.launch.launch_result import LaunchResult
    from pytest_ddpperf.records.health import Health
    from pytest_ddpperf.records.launch import Window
    from pytest_ddpperf.run.planning import LaunchPlans

    Launched = list[LaunchResult[Any]]

Watch: TypeAlias = "Callable[[], Callable[[Window | None], Health | None]]"
"""Begins to watch a launch; the result ends it, and is given the window of the timed steps."""


class Recording:
    """The launches of one measuring. In later runs of its test they are told again, and take no time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, kept: bool = False) -> None:
        self.first: int | None = None  # launches at the first look of the screening run
        self.deadline = 0.0  # seconds of the screening run
        self.elapsed = 0.0  # when the run before ended
        self.plans: LaunchPlans | None = None
        self.suspicion: tuple[int, Look] | None = None  # the launches of the look that led to a confirmation
        self.sets: dict[int, frozenset[int]] = {}  # of the variants that were launched, by round
        self._clock = clock
        self._kept = kept
        self._launches: list[tuple[Launched | DdpperfError, float]] = []
        self._healths: list[Health | None] = []
        self._told = self._seen = 0
        self._skipped = 0.0  # seconds of launches that were told again

    @property
    def replaying(self) -> bool:
        """Whether launches of an earlier run are left to be told again."""
        return self._told < len(self._launches)

    def now(self) -> float:
        """The clock, as if launches that are told again took their time."""
        return self._clock() + self._skipped

    def planned(self, plan: Callable[[], LaunchPlans]) -> LaunchPlans:
        """The plans of an earlier run, or new ones."""
        if self.plans is None:
            self.plans = plan()
            self._launches.clear()  # pilots
            self._told = 0
        return self.plans

    def as_looked(self, look: Look, launches: int) -> Look:
        """A look at so many launches; what was suspicious in an earlier run is so in a later one with more time."""
        if self.suspicion is None or self.suspicion[0] != launches:
            return look
        return replace(look, last=self.suspicion[1].last, screened=self.suspicion[1].screened)

    def launched(self, launch: Callable[[], Launched]) -> Launched:
        """What the next launch of an earlier run came to, or else what a new one does."""
        __tracebackhide__ = True
        if self._told < len(self._launches):
            outcome, seconds = self._launches[self._told]
            self._skipped += seconds
            self._told += 1
            if isinstance(outcome, DdpperfError):
                raise outcome.with_traceback(None)
            return outcome
        begun = self._clock()
        try:
            launched = launch()
        except DdpperfError as error:
            self._keep(error, begun)
            raise
        self._keep(launched, begun)
        return launched

    def _keep(self, outcome: Launched | DdpperfError, begun: float) -> None:
        if self._kept:
            self._launches.append((outcome, self._clock() - begun))
            self._told += 1

    def watch(self, watch: Watch) -> Callable[[Window | None], Health | None]:
        """What was seen during the next launch of an earlier run, or else a watch over a new one."""
        if self._seen < len(self._healths):
            seen = self._healths[self._seen]
            self._seen += 1
            return lambda _: seen
        ended = watch()
        if not self._kept:
            return ended

        def noted(window: Window | None) -> Health | None:
            self._healths.append(ended(window))
            self._seen += 1
            return self._healths[-1]

        return noted

    def again(self, *, kept: bool = False) -> Recording:
        """The recording from its begin, for a later run, whose further launches may be kept as well."""
        again = Recording(self._clock, kept=kept)
        again.first, again.deadline, again.elapsed, again.plans = self.first, self.deadline, self.elapsed, self.plans
        again.suspicion, again.sets = self.suspicion, self.sets if kept else dict(self.sets)
        again._launches, again._healths = self._launches, self._healths
        return again
