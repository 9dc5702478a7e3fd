"""Rounds of launches until a judge is content or the time is spent; then launches that diagnose."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from statistics import median

from pytest_ddpperf.errors import DdpperfError, ReferenceFailed, ReferenceStopped
from pytest_ddpperf.judge.sequential import MIN_LAUNCHES, Key, Look, Next
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch, timed_window
from pytest_ddpperf.records.measurement import Measurement
from pytest_ddpperf.run.planning import Budget, LaunchPlans, LaunchRunner, Purpose, planned
from pytest_ddpperf.run.recording import Recording, Watch
from pytest_ddpperf.run.time_sheet import slow_starts
from pytest_ddpperf.run.variant import Variant, launch_of, measurement_of


class End(Enum):
    """What measuring ends with."""

    SCREENED = "the screening"
    JUDGED = "a verdict"
    DIAGNOSED = "launches that diagnose"


@dataclass(frozen=True, kw_only=True, slots=True)
class Observer:
    """Who looks on while a benchmark runs."""

    judge: Callable[[tuple[Measurement, ...], Look], Next]  # decides how to go on
    progress: Callable[[int, int, float, float, Launch | None], None] = lambda *_: None
    """Told the next launch, of so many, the seconds so far and in all, and the last launch of the first variant."""
    clock: Callable[[], float] = time.monotonic
    watch: Watch = lambda: lambda _: None  # called before a launch; the result after
    grouped: Callable[[int], None] = lambda _: None  # told how many launches of a side run at the same time, at most
    end: End = End.DIAGNOSED


def measure(
    variants: Sequence[Variant],
    budget: Budget,
    run: LaunchRunner,
    observer: Observer,
    recording: Recording | None = None,
) -> tuple[Measurement, ...]:
    """The variants measured side by side: each round launches what goes on once, in random order.

    Every second round reverses the order of the one before, so that each variant comes first as often as last. The plan
    is fixed before the first round. When the judge has come to a verdict, a round that diagnoses follows.
    """
    start = observer.clock()
    plans = (
        planned(variants, budget, run)
        if recording is None
        else recording.planned(lambda: planned(variants, budget, run))
    )
    observer.grouped(max(len({variants[i].key for i in group}) for group in plans.groups))
    sets = {} if recording is None else recording.sets
    rounds = _Rounds(variants, plans, run, observer.watch, sets)
    return _Measuring(budget, observer, plans, rounds, start, recording=recording).measured()


class _Measuring:
    """One measuring, from its first round to its diagnosis."""

    def __init__(
        self,
        budget: Budget,
        observer: Observer,
        plans: LaunchPlans,
        rounds: _Rounds,
        start: float,
        *,
        recording: Recording | None,
    ) -> None:
        self._recording = recording
        self._budget = budget
        self._observer = observer
        self._plans = plans
        self._rounds = rounds
        self._start = start
        self._findings = list(plans.findings)
        self._measuring = 0.0  # seconds of rounds
        self._durations: list[float] = []  # of rounds, as if each had launched every variant
        self._confirming = False
        self._screened = False

    def measured(self) -> tuple[Measurement, ...]:
        """The measurements when the judge is content."""
        wanted, least = self._budget.first or self._budget.launches, MIN_LAUNCHES
        while True:
            self._launch(wanted, least)
            look, verdict = self._judged()
            made, end = self._rounds.made, self._observer.end
            if end is End.SCREENED and (verdict.action != "more" or look.last or look.screened):
                return self._measurements()
            if verdict.action == "stop" or (look.last and verdict.action == "more"):
                if end is End.JUDGED:
                    return self._measurements()
                return self._diagnosed(look, verdict)
            wanted, self._screened = made + verdict.launches, look.screened
            if verdict.action == "confirm":  # even when time is up: a suspect is never the verdict
                # No fewer launches than made it suspicious.
                least = max(MIN_LAUNCHES, self._rounds.begin_again(verdict.suspects))
                wanted, self._confirming = verdict.launches, True

    def _judged(self) -> tuple[Look, Next]:
        """The look at the launches so far and the verdict. Where what it asks for takes too long, it is asked again."""
        of_each = {key: part * self._of_all for key, part in self._rounds.parts.items()}
        elapsed, round_seconds, shortest = self._elapsed, self._round_seconds, min(of_each.values())
        look = self._in_time(Look(elapsed, round_seconds, last=False, of_each=of_each), shortest)
        look = look if self._recording is None else self._recording.as_looked(look, self._rounds.every)
        while True:
            verdict = self._observer.judge(self._measurements(), look)
            self._rounds.go_on(verdict.going_on)
            again = self._in_time(look)
            if verdict.action != "more" or again == look:
                return look, verdict
            look = again

    def _in_time(self, look: Look, seconds: float | None = None) -> Look:
        """The look with what there is no time for: by the seconds of the next round, unless others are given."""
        last = look.last or not self._goes_on(self._budget.max_time, seconds)
        screened = look.screened or (not self._confirming and not self._goes_on(self._budget.screening, seconds))
        return replace(look, last=last, screened=screened)

    def _launch(self, wanted: int, least: int) -> None:
        """Launches rounds until there are ``wanted``, or at least ``least`` if there is no time for more."""
        rounds, budget = self._rounds, self._budget
        deadline = budget.max_time if self._confirming or self._screened else budget.screening
        while rounds.made < wanted and (rounds.made < least or self._goes_on(deadline)):
            begun = self._observer.clock()
            expected = self._elapsed + self._round_seconds * (wanted - rounds.made)
            self._observer.progress(rounds.made + 1, wanted, self._elapsed, expected, rounds.last)
            rounds.launch()
            took = self._observer.clock() - begun
            self._measuring += took
            self._durations.append(took / rounds.part(rounds.every - 1))

    @property
    def _elapsed(self) -> float:
        return self._observer.clock() - self._start

    @property
    def _round_seconds(self) -> float:
        """What another round will take: as long as those before it or, before any, as the pilots."""
        return self._of_all * self._rounds.part()

    @property
    def _of_all(self) -> float:
        return median(self._durations) if self._durations else math.fsum(self._plans.seconds)

    def _fits(self, deadline: float, seconds: float | None = None) -> bool:
        """Whether another round does, or one of so many seconds."""
        return self._elapsed + (self._round_seconds if seconds is None else seconds) <= deadline

    def _goes_on(self, deadline: float, seconds: float | None = None) -> bool:
        """Whether it fits, or was made in an earlier run: all of these are told again."""
        return (self._recording is not None and self._recording.replaying) or self._fits(deadline, seconds)

    def _diagnosed(self, look: Look, verdict: Next) -> tuple[Measurement, ...]:
        """The measurements with launches that diagnose: in full if asked for or in time, else growth alone.

        Of the budget of a session, growth has no more than is left either.
        """
        self._rounds.go_on(None)
        spent = self._elapsed + self._plans.diagnosis_seconds > self._budget.max_time
        purpose = Purpose.GROWTH if verdict.briefly or (spent and not verdict.explain) else Purpose.DIAGNOSIS
        if purpose is Purpose.GROWTH:
            self._findings.append(self._no_time())
        if purpose is Purpose.GROWTH and self._budget.shared and not self._fits(self._budget.max_time):
            self._look_at_diagnoses(look)
            return self._measurements()
        try:
            self._rounds.diagnose(purpose)
            told = self._look_at_diagnoses(look)
            if told.action == "confirm":
                self._findings.append(_suspected(told.suspects, 1))
                self._rounds.diagnose(purpose)
                self._look_at_diagnoses(look)
        except DdpperfError as error:
            if not verdict.worse and not isinstance(error, (ReferenceFailed, ReferenceStopped)):
                raise
            self._findings.append(Finding("not_diagnosed", {"reason": error.headline}))
            self._rounds.forget_diagnoses()  # what one of them told was still to be confirmed
            self._look_at_diagnoses(look)
        return self._measurements()

    def _no_time(self) -> Finding:
        """That there was no time to diagnose, and how much may be enough, where this measuring has all of max_time."""
        budget, (each, diagnosing) = self._budget, self._plans.unhurried
        measuring, of_all = self._measuring, self._of_all
        rounds = max(measuring * max(1.0, each / of_all), budget.launches * max(each, of_all))
        needed = self._elapsed - measuring + rounds + max(diagnosing, self._plans.diagnosis_seconds)
        known = not budget.shared
        setting = "budget" if budget.shared else "max_time"
        now, enough = (budget.max_time, math.ceil(needed)) if known else (None, None)
        return Finding("no_time_to_diagnose", {"setting": setting, "max_time": now, "enough": enough})

    def _look_at_diagnoses(self, look: Look) -> Next:
        return self._observer.judge(self._measurements(), replace(look, elapsed=self._elapsed, diagnosed=True))

    def _measurements(self) -> tuple[Measurement, ...]:
        """The measurements, with a remark where the time was up before the launches that a first look takes."""
        made, budget = self._rounds.made, self._budget
        findings = list(self._findings)
        if made < budget.few and not budget.shared:
            enough = math.ceil(self._elapsed + self._round_seconds * (budget.launches - made))
            wanted, now = budget.launches, budget.max_time
            findings.append(
                Finding("few_launches", {"made": made, "wanted": wanted, "max_time": now, "enough": enough})
            )
        findings += [] if budget.shared else slow_starts(self._rounds.launches, budget)
        return self._rounds.measurements(findings)


def _suspected(suspects: Sequence[str], made: int) -> Finding:
    return Finding("suspected", {"metrics": tuple(suspects), "launches": made})


class _Rounds:
    """The launches that a verdict will rest on, and those that diagnose, for each variant."""

    def __init__(
        self,
        variants: Sequence[Variant],
        plans: LaunchPlans,
        run: LaunchRunner,
        watch: Watch,
        sets: dict[int, frozenset[int]],
    ) -> None:
        self.every = 0  # those before a suspicion among them
        self.made = 0  # since the beginning; since a metric looked worse, of what is to be confirmed
        self._confirming = False
        self._fresh_from = [0] * len(variants)
        self._going_on = frozenset(range(len(variants)))
        self._sets = sets  # of the variants that each round launches, the same in all runs of a test
        self._remarks: list[list[Finding]] = [[] for _ in variants]
        self._variants = variants
        self._plans = plans
        self._run = run
        self._watch = watch
        self._draw = random.Random(0)  # noqa: S311 - an order is no secret
        self._order: list[int] = []
        self._launches: list[list[Launch]] = [[] for _ in variants]
        self._diagnoses: list[list[Launch]] = [[] for _ in variants]

    def launch(self) -> None:
        """One launch more of what goes on, in random order: in every second round that of the last one reversed."""
        launched = self._sets.setdefault(self.every, self._going_on)
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
        self.made += not self._confirming or self._going_on <= launched

    def diagnose(self, purpose: Purpose) -> None:
        """Launches each variant to diagnose, in place of an earlier such launch."""
        for group in self._in_order(self._arranged()):
            for i, launch in self._launched(group, purpose, 0):
                self._diagnoses[i] = [launch]

    def _launched(self, group: Sequence[int], purpose: Purpose, number: int) -> list[tuple[int, Launch]]:
        outcomes = self._run([(self._variants[i], self._plans.plans[i]) for i in group], purpose)
        return [(i, launch_of(number, *outcome)) for i, outcome in zip(group, outcomes, strict=True)]

    def _arranged(self, order: Sequence[int] = ()) -> list[int]:
        """This order, or a random one: the sides of a benchmark follow each other, and what has one side comes last."""
        order = order or self._draw.sample(range(len(self._variants)), len(self._variants))
        keys = [self._variants[i].key for i in order]
        return sorted(order, key=lambda i: (keys.count(key := self._variants[i].key) == 1, keys.index(key)))

    def _in_order(self, order: Sequence[int]) -> Iterable[list[int]]:
        """The groups in this order, in which the first of a group has the first turn."""
        group_of = {i: group for group in self._plans.groups for i in group}
        ordered: dict[tuple[int, ...], list[int]] = {}
        for i in order:
            ordered.setdefault(group_of[i], []).append(i)
        return ordered.values()

    def part(self, number: int | None = None) -> float:
        """The part of a round of all variants that the round of this number took, or the next one will."""
        launched = self._going_on if number is None else self._sets[number]
        return math.fsum(self._plans.seconds[i] for i in launched) / math.fsum(self._plans.seconds)

    @property
    def parts(self) -> dict[Key, float]:
        """That of each benchmark."""
        parts: dict[Key, float] = {}
        for variant, seconds in zip(self._variants, self._plans.seconds, strict=True):
            parts[variant.key] = parts.get(variant.key, 0.0) + seconds / math.fsum(self._plans.seconds)
        return parts

    @property
    def launches(self) -> list[Launch]:
        """Those of all variants."""
        return [launch for of_variant in self._launches for launch in of_variant]

    @property
    def last(self) -> Launch | None:
        """The last one of the first variant."""
        return next(iter(self._launches[0][-1:]), None)

    def go_on(self, keys: Collection[Key] | None) -> None:
        """Launch both sides of these benchmarks from now on; None for all."""
        every = enumerate(self._variants)
        self._going_on = frozenset(i for i, variant in every if keys is None or variant.key in keys)

    def begin_again(self, suspects: Sequence[str]) -> int:
        """Counts from here: fresh launches of what goes on are to confirm what those until now made suspect.

        Gives how many these were.
        """
        self._confirming = True
        seen = max(len(self._launches[i]) for i in self._going_on)
        for i in self._going_on:
            self._fresh_from[i] = len(self._launches[i])
            self._remarks[i].append(_suspected(suspects, len(self._launches[i])))
        self.made = 0
        return seen

    def forget_diagnoses(self) -> None:
        """Drops what diagnoses have told."""
        self._diagnoses = [[] for _ in self._variants]

    def measurements(self, findings: Sequence[Finding]) -> tuple[Measurement, ...]:
        """What the launches of each variant amount to."""
        interleaved = {i for group in self._plans.groups if len(group) > 1 for i in group}
        return tuple(
            measurement_of(
                variant,
                plan,
                launches,
                (*self._remarks[i], *findings),
                turns=i in interleaved,
                diagnoses=self._diagnoses[i],
                fresh_from=self._fresh_from[i],
            )
            for i, (variant, plan, launches) in enumerate(
                zip(self._variants, self._plans.plans, self._launches, strict=True)
            )
        )
