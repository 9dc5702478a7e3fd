"""The budget of a session: what each call of a verb may take of it, and what its screening run has left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pytest_ddpperf.run.recording import Recording
from pytest_ddpperf.units import format_clock, format_count

if TYPE_CHECKING:
    from pytest_ddpperf.against.paired_launches import PairedLaunches
    from pytest_ddpperf.judge.sequential import Look
    from pytest_ddpperf.records.batch_size import Search
    from pytest_ddpperf.records.results import Result, TimeSpent
    from pytest_ddpperf.run.dealing import Need
    from pytest_ddpperf.run.planning import Budget
    from pytest_ddpperf.run.variant import Variant

SCREENING = 0.5  # of the budget, at most
_LEAST_SECONDS = 1e-3  # a time is above 0


@dataclass
class _Kept:
    """What the screening run of a call has left."""

    recordings: list[tuple[list[object], Recording]] = field(default_factory=list)
    need: Need | None = None  # for more time
    spent: TimeSpent | None = None
    paired: PairedLaunches | None = None
    preparing: dict[bytes, Recording] = field(default_factory=dict)  # launches, by preparation.identity
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
        self._deadline = math.inf  # of launches that are not told again
        self._differs = False  # from the screening run, in what is measured
        self._shared = False  # whether the session's budget is what limits the call

    @property
    def screening(self) -> bool:
        """Whether the call measures for its screening share alone."""
        return self._pool.screening

    def max_time(self, ceiling: float) -> float:
        """The seconds that the call may measure from now on, those of its screening run included."""
        pool, before = self._pool, 0.0
        if pool.seconds is None:
            return ceiling
        if self.before is not None and self.before.recordings:
            before = self.before.recordings[-1][1].elapsed
            given = before + pool.dealt(self._place)
        else:
            share = pool.share(self._begun) - (pool.now() - self._begun)
            given = share / SCREENING if pool.screening else share
        self._shared = given < ceiling
        given = min(ceiling, max(_LEAST_SECONDS, given))
        self._deadline = pool.now() + given * pool.turns - before + pool.starts_of(self.before)
        return given

    def rest(self, max_time: float, spent: float) -> float:
        """The seconds for a measuring beside another reference, when as many of ``max_time`` are spent."""
        if self._pool.seconds is None:
            return max(max_time - spent, max_time / 2)
        self._pool.settled()
        return max(_LEAST_SECONDS, min(max_time, self._deadline - self._pool.now()))

    def limited(self, budget: Budget, recording: Recording, max_time: float) -> Budget:
        """The budget of a measuring, whose screening ends no earlier than in its first run."""
        screening = budget.screening / budget.max_time * max_time
        budget = replace(budget, max_time=max_time, screening=screening, shared=self._shared)
        if self.screening:
            recording.deadline = min(budget.screening, budget.max_time * SCREENING)
            return replace(budget, screening=recording.deadline)
        if recording.first is None:  # nothing is told again
            within = max(_LEAST_SECONDS, min(max_time, self._deadline - self._pool.now()))
            budget = replace(budget, max_time=within, screening=budget.screening / max_time * within)
        first = recording.first or budget.first
        return replace(budget, screening=max(budget.screening, recording.deadline), first=first)

    def looked(
        self, recording: Recording, results: Sequence[Result], look: Look, made: int, *, settles: bool = False
    ) -> bool:
        """Note where a measuring stands when its judge has looked at ``made`` launches; whether others need more."""
        self._round_seconds = look.round_seconds
        if recording.plans is None or recording.replaying or not (self.screening or self._shared):
            return False
        from pytest_ddpperf.run.dealing import Aim, need_of

        need = need_of(results, look, made, recording.plans.diagnosis_seconds, settles=settles)
        if self.screening:
            recording.first = recording.first or made
            recording.elapsed = look.elapsed
            self.kept.need = need
            return False
        if self.before is None or need.aim < Aim.PROVE or settles:
            return False
        self.before.need = replace(need, wanted=need.least)
        return self._pool.lacks

    def preparing(self, identity: Callable[[], bytes]) -> Recording:
        """A preparing launch: that of the screening run, if it found out the same."""
        if self.before is not None:
            if (known := self.before.preparing.get(identity())) is not None:
                return known.again()
            self._differs = True
        recording = Recording(self._pool.now, kept=self.screening)
        if self.screening:
            self.kept.preparing[identity()] = recording
        return recording

    def launching(self) -> AbstractContextManager[None]:
        """Around launches, which the second run does not make again."""
        return self._pool.launching()

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
        if self._shared and not self.screening and made < wanted:
            self._pool.short.append((wanted - made) * self._round_seconds)

    def recording(self, variants: Sequence[Variant]) -> Recording:
        """The next measuring of the call: that of the screening run, if the same benchmarks were measured there."""
        benchmarks: list[object] = [(each.identity_fields, each.of_reference) for each in variants]
        before = [] if self.before is None else self.before.recordings[self._recorded : self._recorded + 1]
        self._recorded += 1
        if before and before[0][0] == benchmarks and not self._differs:
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
        self.turns = turns  # times that each call measures
        self._start: float | None = None
        self._begun = 0  # runs of tests in this pass, and tests that were skipped
        self._calls: dict[str, int] = {}
        self._kept: dict[tuple[str, int], _Kept] = {}
        self._starting = 0.0  # seconds of what the session starts for all tests, and a commit of baselines again
        self._settled = False  # whether such a commit has been started
        self._overheads: dict[str, float] = {}  # seconds besides launches, of tests whose second run has not begun
        self._launching = 0.0  # seconds of this run of a test
        self.short: list[float] = []  # seconds that benchmarks with too few launches lacked

    def start(self, start: Callable[[], None]) -> None:
        """Begin with what the session starts: it counts for none of the tests."""
        self._begin()
        begun = self.now()
        start()
        self._starting = self.now() - begun

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
        if not self.screening:
            self._overheads.pop(test, None)

    @contextmanager
    def screened(self, test: str) -> Iterator[None]:
        """Around the screening run of a test: its seconds besides launches are kept for its second run."""
        begun, self._launching = self.now(), 0.0
        try:
            yield
        finally:
            self._overheads[test] = self.now() - begun - self._launching

    @contextmanager
    def launching(self) -> Iterator[None]:
        """Around launches."""
        begun = self.now()
        try:
            yield
        finally:
            self._launching += self.now() - begun

    def settled(self) -> None:
        """Note that the ranks of a baseline's commit are started."""
        self._settled = True

    def starts_of(self, kept: _Kept | None) -> float:
        """The seconds until the ranks of a baseline's commit have started, if a call settles and they have not."""
        settles = kept is not None and kept.need is not None and kept.need.settles
        return self._starting if settles and not self._settled else 0.0

    def ended(self, test: str) -> None:
        """Note the end of a test that measures; if it was skipped before it began, it leaves its share to others."""
        if test not in self._calls:
            self._calls[test] = 0
            self._begun += 1

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
        else:
            self._kept.pop((test, number - 1), None)  # that call has had its share
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
        left = self.left + (self.now() - begun)
        if self.screening:
            left -= max((self.seconds - self._starting) * (1 - SCREENING), self._second_pass)
        return left / max(1, self._tests - self._begun + 1) / self.turns

    @property
    def _second_pass(self) -> float:
        """The seconds that the second pass takes at least, as far as the tests tell that are screened."""
        least = math.fsum(kept.need.least for kept in self._kept.values() if kept.need is not None)
        known = math.fsum(self._overheads.values()) + least
        return known * self._tests / max(1, len(self._overheads)) + self._start_of_commit

    @property
    def _start_of_commit(self) -> float:
        return max(map(self.starts_of, self._kept.values()), default=0.0)

    def dealt(self, place: tuple[str, int]) -> float:
        """The seconds of a call on top of its screening."""
        return self._shares[place][0] if place in self._shares else 0.0

    @property
    def lacks(self) -> bool:
        """Whether a suspect or a blind benchmark has to do with less than it needs."""
        from pytest_ddpperf.run.dealing import Aim

        return any(need.aim < Aim.PROVE and share < need.wanted for share, need in self._shares.values())

    @property
    def _shares(self) -> dict[tuple[str, int], tuple[float, Need]]:
        """The seconds of each call that is left on top of its screening, and what it needs."""
        from pytest_ddpperf.run.dealing import dealt

        needs = {each: kept.need for each, kept in self._kept.items() if kept.need is not None}
        left = self.left - math.fsum(self._overheads.values()) - self._start_of_commit
        return dict(zip(needs, zip(dealt(left, [*needs.values()]), needs.values(), strict=True), strict=True))

    @property
    def complaint(self) -> str | None:
        """That the budget was too small, and what would do; None where it was not."""
        if not self.short or self.seconds is None:
            return None
        enough = max(self.seconds, self.seconds - self.left) + math.fsum(self.short) / SCREENING
        return (
            f"--ddpperf-budget={self.seconds:g}s had no time for the launches of a first look in "
            f"{format_count(len(self.short), 'call')}; {math.ceil(enough)}s would do"
        )

    def text(self) -> str:
        """Where the session stands: ``screening 7 of 26, 4:10 left of 10:00``; empty where it has no budget."""
        if self.seconds is None:
            return ""
        which = f"screening {self._begun} of {self._tests}, " if self.screening else ""
        return f"{which}{format_clock(max(0.0, self.left))} left of {format_clock(self.seconds)}"
