"""The budget of a session: what is left of it, and what each call of a verb may take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.units import format_clock, format_count

if TYPE_CHECKING:
    from pytest_ddpperf.against.paired_launches import PairedLaunches
    from pytest_ddpperf.records.batch_size import Search
    from pytest_ddpperf.records.convergence import Convergence
    from pytest_ddpperf.run.dealing import Need
    from pytest_ddpperf.run.recording import Recording

SCREENING = 0.65  # of what is left of the budget when all is prepared, at most (benchmarks/decision.py)


UNSUSPECTED = 4  # tests without a suspect that a guess of how many are still to come begins with


class Pass(IntEnum):
    """The passes over a suite with a budget. All before the last are silent; without these there is the last alone."""

    PREPARE = 1  # ends before the first launch that times
    SCREEN = 2
    CONFIRM = 3  # or clear suspects, so that the last pass deals out what they do not need
    LAST = 4


@dataclass
class Kept:
    """What the run of a call in one pass has left to the next."""

    recordings: list[tuple[list[object], Recording]] = field(default_factory=list)
    need: Need | None = None  # for more time
    sides: int = 0  # of its benchmarks
    spent: TimeSpent | None = None
    paired: PairedLaunches | None = None
    preparing: dict[bytes, Recording] = field(default_factory=dict)  # launches, by preparation.identity
    search: Search | None = None  # of a call that looks for the largest batch
    convergence: Convergence | None = None  # of a call that trains to the end

    @property
    def to_confirm(self) -> bool:
        """Whether it has a suspect that fresh launches beside the same reference have to confirm."""
        from pytest_ddpperf.run.dealing import Aim

        return self.need is not None and self.need.aim is Aim.CONFIRM


class Pool:
    """What is left of the budget of a session; ``seconds`` is None where it has none. ``tests`` measure."""

    def __init__(
        self, seconds: float | None, tests: int, clock: Callable[[], float] = time.monotonic, turns: int = 1
    ) -> None:
        self.seconds = seconds
        self.now = clock
        self.current = Pass.LAST
        self._tests = tests
        self.turns = turns  # times that each call measures
        self._start: float | None = None
        self._begun = 0  # runs of tests in this pass, and tests that were skipped
        self._calls: dict[str, int] = {}
        self._kept: dict[tuple[str, int], Kept] = {}
        self._unscreened: set[str] = set()  # tests that run in the last pass alone
        self._overheads: dict[str, float] = {}  # seconds besides launches, of tests whose last run has not begun
        self._launching = 0.0  # seconds of this run of a test
        self._to_share = 0.0  # seconds that were left when screening began
        self.short: list[float] = []  # seconds that calls lacked for the launches that are made in any case

    def start(self, start: Callable[[], None]) -> None:
        """Begin with what the session starts: it counts for none of the tests."""
        self._begin()
        start()

    def leave_out(self, tests: Iterable[str]) -> None:
        """Keep a share of the last pass for each of these tests, which no other pass runs."""
        self._unscreened.update(tests)

    def begin_pass(self, begun: Pass) -> None:
        """Begin a pass over the tests."""
        self._begin()
        if begun < Pass.CONFIRM:
            self._to_share = self.left
        self.current = begun
        self._begun = 0
        self._calls.clear()

    def _begin(self) -> None:
        self._start = self.now() if self._start is None else self._start

    def begin_test(self, test: str) -> None:
        """Begin a run of a test."""
        self._begin()
        self._begun += 1
        self._calls[test] = 0
        if not self.silent:
            self._overheads.pop(test, None)

    @property
    def silent(self) -> bool:
        """Whether this is a pass before the last, which tells nothing."""
        return self.current is not Pass.LAST

    def is_suspect(self, test: str) -> bool:
        """Whether a call of a test has a suspect that fresh launches beside the same reference have to confirm."""
        return any(kept.to_confirm for (name, _), kept in self._kept.items() if name == test)

    @contextmanager
    def screened(self, test: str) -> Iterator[None]:
        """Around a run of a test before its last: its seconds besides launches are kept for its last run."""
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

    def ended(self, test: str) -> None:
        """Note the end of a test that measures; if it was skipped before it began, it leaves its share to others."""
        if test not in self._calls:
            self._calls[test] = 0
            self._begun += 1

    def end_test(self, test: str) -> None:
        """Forget what the silent runs of a test have left; nothing before the last pass."""
        if not self.silent:
            self._kept = {place: kept for place, kept in self._kept.items() if place[0] != test}

    def next_call(self, test: str) -> tuple[int, Kept | None]:
        """The number of the next call of a test, and what the pass before has left of it."""
        number = self._calls[test] = self._calls.get(test, 0) + 1
        before = self._kept.get((test, number))
        if not self.silent:
            self._kept.pop((test, number - 1), None)  # that call has had its share
        return number, before

    def keep(self, test: str, number: int, kept: Kept) -> None:
        """Keep what a call leaves to the next pass."""
        self._kept[test, number] = kept

    @property
    def left(self) -> float:
        """Seconds; below 0 where more was spent."""
        elapsed = 0.0 if self._start is None else self.now() - self._start
        return (math.inf if self.seconds is None else self.seconds) - elapsed

    def share(self, begun: float, place: tuple[str, int], sides: int = 1) -> float:
        """The seconds of a call that began then, where all sides of the benchmarks that are left have as many."""
        if self.seconds is None:
            return math.inf
        left = self.left + (self.now() - begun)
        if self.current < Pass.CONFIRM:
            left -= max(self._to_share * (1 - SCREENING), self._last_pass)
        others = sum(max(1, kept.sides) for (test, _), kept in self._kept.items() if test not in self._calls)
        if others:
            others += len(self._waiting - {place[0]})
        else:  # nothing was prepared before
            sides, others = 1, max(0, self._tests - self._begun)
        return left * sides / (sides + others + sides * self._later_calls(*place)) / self.turns

    def _later_calls(self, test: str, number: int) -> int:
        """The calls of a test after one, if it has as many as the same test with other parameters."""
        function = test.partition("[")[0]
        alike = (calls for name, calls in self._calls.items() if name.partition("[")[0] == function)
        return max(number, *alike) - number

    @property
    def _waiting(self) -> set[str]:
        """The tests that no pass has screened and whose turn is still to come."""
        return self._unscreened - self._calls.keys()

    @property
    def _last_pass(self) -> float:
        """The seconds that the last pass takes at least, as far as the tests tell that are screened.

        A suspect by chance says little of the tests to come: they are expected to need what it needs in a few times
        as many tests.
        """
        needs = [(test, kept) for (test, _), kept in self._kept.items() if kept.need is not None]
        screened = len({test for test, _ in needs})
        to_confirm = math.fsum(_least(kept) for _, kept in needs if kept.to_confirm)
        others = math.fsum(_least(kept) for _, kept in needs if not kept.to_confirm) / max(1, screened) * self._tests
        expected = to_confirm * (1 + max(0, self._tests - screened) / (screened + UNSUSPECTED))
        besides = math.fsum(self._overheads.values()) / max(1, len(self._overheads))
        return expected + others + self._tests * besides

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
        left = self.left - math.fsum(self._overheads.values())
        screened, waiting = len({test for test, _ in needs}), len(self._waiting)
        left *= screened / max(1, screened + waiting)
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
        words = {Pass.PREPARE: "preparing", Pass.SCREEN: "screening", Pass.CONFIRM: "confirming"}
        number = "" if self.current is Pass.CONFIRM else f" {self._begun} of {self._tests}"
        which = f"{words[self.current]}{number}, " if self.silent else ""
        return f"{which}{format_clock(max(0.0, self.left))} left of {format_clock(self.seconds)}"


def _least(kept: Kept) -> float:
    """The seconds that a call needs in any case."""
    return 0.0 if kept.need is None else kept.need.least
