"""Rounds of launches, until a judge is content or the time is spent."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pytest_ddpperf.measure.costs import ONLY_TIMES, Costs, Telling
from pytest_ddpperf.measure.groups import Groups, together
from pytest_ddpperf.measure.pilot import FEW_STEPS, pilot
from pytest_ddpperf.measure.terms import Budget, Look, Observer, Progress, Run
from pytest_ddpperf.measure.variant import Variant, launch_of, measurement_of
from pytest_ddpperf.records import Launch, Measurement, Plan
from pytest_ddpperf.units import format_count

FEWEST_LAUNCHES = 2  # below that there is no interval
DIAGNOSED_LAUNCHES = 4  # enough for an interval; more would take their time from the verdict
CONFIRMED = "judged by fresh ones alone"  # a remark on launches that follow a suspicion


def measure(variants: Sequence[Variant], budget: Budget, run: Run, observer: Observer) -> tuple[Measurement, ...]:
    """The variants measured side by side: each round launches every variant once, in random order.

    Every second round reverses the order of the one before, so that each variant comes first as often as last.

    A pilot launch of each comes first and is not counted: the first launch of a benchmark is slower than the others,
    and it tells how many steps fill a launch. The plan is fixed from then on.

    Raises:
        DdpperfError: a launch failed.
    """
    start = observer.clock()
    piloted = pilot(variants, budget, run)
    observer.settled(max(len({variants[i].key for i in group}) for group in piloted.groups))
    draw = random.Random(observer.seed)  # noqa: S311 - an order is no secret
    rounds = _Rounds(variants, piloted.plans, piloted.groups, draw)
    costs = Costs(piloted.expected)
    findings = list(piloted.remarks)
    wanted, confirming = budget.launches, False
    in_rounds = any(variant.other for variant in variants)

    def fits(telling: Telling, then: int = 0) -> bool:
        """Whether another round, and so many more that only tell times, would end before the deadline."""
        first_look = rounds.first_look(budget.launches, costs)
        deadline = budget.deadline(first_look=first_look, confirming=confirming, in_rounds=in_rounds)
        return observer.clock() - start + costs.of(telling) + then * costs.of(ONLY_TIMES) <= deadline

    while True:
        while rounds.made < wanted and (rounds.made < FEWEST_LAUNCHES or fits(ONLY_TIMES)):
            if rounds.made >= FEWEST_LAUNCHES and not fits(rounds.telling, then=wanted - rounds.made - 1):
                rounds.diagnosing = False  # times come first
            begun, telling = observer.clock(), rounds.telling
            ahead = begun - start + costs.of(telling) * (wanted - rounds.made)
            observer.progress(Progress(rounds.made + 1, wanted, begun - start, ahead))
            rounds.launch(run, observer)
            costs.add(telling, observer.clock() - begun)
        measurements = rounds.measurements([*findings, *_shortage(rounds.made, budget, confirming=confirming)])
        first_look = rounds.first_look(budget.launches, costs)
        look = Look(observer.clock() - start, costs.of(ONLY_TIMES), last=not fits(ONLY_TIMES), first_look=first_look)
        verdict = observer.judge(measurements, look)
        if verdict.action == "stop" or (look.last and verdict.action == "more"):
            return measurements
        if verdict.action == "confirm":  # even when time is up: a suspect is never the verdict
            looked = f"{' and '.join(verdict.suspects)} looked worse in {format_count(rounds.made, 'launch')}"
            findings.append(f"{looked}; {CONFIRMED}")
            rounds.begin_again()
            confirming = True
        else:
            rounds.growth = verdict.growth  # it is known from few launches, and takes steps of its own
        wanted = rounds.made + verdict.launches


@dataclass
class _Rounds:
    """The launches that a verdict will rest on, round by round.

    Attributes:
        groups: who is launched at the same time.
        growth: whether the next launches are to tell if memory grows.
        diagnosing: whether the first ones are to tell where the time goes.
    """

    variants: Sequence[Variant]
    plans: Sequence[Plan]
    groups: Groups
    draw: random.Random
    growth: bool = True
    diagnosing: bool = True
    made: int = 0
    _launches: list[list[Launch]] = field(init=False)
    _order: list[int] = field(default_factory=list)
    _in_turns: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._launches = [[] for _ in self.variants]

    @property
    def telling(self) -> Telling:
        """What launches of the next round are to tell."""
        return Telling(self.diagnosing and self.made < diagnosed_launches(self.plans), self.growth)

    def first_look(self, launches: int, costs: Costs) -> float:
        """Seconds that one with so many launches takes: all of them tell if memory grows, the first where time goes."""
        diagnosed = min(launches, diagnosed_launches(self.plans))
        others = (launches - diagnosed) * costs.of(Telling(diagnosed=False, growth=True))
        return diagnosed * costs.of(Telling(diagnosed=True, growth=True)) + others

    def launch(self, run: Run, observer: Observer) -> None:
        """One launch more of each variant, in random order: in every second round that of the last one reversed."""
        self._order = self._order[::-1] if self.made % 2 == 1 else self._drawn()
        telling = self.telling
        for group in together(self.groups, self._order):
            self._in_turns.update(group if len(group) > 1 else ())
            health = observer.watch()
            try:
                ran = run([(self.variants[i], self.plans[i]) for i in group], telling)
            finally:
                seen = health()  # ends the watch, whatever became of the launch
            for i, (ranks, seconds) in zip(group, ran, strict=True):
                self._launches[i].append(replace(launch_of(self.made, ranks, seconds), health=seen))
        self.made += 1

    def _drawn(self) -> list[int]:
        """A random order, in which the sides of a benchmark follow each other."""
        order = self.draw.sample(range(len(self.variants)), len(self.variants))
        keys = [self.variants[i].key for i in order]
        return sorted(order, key=lambda i: keys.index(self.variants[i].key))

    def begin_again(self) -> None:
        """Drop all launches: others are to confirm what they made suspect."""
        for launches in self._launches:
            launches.clear()
        self.made, self.diagnosing, self.growth = 0, True, True

    def measurements(self, findings: Sequence[str]) -> tuple[Measurement, ...]:
        """What the launches of each variant amount to."""
        parts = zip(self.variants, self.plans, self._launches, strict=True)
        return tuple(measurement_of(*part, findings, turns=i in self._in_turns) for i, part in enumerate(parts))


def _shortage(made: int, budget: Budget, *, confirming: bool) -> list[str]:
    """A remark where the time was up before the launches that a first look takes; it may be the test's own setting."""
    if made >= budget.launches:
        return []
    wanted = format_count(budget.launches, "launch")
    kept = "" if confirming or budget.screening == budget.max_time else ", part of it kept to confirm a suspicion"
    return [f"time for {made} of {wanted} only: raise max_time, which is {budget.max_time:g} s{kept}"]


def diagnosed_launches(plans: Sequence[Plan]) -> int:
    """In how many launches of each variant, from the first, it is looked where the time goes.

    It takes as many steps again: of long ones, in the fewest launches.
    """
    return FEWEST_LAUNCHES if any(plan.steps < FEW_STEPS for plan in plans) else DIAGNOSED_LAUNCHES
