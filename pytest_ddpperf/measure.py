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
DIAGNOSED_LAUNCHES = 4  # enough for an interval; more would take their time from the verdict
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

    ``diagnosed``: whether the timed steps are to be followed by those that tell where the time goes.
    """

    def __call__(self, launches: Sequence[tuple[Variant, Plan]], *, diagnosed: bool) -> Sequence[Ran]:
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
    shuffled = random.Random(observer.seed)  # noqa: S311 - the order of launches is no secret
    launches: list[list[Launch]] = [[] for _ in variants]
    rounds: list[float] = []  # seconds of each in this phase
    findings: list[str] = []
    order: list[int] = []
    wanted, confirming = budget.launches, False
    in_rounds = any(variant.other for variant in variants)
    while True:
        while len(launches[0]) < wanted:
            begun = observer.clock()
            spent = begun - start
            limit = budget.deadline(round_seconds, confirming=confirming, in_rounds=in_rounds)
            if spent + round_seconds > limit and len(launches[0]) >= FEWEST_LAUNCHES:
                break
            expected = spent + round_seconds * (wanted - len(launches[0]))
            observer.progress(Progress(len(launches[0]) + 1, wanted, spent, expected))
            odd = len(launches[0]) % 2 == 1
            order = order[::-1] if odd else shuffled.sample(range(len(variants)), len(variants))
            for group in together(variants, order, turns):
                number = len(launches[group[0]])
                health = observer.watch()
                try:
                    ran = run(
                        [(variants[i], plans[i]) for i in group],
                        diagnosed=number < diagnosed_launches(plans[group[0]]),
                    )
                finally:
                    seen = health()  # ends the watch, whatever became of the launch
                for i, (ranks, seconds) in zip(group, ran, strict=True):
                    launches[i].append(replace(_launch(number, ranks, seconds), health=seen))
            rounds.append(observer.clock() - begun)
            round_seconds = math.fsum(rounds) / len(rounds)  # the first ones, which are diagnosed, take longer
        remarks = [*findings, *_shortage(len(launches[0]), budget)]
        measurements = tuple(_measurement(*parts, remarks) for parts in zip(variants, plans, launches, strict=True))
        verdict = observer.judge(measurements, observer.clock() - start, round_seconds)
        out_of_time = len(launches[0]) < wanted
        if verdict.action == "stop" or (out_of_time and verdict.action == "more"):
            return measurements
        if verdict.action == "confirm":  # even when time is up: a suspect is never the verdict
            looked = f"{' and '.join(verdict.suspects)} looked worse in {format_count(len(launches[0]), 'launch')}"
            findings.append(f"{looked}; {CONFIRMED}")
            launches, rounds, confirming = [[] for _ in variants], [], True
        wanted = len(launches[0]) + verdict.launches


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
    """A plan for each variant, the benchmarks whose sides take turns, and about how long a round will take.

    On the CPU only: a GPU would have to hold both sides, and ranks that wait for their turn there do not leave it
    alone. Nor do turns suit what works on in the background meanwhile: data would be there before it is waited for.
    """
    plans, expected = [], 0.0
    turns = {one.key for one in variants if one.other and budget.turns and one.environment.device == "cpu"}
    agreed: dict[tuple[str, int], int] = {}
    for variant in variants:
        steps = PILOT_STEPS if budget.steps is None else min(PILOT_STEPS, budget.steps)
        ((ranks, seconds),) = run([(variant, Plan(budget.warmup, steps))], diagnosed=False)
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
    return _measurement(variant, Plan(0, 0), [], [])


def _measurement(variant: Variant, plan: Plan, launches: list[Launch], findings: list[str]) -> Measurement:
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
        findings=(*variant.findings, *findings),
    )
    counted = () if variant.counts is None else counted_series(variant.counts)
    return replace(measured, series=(*series_of(measured), *counted))
