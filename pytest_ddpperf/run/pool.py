"""The budget of a session: what each call of a verb may take of it, and what its screening run has left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import DdpperfError
from pytest_ddpperf.units import format_count

if TYPE_CHECKING:
    from pytest_ddpperf.against.paired_launches import PairedLaunches
    from pytest_ddpperf.judge.sequential import Look
    from pytest_ddpperf.launch.launcher import LaunchResult
    from pytest_ddpperf.records.batch_size import Search
    from pytest_ddpperf.records.health import Health
    from pytest_ddpperf.records.results import Result, TimeSpent
    from pytest_ddpperf.run.dealing import Need
    from pytest_ddpperf.run.planning import Budget, LaunchPlans
    from pytest_ddpperf.run.variant import Variant

    Launched = list[LaunchResult[Any]]
    Watch = Callable[[], Callable[[], Health | None]]

SCREENING = 0.5  # of the budget, at most
_LEAST_SECONDS = 1e-3  # a time is above 0


class Recording:
    """The launches of one measuring. In the second run of its test they are told again, and take no time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, kept: bool = False) -> None:
        self.first: int | None = None  # launches at the first look of the screening run
        self.deadline = 0.0  # seconds of the screening run
        self.elapsed = 0.0  # when it ended
        self.plans: LaunchPlans | None = None
        self._clock = clock
        self._kept = kept
        self._launches: list[tuple[Launched | DdpperfError, float]] = []
        self._healths: list[Health | None] = []
        self._told = self._seen = 0
        self._skipped = 0.0  # seconds of launches that were told again

    def now(self) -> float:
        """The clock, as if launches that are told again took their time."""
        return self._clock() + self._skipped

    def planned(self, plan: Callable[[], LaunchPlans]) -> LaunchPlans:
        """The plans of the screening run, or new ones."""
        if self.plans is None:
            self.plans = plan()
            self._launches.clear()  # pilots
            self._told = 0
        return self.plans

    def launched(self, launch: Callable[[], Launched]) -> Launched:
        """What the next launch of the screening run came to, or else what a new one does."""
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

    def watch(self, watch: Watch) -> Callable[[], Health | None]:
        """What was seen during the next launch of the screening run, or else a watch over a new one."""
        if self._seen < len(self._healths):
            seen = self._healths[self._seen]
            self._seen += 1
            return lambda: seen
        ended = watch()
        if not self._kept:
            return ended

        def noted() -> Health | None:
            self._healths.append(ended())
            self._seen += 1
            return self._healths[-1]

        return noted

    def again(self) -> Recording:
        """The recording from its begin, for the second run; more launches are not kept."""
        again = Recording(self._clock)
        again.first, again.deadline, again.elapsed, again.plans = self.first, self.deadline, self.elapsed, self.plans
        again._launches, again._healths = self._launches, self._healths
        return again


@dataclass
class _Kept:
    """What the screening run of a call has left."""

    recordings: list[tuple[list[object], Recording]] = field(default_factory=list)
    need: Need | None = None  # for more time
    spent: TimeSpent | None = None
    paired: PairedLaunches | None = None
    search: Search | None = None  # of a call that looks for the largest batch


class Part:
    """The part of one call of a verb in the budget of its session."""

    def __init__(self, pool: Pool, test: str, number: int, before: _Kept | None) -> None:
        self.before = before  # None in a test's only run, and in its screening run
        self.kept = _Kept()  # by this run
        self._pool = pool
        self._place = test, number
        self._begun = pool.now()
        self._recorded = 0
        self._round_seconds = 0.0

    @property
    def screening(self) -> bool:
        """Whether the call measures for its screening share alone."""
        return self._pool.screening

    def max_time(self, ceiling: float) -> float:
        """The seconds that the call may measure from now on, those of its screening run included."""
        pool = self._pool
        if pool.seconds is None:
            return ceiling
        if self.before is not None and self.before.recordings:
            before = self.before.recordings[-1][1].elapsed
            return min(ceiling, max(_LEAST_SECONDS, before + pool.dealt(self._place)))
        share = pool.share(self._begun) - (pool.now() - self._begun)
        return min(ceiling, max(_LEAST_SECONDS, share / SCREENING if pool.screening else share))

    def limited(self, budget: Budget, recording: Recording, max_time: float) -> Budget:
        """The budget of a measuring, whose screening ends no earlier than in its first run."""
        budget = replace(budget, max_time=max_time, screening=budget.screening / budget.max_time * max_time)
        if self.screening:
            recording.deadline = min(budget.screening, budget.max_time * SCREENING)
            return replace(budget, screening=recording.deadline)
        return replace(budget, screening=max(budget.screening, recording.deadline), first=recording.first)

    def looked(self, recording: Recording, results: Sequence[Result], look: Look, made: int) -> None:
        """Note where a measuring stands when its judge has looked at ``made`` launches."""
        self._round_seconds = look.round_seconds
        if self.screening and recording.plans is not None:
            from pytest_ddpperf.run.dealing import need_of

            recording.first = recording.first or made
            recording.elapsed = look.elapsed
            self.kept.need = need_of(results, look, made, recording.plans.diagnosis_seconds)

    def end_screening(self, spent: TimeSpent, paired: PairedLaunches | None = None) -> None:
        """Keep what a screening run knows besides its launches."""
        self.kept.spent, self.kept.paired = spent, paired

    def searched(self, search: Search, searches: list[Search]) -> None:
        """List a search, or keep it for the second run."""
        if self.screening:
            self.kept.search = search
        else:
            searches.append(search)

    def measured(self, made: int, wanted: int) -> None:
        """Note that so many launches of those that are wanted were made, whether or not there was time for more."""
        if not self.screening:
            self._pool.took(made, wanted, self._round_seconds)

    def recording(self, variants: Sequence[Variant]) -> Recording:
        """The next measuring of the call: that of the screening run, if the same benchmarks were measured there."""
        benchmarks: list[object] = [(each.identity_fields, each.of_reference) for each in variants]
        before = [] if self.before is None else self.before.recordings[self._recorded : self._recorded + 1]
        self._recorded += 1
        if before and before[0][0] == benchmarks:
            return before[0][1].again()
        recording = Recording(self._pool.now, kept=self.screening)
        if self.screening:
            self.kept.recordings.append((benchmarks, recording))
        return recording


class Pool:
    """What is left of the budget of a session; ``seconds`` is None where it has none. ``tests`` measure."""

    def __init__(
        self, seconds: float | None, tests: int, clock: Callable[[], float] = time.monotonic, turns: int = 1
    ) -> None:
        self.seconds = seconds
        self.now = clock
        self.screening = False  # whether this is the first of two passes
        self._tests = tests
        self._turns = turns  # times that each call measures
        self._start: float | None = None
        self._begun = 0  # runs of tests in this pass
        self._calls: dict[str, int] = {}
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._short: list[float] = []  # seconds that benchmarks with too few launches lacked

    def begin_pass(self, *, screening: bool) -> None:
        """Begin a pass over all tests."""
        self._begin()
        self.screening = screening
        self._begun = 0
        self._calls.clear()

    def _begin(self) -> None:
        self._start = self.now() if self._start is None else self._start

    def begin_test(self, test: str) -> None:
        """Begin a run of a test."""
        self._begin()
        self._begun += 1
        self._calls[test] = 0

    def end_test(self, test: str) -> None:
        """Forget what the screening run of a test has left; nothing in the screening pass."""
        if not self.screening:
            self._kept = {place: kept for place, kept in self._kept.items() if place[0] != test}

    def part(self, test: str) -> Part:
        """The part of the next call of a test."""
        number = self._calls[test] = self._calls.get(test, 0) + 1
        part = Part(self, test, number, None if self.screening else self._kept.get((test, number)))
        if self.screening:
            self._kept[test, number] = part.kept
        return part

    @property
    def left(self) -> float:
        """Seconds; below 0 where more was spent."""
        elapsed = 0.0 if self._start is None else self.now() - self._start
        return (math.inf if self.seconds is None else self.seconds) - elapsed

    def share(self, begun: float) -> float:
        """The seconds of a call that began then, where all tests of the pass that are left have as many."""
        if self.seconds is None:
            return math.inf
        left = self.left + (self.now() - begun) - self.seconds * (1 - SCREENING) * self.screening
        return left / max(1, self._tests - self._begun + 1) / self._turns

    def dealt(self, place: tuple[str, int]) -> float:
        """The seconds of a call on top of its screening."""
        from pytest_ddpperf.run.dealing import dealt

        needs = {each: kept.need for each, kept in self._kept.items() if kept.need is not None}
        return dict(zip(needs, dealt(self.left, [*needs.values()]), strict=True)).get(place, 0.0)

    def took(self, made: int, wanted: int, round_seconds: float) -> None:
        """Note that a benchmark had so many launches."""
        if self.seconds is not None and not self.screening and made < wanted:
            self._short.append((wanted - made) * round_seconds)

    @property
    def complaint(self) -> str | None:
        """That the budget was too small, and what would do; None where it was not."""
        if not self._short or self.seconds is None:
            return None
        enough = max(self.seconds, self.seconds - self.left) + math.fsum(self._short) / SCREENING
        return (
            f"--ddpperf-budget={self.seconds:g}s had no time for the launches of a first look in "
            f"{format_count(len(self._short), 'call')}; {math.ceil(enough)}s would do"
        )

    def text(self) -> str:
        """Where the session stands: ``screening 7 of 26, 4:10 left of 10:00``; empty where it has no budget."""
        if self.seconds is None:
            return ""
        which = f"screening {self._begun} of {self._tests}, " if self.screening else ""
        return f"{which}{clock_text(max(0.0, self.left))} left of {clock_text(self.seconds)}"


def clock_text(seconds: float) -> str:
    """Seconds as minutes and seconds: ``4:10``."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"
