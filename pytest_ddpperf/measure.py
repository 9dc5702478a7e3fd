"""The first verb: launch variants of a benchmark, in rounds, until a judge is content or the time is spent."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

from pytest_ddpperf.communication import CommunicationProfile
from pytest_ddpperf.counts import Counts
from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.health import Health
from pytest_ddpperf.metrics import series_of
from pytest_ddpperf.metrics.counted import counted_series
from pytest_ddpperf.records import Environment, Launch, Measurement, Mode, Plan, RankLaunch
from pytest_ddpperf.stats.summaries import typical
from pytest_ddpperf.strategies import Strategy
from pytest_ddpperf.units import format_count

PILOT_STEPS = 5
LAUNCH_SECONDS = 1.0  # of timed steps: long enough to see through the neighbours, short enough for many launches
FEWEST_STEPS, MOST_STEPS = 5, 1000
CUSTOM = "custom"  # the strategy of a step that brings its own
FEWEST_LAUNCHES = 2  # below that there is no interval
DIAGNOSED_LAUNCHES = 4  # of a benchmark: enough for an interval; more would take their time from the verdict
GROWTH_LAUNCHES = 4  # of those that the verdict rests on: what leaks does so in each of them, far beyond what is chance
CONFIRMED = "judged by fresh ones alone"  # a remark on launches that follow a suspicion
FEW_STEPS = 20  # a launch with fewer has long steps, of which a diagnosis takes as many: then the fewest launches


@dataclass(frozen=True)
class Variant:
    """One thing to be measured: what every rank of a launch builds and steps, and in which group.

    Attributes:
        subject: a Workload, or a function ``build(ctx) -> step``.
        strategy: the strategy of a Workload; None where the subject brings its own.
        recipe: the settings that change what a step does, in words.
        findings: what is already known of it that a reader of its numbers needs.
        counts: what one of its steps does; None where nothing was counted.
        profile: its communication as the profiler sees it; None where it was not profiled.
        steps: the baseline's, so that both sides run the same number; None where there is none to follow.
        other: whether it runs the code of another revision; it then runs as many steps as its namesake of this one.
    """

    name: str
    subject: Any
    strategy: Strategy | None
    mode: Mode | None
    environment: Environment
    recipe: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[str, ...] = ()
    counts: Counts | None = None
    profile: CommunicationProfile | None = None
    steps: int | None = None
    other: bool = False
    samples_per_step: float | None = None
    tokens_per_step: float | None = None

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from the other variants of its test, on either side."""
        return self.name, self.environment.world_size

    @property
    def strategy_text(self) -> str:
        """The strategy in words."""
        return CUSTOM if self.strategy is None else str(self.strategy)


@dataclass(frozen=True)
class Budget:
    """How much measuring a benchmark may take: see the knobs of the same names.

    Attributes:
        screening: seconds at least for what comes before a confirmation; less than ``max_time`` where there may be one.
        turns: whether both sides of a benchmark are launched at the same time where they can be, and take turns.
    """

    steps: int | None
    warmup: int
    launches: int
    max_time: float
    screening: float
    turns: bool = True

    def deadline(self, round_seconds: float, *, confirming: bool, in_rounds: bool) -> float:
        """Seconds by which a phase has to end.

        Side by side, more rounds always tell more: a screening may take all but the first look of a confirmation.
        Beside a baseline, whose own error stays, they do not, and what is still undecided after half of the time
        mostly stays so.

        Args:
            round_seconds: of a round of launches.
            confirming: whether the phase is the second one.
            in_rounds: whether both sides are measured in the same rounds.
        """
        if confirming:
            return self.max_time
        return max(self.screening, self.max_time - self.launches * round_seconds if in_rounds else 0.0)


@dataclass(frozen=True)
class Next:
    """What a judge wants after looking: to stop, ``launches`` more, or to start again with that many fresh ones.

    Attributes:
        suspects: the metrics that looked worse.
    """

    action: Literal["stop", "more", "confirm"]
    launches: int = 0
    suspects: tuple[str, ...] = ()


Ran: TypeAlias = "tuple[tuple[RankLaunch, ...], float]"
"""What each rank of a launch reports, and how long the launch took, in seconds."""


class Run(Protocol):
    """Runs one launch of each of these variants; several at the same time, which then time their steps in turns.

    ``diagnosed``: whether the timed steps are to be followed by those that tell where the time goes; ``growth``: by
    those that tell whether memory grows.
    """

    def __call__(self, launches: Sequence[tuple[Variant, Plan]], *, diagnosed: bool, growth: bool) -> Sequence[Ran]:
        """Run them; what became of each, in the same order."""


@dataclass(frozen=True)
class Progress:
    """Where a running benchmark stands; times in seconds."""

    launch: int
    of: int
    elapsed: float
    expected: float


def unwatched() -> Callable[[], Health | None]:
    """Nobody looks at the machine."""
    return lambda: None


@dataclass(frozen=True)
class Observer:
    """Who looks on while a benchmark runs: ``judge`` decides how to go on, ``progress`` tells the user.

    ``judge`` gets the measurements so far, the seconds spent, and the seconds that a round of launches takes.
    ``watch`` is called before each launch, and what it gives back after it, for the machine's health meanwhile.
    """

    judge: Callable[[tuple[Measurement, ...], float, float], Next]
    progress: Callable[[Progress], None]
    seed: int = 0
    clock: Callable[[], float] = field(default=time.monotonic)
    watch: Callable[[], Callable[[], Health | None]] = field(default=unwatched)


def measure(variants: Sequence[Variant], budget: Budget, run: Run, observer: Observer) -> tuple[Measurement, ...]:
    """The variants measured side by side: each round launches every variant once, in random order.

    Every second round reverses the order of the one before, so that each variant comes first as often as last.

    A pilot launch of each comes first and is not counted: the first launch of a benchmark is slower than the others,
    and it tells how many steps fill a launch. The plan is fixed from then on.

    Raises:
        DdpperfError: a launch failed.
    """
    start = observer.clock()
    plans, turns, round_seconds = _pilot(variants, budget, run)
    measured = [_Measured(variant, plan) for variant, plan in zip(variants, plans, strict=True)]
    shuffled = random.Random(observer.seed)  # noqa: S311 - the order of launches is no secret
    plain: list[float] = []  # seconds of each round of nothing but timed steps: those of the rounds still to come
    findings: list[str] = []
    order: list[int] = []
    made, wanted, confirming = 0, budget.launches, False
    in_rounds = any(variant.other for variant in variants)
    while True:
        while made < wanted:
            begun = observer.clock()
            spent = begun - start
            limit = budget.deadline(round_seconds, confirming=confirming, in_rounds=in_rounds)
            if spent + round_seconds > limit and made >= FEWEST_LAUNCHES:
                break
            observer.progress(Progress(made + 1, wanted, spent, spent + round_seconds * (wanted - made)))
            order = order[::-1] if made % 2 == 1 else shuffled.sample(range(len(variants)), len(variants))
            only_timed = not any(one.diagnosing or one.growing for one in measured)
            for group in together(variants, order, turns):
                _launch_together([measured[i] for i in group], run, observer)
            made += 1
            if only_timed:
                plain.append(observer.clock() - begun)
                round_seconds = math.fsum(plain) / len(plain)
        measurements = tuple(one.measurement([*findings, *_shortage(made, budget)]) for one in measured)
        verdict = observer.judge(measurements, observer.clock() - start, round_seconds)
        out_of_time = made < wanted
        if verdict.action == "stop" or (out_of_time and verdict.action == "more"):
            return measurements
        if verdict.action == "confirm":  # even when time is up: a suspect is never the verdict
            looked = f"{' and '.join(verdict.suspects)} looked worse in {format_count(made, 'launch')}"
            findings.append(f"{looked}; {CONFIRMED}")
            for one in measured:
                one.launches.clear()
            made, confirming = 0, True
        wanted = made + verdict.launches


@dataclass
class _Measured:
    """A variant, and what was measured of it so far.

    Attributes:
        launches: that the verdict will rest on.
        diagnosed: that tell where the time goes; they go on doing so when others have to confirm a suspicion.
    """

    variant: Variant
    plan: Plan
    launches: list[Launch] = field(default_factory=list)
    diagnosed: list[Launch] = field(default_factory=list)

    @property
    def diagnosing(self) -> bool:
        """Whether the next launch is to tell where the time goes."""
        return len(self.diagnosed) < diagnosed_launches(self.plan)

    @property
    def growing(self) -> bool:
        """Whether the next launch is to tell if memory grows."""
        return len(self.launches) < GROWTH_LAUNCHES

    def add(self, launch: Launch, *, diagnosed: bool) -> None:
        self.launches.append(launch)
        if diagnosed:
            self.diagnosed.append(launch)

    def measurement(self, findings: Sequence[str]) -> Measurement:
        """What it comes to."""
        return _measurement(self.variant, self.plan, self.launches, findings, self.diagnosed)


def _launch_together(group: Sequence[_Measured], run: Run, observer: Observer) -> None:
    """One launch more of each."""
    diagnosing, growing = group[0].diagnosing, group[0].growing
    health = observer.watch()
    try:
        ran = run([(one.variant, one.plan) for one in group], diagnosed=diagnosing, growth=growing)
    finally:
        seen = health()  # ends the watch, whatever became of the launch
    for one, (ranks, seconds) in zip(group, ran, strict=True):
        launch = replace(_launch(len(one.launches), ranks, seconds), health=seen)
        one.add(launch, diagnosed=diagnosing)


def together(
    variants: Sequence[Variant], order: Sequence[int], turns: Collection[tuple[str, int]]
) -> list[tuple[int, ...]]:
    """Which variants are launched at the same time: both sides of a benchmark, to time their steps in turns.

    Args:
        variants: all of a round.
        order: of their launches in this round; the first of a group has the first turn.
        turns: keys of the benchmarks whose sides take turns.

    Returns:
        Indices of variants, in groups.
    """
    groups: dict[object, tuple[int, ...]] = {}
    for i in order:
        key: object = variants[i].key if variants[i].key in turns else i
        groups[key] = (*groups.get(key, ()), i)
    return list(groups.values())


def _shortage(made: int, budget: Budget) -> list[str]:
    """A remark where the time was up before the launches that a first look takes; it may be the test's own setting."""
    if made >= budget.launches:
        return []
    wanted = format_count(budget.launches, "launch")
    return [f"time for {made} of {wanted} only: raise max_time, which is {budget.max_time:g} s"]


def _pilot(
    variants: Sequence[Variant], budget: Budget, run: Run
) -> tuple[list[Plan], Collection[tuple[str, int]], float]:
    """A plan for each variant, the benchmarks whose sides take turns, and about how long a round of nothing else takes.

    On the CPU only: a GPU would have to hold both sides, and ranks that wait for their turn there do not leave it
    alone. Nor do turns suit what works on in the background meanwhile: data would be there before it is waited for.
    """
    plans, expected = [], 0.0
    turns = {one.key for one in variants if one.other and budget.turns and one.environment.device == "cpu"}
    agreed: dict[tuple[str, int], int] = {}
    for variant in variants:
        steps = PILOT_STEPS if budget.steps is None else min(PILOT_STEPS, budget.steps)
        ((ranks, seconds),) = run([(variant, Plan(budget.warmup, steps))], diagnosed=False, growth=False)
        if any(rank.background for rank in ranks):
            turns.discard(variant.key)
        pilot = _launch(0, ranks, seconds)
        step = typical(pilot.step_times)
        fixed = max(0.0, seconds - step * steps)
        share = budget.screening / budget.launches / len(variants)
        followed = agreed.get(variant.key) if variant.other else variant.steps
        plan = Plan(budget.warmup, budget.steps or followed or fitting_steps(step, share - fixed))
        agreed[variant.key] = plan.steps
        plans.append(plan)
        expected += fixed + plan.steps * step
    return plans, turns, expected


def diagnosed_launches(plan: Plan) -> int:
    """In how many launches, from the first, it is looked where the time goes."""
    return FEWEST_LAUNCHES if plan.steps < FEW_STEPS else DIAGNOSED_LAUNCHES


def fitting_steps(step: float, seconds: float) -> int:
    """How many steps of ``step`` seconds a launch times: about a second's worth, fewer if ``seconds`` is less."""
    fitting = math.ceil(min(LAUNCH_SECONDS, seconds) / max(step, 1e-9))
    return min(MOST_STEPS, max(FEWEST_STEPS, fitting))


def _launch(number: int, ranks: tuple[RankLaunch, ...], seconds: float) -> Launch:
    """A launch whose ranks ran the same steps.

    Raises:
        WorkloadError: they left out different ones, so that their times cannot be put side by side.
    """
    if len({rank.skipped_steps for rank in ranks}) > 1:
        counts = ", ".join(f"rank {rank.rank}: {', '.join(map(str, rank.skipped_steps)) or 'none'}" for rank in ranks)
        raise WorkloadError(
            f"the ranks left out different steps after fp16 overflows ({counts}): gradients must be synchronised "
            "before the scaler looks at them, so that all ranks skip together"
        )
    return Launch(round=number, ranks=ranks, seconds=seconds)


def counted_only(variant: Variant) -> Measurement:
    """A variant that was counted, and not launched to be timed."""
    return _measurement(variant, Plan(0, 0))


def _measurement(
    variant: Variant,
    plan: Plan,
    launches: Sequence[Launch] = (),
    findings: Sequence[str] = (),
    diagnosed: Sequence[Launch] = (),
) -> Measurement:
    measured = Measurement(
        name=variant.name,
        strategy=variant.strategy_text,
        mode=variant.mode,
        plan=plan,
        environment=variant.environment,
        recipe=variant.recipe,
        counts=variant.counts,
        profile=variant.profile,
        launches=tuple(launches),
        diagnosed=tuple(diagnosed),
        findings=(*variant.findings, *findings),
    )
    counted = () if variant.counts is None else counted_series(variant.counts)
    return replace(measured, series=(*series_of(measured), *counted))
