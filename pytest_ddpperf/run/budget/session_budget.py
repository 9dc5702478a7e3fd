"""The time budget of a session: all tests run in a first pass, and undecided tests run again in a second pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pytest_ddpperf.errors import NotTimed
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.judge.sequential import Interim
from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.run.budget.allocation import Priority, TimeRequest, allocate, request_of
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.units import format_clock, format_count

FIRST_PASS = 0.5  # the first pass's part of the time for measuring; tests that are open (undecided) then have the rest
_LEAST_SECONDS = 1e-3  # a time is above 0


class CallId(NamedTuple):
    """The identity of a call, such as ``ddpperf.check(...)``: its test, and its number among the test's calls."""

    test: str
    number: int


@dataclass
class CallProgress:
    """The results of a call in the first pass, which the second pass continues."""

    kept: dict[str, Any] = field(default_factory=dict)  # by kind: launches of measurings, searches, trainings
    request: TimeRequest | None = None
    spent: TimeSpent = field(default_factory=TimeSpent)


class SessionBudget:
    """The time limits of a session (``--ddpperf-budget``, None for no limit) and of the call that is running."""

    def __init__(self, seconds: float | None, tests: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self.again = False  # whether this is the second pass, of tests that were open after the first
        self.two_passes = False
        self.runs_once = False  # whether the test that runs now never runs again, such as one that does not measure
        self._late: dict[CallId, float] = {}  # seconds that each call lacked before its first interim verdict
        self._seconds, self._tests = seconds, tests  # number of tests that measure
        self._whole = math.inf if seconds is None else seconds
        self._start: float | None = None
        self._unbegun = 0  # calls for which no time was left, not even to count
        self._begun = 0  # runs of tests in the first pass, and tests that were skipped before they began
        self._prepared, self._benchmarks = 0.0, 0  # seconds of counting and verifying, and for how many benchmarks
        self._calls: dict[str, int] = {}
        self._progress: dict[CallId, CallProgress] = {}
        self._shares: dict[CallId, float] = {}  # of the second pass
        self._run_again: set[str] = set()  # tests of the second pass
        self._kept = 0.0  # seconds that the measuring call keeps for its diagnosis
        self._call_begun = self._screening_ends = self._call_ends = 0.0  # moments of the measuring call
        self.before = 0.0  # seconds of the measuring call before it began to measure

    def start(self) -> None:
        """Starts the clock of the session, unless it is running."""
        self._start = self.now() if self._start is None else self._start

    def begin_test(self, test: str) -> None:
        """Records that a run of a test begins; the first run starts the session's clock."""
        self.start()
        self._calls.pop(test, None)
        self.ended(test)

    def ended(self, test: str) -> None:
        """Records that a test has ended; if pytest skipped the test before it began, other tests get its time."""
        if self.again:
            self._run_again.add(test)
        elif test not in self._calls:
            self._calls[test] = 0
            self._begun += 1

    def next_call(self, test: str) -> tuple[CallId, CallProgress]:
        """Returns the id and the progress of a test's next call; raises NotTimed if no time is left."""
        if self.defers and self.left <= 0:
            self._unbegun += 1
            raise NotTimed(f"--ddpperf-budget={self._seconds:g}s left this call no time to count or to time steps")
        number = self._calls[test] = self._calls.get(test, 0) + 1
        call = CallId(test, number)
        return call, self._progress.setdefault(call, CallProgress())

    def forget(self, test: str) -> None:
        """Forgets the results of a test."""
        self._progress = {call: kept for call, kept in self._progress.items() if call.test != test}

    def begin_anew(self, test: str) -> None:
        """Forgets the first attempt of a test that a plugin runs again, as if the test had not begun."""
        self.forget(test)
        self._begun -= self._calls.pop(test, None) is not None

    @property
    def _others(self) -> int:
        """Returns the number of tests that have not begun in the first pass."""
        return max(0, self._tests - self._begun)

    @property
    def _preparing(self) -> float:
        """Estimates the seconds of counting and verification in later tests, from the mean of the benchmarks so far."""
        return self._others * self._prepared / max(1, self._benchmarks)

    def note_preparation(self, begun: float, benchmarks: int) -> None:
        """Records that a call has counted and verified ``benchmarks`` benchmarks since the time ``begun``."""
        if not self.again:
            self._prepared += self.now() - begun
            self._benchmarks += benchmarks

    @property
    def left(self) -> float:
        """The seconds that the session has left; below 0 if more was spent."""
        return self._whole - (0.0 if self._start is None else self.now() - self._start)

    def share(self, call: CallId, settings: Settings, *, begun: float, compared: bool, benchmarks: int) -> bool:
        """Sets the time limit of a call; returns whether it comes from the session's budget, not from ``max_time``.

        In the first pass, benchmarks get equal times. If ``compared``, half of the time is kept to confirm slowdowns.
        """
        now, ends = self.now(), begun + settings.max_time
        if self.again:
            share = self._shares.get(call, 0.0)
        else:
            measuring = max(0.0, self._whole - self._prepared - self._preparing)
            kept = (1 - FIRST_PASS) * measuring if self.two_passes else 0.0
            share = (self.left - kept - self._preparing) * benchmarks / (benchmarks + self._others)
        allotted = math.inf if self._seconds is None else now + share
        self._call_begun, self.before = now, now - begun
        self._call_ends = max(min(ends, allotted), now + _LEAST_SECONDS)
        self._screening_ends = now + (self._call_ends - now) / 2 if compared and not self.defers else self._call_ends
        request = self._progress[call].request if self.again and call in self._progress else None
        self._kept = 0.0 if request is None else request.explains
        return allotted < ends

    @property
    def is_over(self) -> bool:
        """Returns whether all remaining time is needed to count and verify later tests, so that no test is timed."""
        return self.two_passes and not self.again and self.left <= self._preparing

    @property
    def leaves_time(self) -> bool:
        """Returns whether a call that is decided early leaves the rest of its time to other calls."""
        return self.two_passes and not self.runs_once

    @property
    def defers(self) -> bool:
        """Returns whether suspected slowdowns are confirmed in the second pass, not immediately."""
        return self.leaves_time and not self.again

    @property
    def call_left(self) -> float:
        """The seconds until the call's time limit, negative after the limit."""
        return self._call_ends - self.now()

    @property
    def screening(self) -> float:
        """The seconds of the call's first part, which finds suspected slowdowns; the second part confirms them."""
        return self._screening_ends - self._call_begun

    @property
    def elapsed(self) -> float:
        """The seconds that the call has measured in this run of its test."""
        return self.now() - self._call_begun

    def goes_on(self, round_seconds: float, *, screening: bool = False) -> bool:
        """Returns whether a round of launches fits into the call's time or, with ``screening``, into its first part."""
        return self.now() + round_seconds <= (self._screening_ends if screening else self._call_ends - self._kept)

    def over(self, *, last: bool) -> float:
        """Returns the spent fraction of a call's time in all runs of its test. ``last`` counts this run as over."""
        # It limits the false alarms that interim verdicts may cause (alpha spending).
        passed = 1.0 if last else min(1.0, self.elapsed / (self._call_ends - self._call_begun))
        if not self.leaves_time:
            return passed
        return FIRST_PASS + (1 - FIRST_PASS) * passed if self.again else FIRST_PASS * passed

    def holds(self, test: str) -> bool:
        """Returns whether a test is undecided and may run again in the second pass; its reports wait until then."""
        asks = any(call.test == test and kept.request is not None for call, kept in self._progress.items())
        return asks and self.two_passes and not self.again

    def ask(self, call: CallId, results: Sequence[Result], interim: Interim) -> None:
        """Records the time that a call needs in the second pass, in which undecided tests run again.

        Ends the call's time if at most a proof that nothing changed is missing. A second run for this proof continues.
        """
        self._late.setdefault(call, -self.call_left - interim.round_seconds if interim.shared else 0.0)
        if not self.leaves_time:
            return
        request, before = request_of(results, interim), self._progress[call].request
        proves = self.again and before is not None and before.priority is Priority.PROVE
        if (request is None or request.priority is Priority.PROVE) and not proves:
            self._call_ends = min(self._call_ends, self.now())
        if self.defers:
            self._progress[call].request = request

    def leave_untimed(self, call: CallId) -> None:
        """Requests time in the second pass for a call that counted the work of its steps, but did not time steps."""
        if self.defers:
            self._progress[call].request = TimeRequest(priority=Priority.SEE, wanted=self._whole / self._tests)

    def second_pass(self) -> list[str]:
        """Distributes the remaining time among calls that ask for more; returns their tests, the most urgent first."""
        self.again = True
        asking = {
            call: kept.request
            for call, kept in self._progress.items()
            if kept.request is not None and call.test not in self._run_again
        }
        seconds = allocate(self.left, [*asking.values()])
        self._shares = {call: each for call, each in zip(asking, seconds, strict=True) if each > 0}
        by_urgency = sorted(self._shares, key=lambda call: (asking[call].priority, asking[call].wanted))
        return list(dict.fromkeys(call.test for call in by_urgency))

    @property
    def complaint(self) -> str | None:
        """Returns a sentence that names a sufficient budget if this budget was too small; else None."""
        late = [seconds for seconds in self._late.values() if seconds > 0]
        if self._seconds is None or not (late or self._unbegun):
            return None
        wanted = math.fsum(late) / FIRST_PASS + self._unbegun * self._prepared / max(1, self._benchmarks)
        enough = math.ceil(max(self._seconds, self._seconds - self.left) + wanted)
        lacks = [f"left {format_count(len(late), 'ddpperf call')} too few launches for a verdict"] if late else []
        if self._unbegun:
            lacks.append(f"left {format_count(self._unbegun, 'ddpperf call')} no time to count or to time steps")
        at_least = "at least " if self._unbegun else ""
        return f"--ddpperf-budget={self._seconds:g}s {' and '.join(lacks)}; {at_least}{enough}s would do"

    def text(self) -> str:
        """Returns the progress of the session: ``7 of 26, 4:10 left of 10:00``; empty without a limit."""
        if self._seconds is None:
            return ""
        which = "again, " if self.again else f"{self._begun} of {self._tests}, "
        return f"{which}{format_clock(max(0.0, self.left))} left of {format_clock(self._seconds)}"
