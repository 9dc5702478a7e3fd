"""Rounds of launches until the judge stops or the time is spent; then launches that measure phases (a diagnosis)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeAlias

from pytest_ddpperf.errors import DdpperfError, ReferenceFailed, ReferenceStopped, SameCode
from pytest_ddpperf.judge.sequential import MIN_LAUNCHES, Action, Interim, Key
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Health, Launch, Window, timed_window
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.run.budget.session_budget import SessionBudget
from pytest_ddpperf.run.call.planning import LaunchLimits, LaunchPlans, LaunchRunner, Purpose, planned, with_period
from pytest_ddpperf.run.call.time_sheet import slow_starts
from pytest_ddpperf.run.call.variants import Variant, launch_of, measurement_of

Watch: TypeAlias = "Callable[[], Callable[[Window | None], Health | None]]"
"""Begins to watch the machine; returns a function that takes the window of the timed steps and returns the Health."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observer:
    """The callbacks that are called while a benchmark is measured."""

    judge: Callable[[tuple[Measurement, ...], Interim], Action]  # decides how to go on
    looked: Callable[[Interim], None] = lambda _: None  # called after each decision of the judge
    progress: Callable[[int, int, float, float, Launch | None], None] = lambda *_: None
    """Arguments: next launch's number, total, seconds so far, expected seconds, first variant's last launch."""
    watch: Watch = lambda: lambda _: None  # called before a launch; the result after
    grouped: Callable[[int], None] = lambda _: None  # called with the most launches of a side that run together


class Measuring:
    """Measures variants side by side in rounds of launches, and then diagnoses them.

    A round launches every undecided variant once, in random order. Every second round reverses the previous order, so
    that each variant is as often first as last. ``time`` decides whether another round fits. ``earlier``: rounds of an
    earlier run of the test in this session, which are continued.
    """

    def __init__(  # noqa: PLR0917 - each is of another kind
        self,
        variants: Sequence[Variant],
        limits: LaunchLimits,
        run: LaunchRunner,
        observer: Observer,
        time: SessionBudget,
        earlier: Rounds | None = None,
    ) -> None:
        if earlier is None:
            self.rounds = Rounds(variants, planned(variants, limits, run), run, observer.watch)
        else:
            self.rounds = earlier.resumed(variants, run, observer.watch)
        self._limits, self._observer, self._time = limits, observer, time
        self._plans = self.rounds.plans
        self._confirming = self._screened = False
        observer.grouped(max(len({variants[i].key for i in group}) for group in self._plans.groups))

    def measured(self) -> tuple[Measurement, ...]:
        """Runs rounds until the judge stops, or suspects a slowdown that a second run of the test will confirm."""
        rounds = self.rounds
        wanted, least = (0, 0) if rounds.every else (self._limits.settings.launches, MIN_LAUNCHES)
        if rounds.deferred is not None:
            wanted, least = self._confirm(rounds.deferred)
        while True:
            self._launch(wanted, least)
            interim, action = self._judged()
            if action.kind == "stop" or (interim.last and action.kind == "more"):
                return self._diagnosed(interim, action)
            if action.kind == "confirm" and self._time.defers:
                rounds.deferred = action
                return self._measurements()
            wanted, self._screened = rounds.made + action.launches, interim.screened
            if action.kind == "confirm":
                wanted, least = self._confirm(action)

    def _confirm(self, action: Action) -> tuple[int, int]:
        """Begins to confirm suspected slowdowns; returns the wanted and the minimum number of rounds."""
        # A suspicion is no verdict, so confirming goes on even if time is up.
        self._confirming, self.rounds.deferred = True, None
        self.rounds.choose(action.benchmarks)
        return action.launches, max(MIN_LAUNCHES, self.rounds.begin_again(action.suspects))

    def _judged(self) -> tuple[Interim, Action]:
        """Returns the judge's input and the judge's action; judges again with ``last=True`` if no time is left."""
        of_each = {key: part * self._of_all for key, part in self.rounds.parts.items()}
        time, of_all = self._time, self._of_all
        interim = Interim(
            time.elapsed,
            self._round_seconds,
            last=False,
            of_each=of_each,
            final=time.over(last=True),
            shared=self._limits.shared,
            defers=time.defers,
            rounds=int(max(0.0, time.call_left) / of_all) if of_all > 0 else 0,
            diagnosis=self._plans.diagnosis_seconds,
            before=time.before,
        )
        interim = self._in_time(interim, min(of_each.values()))
        while True:
            action = self._observer.judge(self._measurements(), interim)
            self._observer.looked(interim)
            self.rounds.choose(action.benchmarks)
            again = self._in_time(interim)
            if action.kind != "more" or (again.last, again.screened) == (interim.last, interim.screened):
                return interim, action
            interim = again

    def _in_time(self, interim: Interim, seconds: float | None = None) -> Interim:
        """Returns ``interim`` with flags that say whether a round of ``seconds`` (None: as expected) still fits."""
        seconds = self._round_seconds if seconds is None else seconds
        last = interim.last or not self._time.goes_on(seconds)
        confirmable = self._confirming or interim.defers or self._time.goes_on(seconds, screening=True)
        screened = interim.screened or not confirmable
        return replace(interim, last=last, screened=screened, over=self._time.over(last=last))

    def _launch(self, wanted: int, least: int) -> None:
        """Launches until ``wanted`` rounds exist. If time runs out earlier, it stops once ``least`` rounds exist."""
        rounds, screening = self.rounds, not (self._confirming or self._screened)
        while rounds.made < wanted and (
            rounds.made < least or self._time.goes_on(self._round_seconds, screening=screening)
        ):
            expected = self._time.elapsed + self._round_seconds * (wanted - rounds.made)
            self._observer.progress(rounds.made + 1, wanted, self._time.elapsed, expected, rounds.last)
            rounds.launch(self._time.now)

    @property
    def _round_seconds(self) -> float:
        """The expected seconds of the next round, from previous rounds; before any round, from trial launches."""
        return self._of_all * self.rounds.part()

    @property
    def _of_all(self) -> float:
        durations = self.rounds.durations
        return median(durations) if durations else math.fsum(self._plans.seconds)

    def _diagnosed(self, interim: Interim, action: Action) -> tuple[Measurement, ...]:
        """Runs a diagnosis, or only a part of it if time is short; returns the measurements with its results."""
        self.rounds.choose(None)
        fits, known = self._plans.diagnosis_seconds <= self._time.call_left, self.rounds.diagnosed
        if known is Purpose.DIAGNOSIS:
            return self._measurements()
        purpose = Purpose.DIAGNOSIS if action.explain or fits else Purpose.GROWTH
        findings = self.rounds.findings
        findings[:] = [each for each in findings if each.code not in {"no_time_to_diagnose", "not_diagnosed"}]
        if purpose is Purpose.GROWTH:
            early = self._time.leaves_time and not interim.last  # the rest of the call's time is for other calls
            setting = "--ddpperf-budget" if self._limits.shared or early else "max_time"
            findings.append(Finding("no_time_to_diagnose", {"setting": setting}))
            if known or (self._limits.shared and not self._time.goes_on(self._round_seconds)):
                self._look_at_diagnoses(interim)
                return self._measurements()
        try:
            self.rounds.diagnose(purpose)
            told = self._look_at_diagnoses(interim)
            if told.kind == "confirm":
                findings.append(_suspected(told.suspects, 1))
                self.rounds.diagnose(purpose)
                self._look_at_diagnoses(interim)
        except DdpperfError as error:
            if not action.worse and not isinstance(error, (ReferenceFailed, ReferenceStopped, SameCode)):
                raise
            findings.append(Finding("not_diagnosed", {"reason": error.summary}))
            self.rounds.forget_diagnoses()  # the results of the first were not confirmed
            self._look_at_diagnoses(interim)
        return self._measurements()

    def _look_at_diagnoses(self, interim: Interim) -> Action:
        interim = replace(interim, elapsed=self._time.elapsed, diagnosed=True)
        action = self._observer.judge(self._measurements(), interim)
        self._observer.looked(interim)
        return action

    def _measurements(self) -> tuple[Measurement, ...]:
        """Returns the measurements, with a finding if time was up before the least number of launches."""
        made, limits = self.rounds.made, self._limits
        findings = list(self.rounds.findings)
        if made < limits.few and not limits.shared:
            findings.append(Finding("few_launches", {"made": made, "wanted": limits.settings.launches}))
        findings += [] if limits.shared else slow_starts(self.rounds.launches, limits.settings.steps)
        return self.rounds.measurements(findings)


def _suspected(suspects: Sequence[str], made: int) -> Finding:
    return Finding("suspected", {"metrics": tuple(suspects), "launches": made})


class Rounds:
    """For each variant, the timed launches, on which the verdict is based, and the launches of the diagnosis."""

    def __init__(self, variants: Sequence[Variant], plans: LaunchPlans, run: LaunchRunner, watch: Watch) -> None:
        self.plans = plans
        self.findings = list(plans.findings)  # on all variants: of planning, and of diagnosing
        self.deferred: Action | None = None  # the confirmation of suspects that the first pass leaves to the second one
        self.diagnosed: Purpose | None = None  # None if nothing was diagnosed
        self.durations: list[float] = []  # of rounds, scaled as if each had launched every variant
        self.every = 0  # rounds, including those before a suspicion
        self.made = 0  # rounds since the beginning, or since the suspicion that is being confirmed
        self._fresh_from = [0] * len(variants)
        self._chosen = frozenset(range(len(variants)))
        self._remarks: list[list[Finding]] = [[] for _ in variants]
        self._variants = variants
        self._run = run
        self._watch = watch
        self._draw = random.Random(0)  # noqa: S311 - an order is no secret
        self._order: list[int] = []
        self._launches: list[list[Launch]] = [[] for _ in variants]
        self._diagnoses: list[list[Launch]] = [[] for _ in variants]

    def resumed(self, variants: Sequence[Variant], run: LaunchRunner, watch: Watch) -> Rounds:
        """Returns this object, prepared to continue when the test runs again."""
        self._variants, self._run, self._watch = variants, run, watch
        self.choose(None)
        return self

    def launch(self, now: Callable[[], float]) -> None:
        """Launches every variant that continues, in random order; every second round reverses the previous order."""
        begun, launched = now(), self._chosen
        self._order = self._arranged(self._order[::-1] if self.every % 2 == 1 else ())
        for group in self._in_order([i for i in self._order if i in launched]):
            health, launches = self._watch(), list[tuple[int, Launch]]()
            try:
                launches = self._launched(group, Purpose.TIMES, self.every)
            finally:  # ends the watch, whatever became of the launch
                seen = health(timed_window([launch for _, launch in launches]))
            for i, launch in launches:
                self._launches[i].append(replace(launch, health=seen))
        self.every += 1
        self.made += 1
        self.durations.append((now() - begun) / self.part())

    def diagnose(self, purpose: Purpose) -> None:
        """Launches a diagnosis of each variant; replaces earlier diagnoses."""
        for group in self._in_order(self._arranged()):
            for i, launch in self._launched(group, purpose, 0):
                self._diagnoses[i] = [launch]
        self.diagnosed = purpose

    def _launched(self, group: Sequence[int], purpose: Purpose, number: int) -> list[tuple[int, Launch]]:
        plans = {i: self.plans.plans[i] for i in group}
        if purpose is Purpose.DIAGNOSIS:
            keys = [variant.key for variant in self._variants]
            sides = {i: [j for j, key in enumerate(keys) if key == keys[i]] for i in group}  # one period for both
            plans = {i: with_period(plan, [self._launches[j] for j in sides[i]]) for i, plan in plans.items()}
        outcomes = self._run([(self._variants[i], plan) for i, plan in plans.items()], purpose)
        return [(i, launch_of(number, *outcome)) for i, outcome in zip(group, outcomes, strict=True)]

    def _arranged(self, order: Sequence[int] = ()) -> list[int]:
        """Returns the indices of variants in ``order`` (default: random), with each reference next to its candidate."""
        order = order or self._draw.sample(range(len(self._variants)), len(self._variants))
        keys = [self._variants[i].key for i in order]
        return sorted(order, key=lambda i: (keys.count(key := self._variants[i].key) == 1, keys.index(key)))

    def _in_order(self, order: Sequence[int]) -> Iterable[list[int]]:
        """Returns the groups of variants to launch together; both the groups and their members follow ``order``."""
        group_of = {i: group for group in self.plans.groups for i in group}
        ordered: dict[tuple[int, ...], list[int]] = {}
        for i in order:
            ordered.setdefault(group_of[i], []).append(i)
        return ordered.values()

    def part(self, launched: Collection[int] | None = None) -> float:
        """Returns a round's duration as a fraction of a round of all variants; ``launched``: the round's variants."""
        launched = self._chosen if launched is None else launched
        return math.fsum(self.plans.seconds[i] for i in launched) / math.fsum(self.plans.seconds)

    @property
    def parts(self) -> dict[Key, float]:
        """The duration of each benchmark's launches in a round, as a fraction of a round of all variants."""
        keys = [variant.key for variant in self._variants]
        return {key: self.part([i for i, other in enumerate(keys) if other == key]) for key in dict.fromkeys(keys)}

    @property
    def launches(self) -> list[Launch]:
        """The launches of all variants."""
        return [launch for of_variant in self._launches for launch in of_variant]

    @property
    def last(self) -> Launch | None:
        """The newest launch of the first variant; None before the first launch."""
        return next(iter(self._launches[0][-1:]), None)

    def choose(self, keys: Collection[Key] | None) -> None:
        """Limits later rounds to the benchmarks ``keys``, with their references; None means all benchmarks."""
        self._chosen = frozenset(i for i, one in enumerate(self._variants) if keys is None or one.key in keys)

    def begin_again(self, suspects: Sequence[str]) -> int:
        """Lets only later launches confirm that the metrics ``suspects`` got worse; returns how many preceded."""
        seen = max(len(self._launches[i]) for i in self._chosen)
        for i in self._chosen:
            self._fresh_from[i] = len(self._launches[i])
            self._remarks[i].append(_suspected(suspects, len(self._launches[i])))
        self.made = 0
        return seen

    def forget_diagnoses(self) -> None:
        """Drops the results of diagnoses."""
        self._diagnoses, self.diagnosed = [[] for _ in self._variants], None

    def measurements(self, findings: Sequence[Finding]) -> tuple[Measurement, ...]:
        """Returns the measurement of each variant from its launches."""
        interleaved = {i for group in self.plans.groups if len(group) > 1 for i in group}
        return tuple(
            measurement_of(
                variant,
                self.plans.plans[i],
                self._launches[i],
                (*self._remarks[i], *findings),
                interleaved=i in interleaved,
                diagnoses=self._diagnoses[i],
                fresh_from=self._fresh_from[i],
            )
            for i, variant in enumerate(self._variants)
        )
