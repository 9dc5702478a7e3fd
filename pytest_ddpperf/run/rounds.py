"""Rounds of launches, until a judge is content or the time is spent; then, once, launches that tell why."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pytest_ddpperf.errors import DdpperfError, ReferenceFailed, ReferenceStopped
from pytest_ddpperf.judge.sequential import MIN_LAUNCHES, Look, Next
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Measurement, Plan
from pytest_ddpperf.run.groups import Groups, together
from pytest_ddpperf.run.pilot import FEW_LAUNCHES, Piloted, pilot
from pytest_ddpperf.run.terms import (
    DIAGNOSIS,
    ONLY_GROWTH,
    ONLY_TIMES,
    Budget,
    Costs,
    ExtraPasses,
    LaunchRunner,
    Observer,
    Progress,
)
from pytest_ddpperf.run.variant import Variant, launch_of, measurement_of


def measure(
    variants: Sequence[Variant], budget: Budget, run: LaunchRunner, observer: Observer
) -> tuple[Measurement, ...]:
    """The variants measured side by side: each round launches every variant once, in random order.

    Every second round reverses the order of the one before, so that each variant comes first as often as last. The plan
    is fixed before the first round. When the judge has come to a verdict, a round that diagnoses follows.
    """
    start = observer.clock()
    piloted = pilot(variants, budget, run)
    observer.settled(max(len({variants[i].key for i in group}) for group in piloted.groups))
    draw = random.Random(observer.seed)  # noqa: S311 - an order is no secret
    rounds = _Rounds(variants, piloted.plans, piloted.groups, draw)
    return _Measuring(budget, run, observer, piloted, rounds, start).measured()


@dataclass
class _Measuring:
    """One measuring, from its first round to its diagnosis; it began at ``start``."""

    budget: Budget
    run: LaunchRunner
    observer: Observer
    piloted: Piloted
    rounds: _Rounds
    start: float
    _confirming: bool = False
    _screened: bool = False

    def __post_init__(self) -> None:
        self._costs = Costs(self.piloted.expected)
        self._findings = list(self.piloted.findings)

    def measured(self) -> tuple[Measurement, ...]:
        """The measurements when the judge is content."""
        wanted, least = self.budget.launches, MIN_LAUNCHES
        while True:
            self._launch(wanted, least)
            measurements, look = self._measurements(), self._look()
            verdict = self.observer.judge(measurements, look)
            made = self.rounds.made
            if verdict.action == "stop" or (look.last and verdict.action == "more"):
                return self._diagnosed(look, explain=verdict.explain)
            wanted, self._screened = made + verdict.launches, look.screened
            if verdict.action == "confirm":  # even when time is up: a suspect is never the verdict
                self._doubt(verdict.suspects, made)
                self.rounds.begin_again()
                # By no fewer launches than made it suspicious.
                wanted, least, self._confirming = verdict.launches, max(MIN_LAUNCHES, made), True

    def _launch(self, wanted: int, least: int) -> None:
        """Rounds up to a number of them, as far as there is time, but at least so many.

        When the time for screening is up there is a look, so that a suspicion can be confirmed in time.
        """
        rounds, costs = self.rounds, self._costs
        deadline = self.budget.max_time if self._confirming or self._screened else self.budget.screening
        while rounds.made < wanted and (rounds.made < least or self._fits(deadline)):
            begun = self.observer.clock()
            ahead = self._elapsed + costs.round * (wanted - rounds.made)
            self.observer.progress(Progress(rounds.made + 1, wanted, self._elapsed, ahead))
            rounds.launch(self.run, self.observer)
            costs.add(self.observer.clock() - begun)

    @property
    def _elapsed(self) -> float:
        return self.observer.clock() - self.start

    def _fits(self, deadline: float) -> bool:
        """Whether another round would end before a deadline."""
        return self._elapsed + self._costs.round <= deadline

    def _look(self) -> Look:
        return Look(
            self._elapsed,
            self._costs.round,
            last=not self._fits(self.budget.max_time),
            screened=not self._confirming and not self._fits(self.budget.screening),
        )

    def _doubt(self, suspects: Sequence[str], made: int) -> None:
        """Remark that fresh launches have to confirm what these made suspect."""
        self._findings.append(Finding("suspected", {"metrics": tuple(suspects), "launches": made}))

    def _diagnosed(self, look: Look, *, explain: bool) -> tuple[Measurement, ...]:
        """The same with launches that diagnose: all of it where there is time or it is asked for, else growth alone.

        Growth is a gate, so it is looked for though the time is up. What seems worse has to be so in fresh launches as
        well.
        """
        spent = self._elapsed + self.piloted.diagnosis_seconds > self.budget.max_time
        extra = ONLY_GROWTH if spent and not explain else DIAGNOSIS
        try:
            verdict = self._diagnose(look, extra)
            if verdict.action == "confirm":
                self._doubt(verdict.suspects, 1)
                self._diagnose(look, extra)
        except DdpperfError as error:
            if not explain and not isinstance(error, (ReferenceFailed, ReferenceStopped)):
                raise
            self._findings.append(Finding("not_diagnosed", {"reason": str(error).partition("\n")[0]}))
            self.rounds.forget_diagnoses()  # what one told was still to be confirmed
            self.observer.judge(self._measurements(), replace(look, elapsed=self._elapsed, diagnosed=True))
        return self._measurements()

    def _diagnose(self, look: Look, extra: ExtraPasses) -> Next:
        self.rounds.diagnose(self.run, extra)
        return self.observer.judge(self._measurements(), replace(look, elapsed=self._elapsed, diagnosed=True))

    def _measurements(self) -> tuple[Measurement, ...]:
        return self.rounds.measurements([*self._findings, *_shortage(self.rounds.made, self.budget)])


@dataclass
class _Rounds:
    """The launches that a verdict will rest on, round by round.

    Attributes:
        groups: who is launched at the same time.
        diagnoses: of each variant the launches that tell why.
    """

    variants: Sequence[Variant]
    plans: Sequence[Plan]
    groups: Groups
    draw: random.Random
    made: int = 0
    diagnoses: list[list[Launch]] = field(init=False)
    _launches: list[list[Launch]] = field(init=False)
    _order: list[int] = field(default_factory=list)
    _in_turns: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._launches = [[] for _ in self.variants]
        self.diagnoses = [[] for _ in self.variants]

    def launch(self, run: LaunchRunner, observer: Observer) -> None:
        """One launch more of each variant, in random order: in every second round that of the last one reversed."""
        self._order = self._order[::-1] if self.made % 2 == 1 else self._drawn()
        for group in together(self.groups, self._order):
            self._in_turns.update(group if len(group) > 1 else ())
            health = observer.watch()
            try:
                ran = run([(self.variants[i], self.plans[i]) for i in group], ONLY_TIMES)
            finally:
                seen = health()  # ends the watch, whatever became of the launch
            for i, (ranks, seconds) in zip(group, ran, strict=True):
                self._launches[i].append(replace(launch_of(self.made, ranks, seconds), health=seen))
        self.made += 1

    def diagnose(self, run: LaunchRunner, extra: ExtraPasses) -> None:
        """A launch of each variant that tells why, in place of the one that did."""
        for group in together(self.groups, self._drawn()):
            ran = run([(self.variants[i], self.plans[i]) for i in group], extra)
            for i, (ranks, seconds) in zip(group, ran, strict=True):
                self.diagnoses[i] = [launch_of(0, ranks, seconds)]

    def forget_diagnoses(self) -> None:
        """Drop what diagnoses have told."""
        for launches in self.diagnoses:
            launches.clear()

    def _drawn(self) -> list[int]:
        """A random order, in which the sides of a benchmark follow each other."""
        order = self.draw.sample(range(len(self.variants)), len(self.variants))
        keys = [self.variants[i].key for i in order]
        return sorted(order, key=lambda i: keys.index(self.variants[i].key))

    def begin_again(self) -> None:
        """Drop all launches: others are to confirm what they made suspect."""
        for launches in self._launches:
            launches.clear()
        self.made = 0

    def measurements(self, findings: Sequence[Finding]) -> tuple[Measurement, ...]:
        """What the launches of each variant amount to."""
        parts = zip(self.variants, self.plans, self._launches, self.diagnoses, strict=True)
        return tuple(
            measurement_of(variant, plan, launches, findings, turns=i in self._in_turns, diagnoses=diagnoses)
            for i, (variant, plan, launches, diagnoses) in enumerate(parts)
        )


def _shortage(made: int, budget: Budget) -> list[Finding]:
    """A remark where the time was up before the launches that a first look takes; it may be the test's own setting."""
    if made >= min(budget.launches, FEW_LAUNCHES):
        return []
    return [Finding("few_launches", {"made": made, "wanted": budget.launches, "max_time": budget.max_time})]
