"""Trains a workload by several strategies in launches of their own, and holds the others to the first."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, cast

from pytest_ddpperf.errors import QualityLost, SettingError, WorkloadError
from pytest_ddpperf.judge.quality import QualityRules, held, lost, trained
from pytest_ddpperf.parsers import fraction, positive_int, three_or_more
from pytest_ddpperf.records.convergence import LOSS, Convergence, Curve
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.call.benchmark import BenchmarkRun
from pytest_ddpperf.run.call.variant import Variant
from pytest_ddpperf.run.call.ways import GivenStrategies, GivenStrategy, several
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.training.jobs import ConvergeJob, RankTraining
from pytest_ddpperf.training.workload import Workload, located, require_same_names

MIN_WAYS = 2
POINTS = 10  # of a curve, where the call does not say how many steps lie between them


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """How long trainings are, how often they are made, and what they are held to."""

    steps: int
    every: int
    launches: int
    metric: str | None  # None for the first that is evaluated, or the loss
    better: Literal["higher", "lower"]
    tolerance: float


def ways_of(
    subject: object, strategies: GivenStrategies, more: Mapping[str, Callable[..., Any]]
) -> Mapping[str, GivenStrategy]:
    """The strategies that are trained by, by name."""
    listed = isinstance(strategies, Iterable) and not isinstance(strategies, (str, Strategy))
    given: Any = strategies if isinstance(strategies, Mapping) else list(cast("Iterable[Any]", strategies or ()))
    if not isinstance(subject, Workload) or not listed or len(given) < MIN_WAYS:
        raise SettingError(
            "ddpperf.converge: expected a Workload and a list of two strategies or more, such as ['ddp', 'fsdp2']"
        )
    return {
        name: way.strategy for name, way in several(subject, given, None, more=more, verb="converge").by_name.items()
    }


def plan_of(workload: Workload, **given: Any) -> TrainingPlan:
    """Returns what the arguments of a call ask for; SettingError for one that does not fit."""
    if given["every"] is None:
        given["every"] = max(1, (given["steps"] if isinstance(given["steps"], int) else 1) // POINTS)
    parsers = {"steps": positive_int, "every": positive_int, "launches": three_or_more, "tolerance": fraction}
    given |= {word: _parsed(word, given[word], parse) for word, parse in parsers.items()}
    if given["better"] not in {"higher", "lower"}:
        raise SettingError(f"ddpperf.converge(better={given['better']!r}): expected one of higher, lower")
    if given["metric"] not in {None, LOSS} and workload.evaluate is None:
        raise SettingError(
            f"ddpperf.converge(metric={given['metric']!r}): this Workload evaluates nothing; give it "
            "evaluate=lambda model, device: ..., which returns a number"
        )
    return TrainingPlan(**given)


def _parsed(word: str, value: object, parse: Callable[[object], Any]) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise SettingError(f"ddpperf.converge({word}={value!r}): expected {error}") from None


def converged(run: BenchmarkRun, test: str, plan: TrainingPlan, variants: Mapping[str, Variant]) -> Convergence:
    """Trains by all strategies in each launch, and says how they stand to the first."""
    __tracebackhide__ = True
    if run.settings.compile == "step":
        raise SettingError("compile=step: ddpperf.converge compiles no whole step; use compile=model, or compile=no")
    names = tuple(variants)
    first = variants[names[0]]
    strategies = tuple(variant.resolved for variant in variants.values() if variant.resolved is not None)
    launches = list[Sequence[tuple[RankTraining, ...]]]()
    for number in range(plan.launches):
        job = ConvergeJob(
            subject=first.subject,
            strategies=strategies,
            settings=run.settings,
            steps=plan.steps,
            every=plan.every,
            launch=number,
            metric=plan.metric,
        )
        launches.append(run.trained(first, job, f"launch {number + 1} of {plan.launches}"))
        _require_same_start(job.subject, (*names, f"{names[0]} from weights moved by rounding"), launches[-1])
        quantities = _quantities(job.subject, plan, launches)
    of_way = [[[rank[way] for rank in ranks] for ranks in launches] for way in range(len(names) + 1)]
    points = launches[0][0][0].steps
    *found, moved = (
        trained(name, [_curve(ranks, points, quantities) for ranks in own], lost=_lost(own))
        for name, own in zip((*names, "moved"), of_way, strict=True)
    )
    metric = plan.metric or quantities[min(1, len(quantities) - 1)]
    rules = QualityRules(metric=metric, better=plan.better, tolerance=plan.tolerance)
    exact = {name for way, name in enumerate(names) if launches[0][0][0].exact and launches[0][0][way].exact}
    same_buffers = all(
        len({rank[way].buffers for rank in ranks}) == 1 for ranks in launches for way in range(len(names))
    )
    return Convergence(
        test=test,
        world_size=first.world_size,
        metric=metric,
        strategies=tuple(found),
        kept=held(found, moved, exact, rules, same_buffers=same_buffers),
    )


def _quantities(
    workload: Any, plan: TrainingPlan, launches: Sequence[Sequence[tuple[RankTraining, ...]]]
) -> tuple[str, ...]:
    """Returns what all trainings evaluate, the loss first; refuses a metric that is not among them."""
    names = tuple(launches[0][0][0].values)
    for rank, trainings in enumerate(launches[-1]):
        for training in (one for one in trainings if one.values):
            require_same_names(workload, training.values, names, f"on rank {rank} in launch {len(launches)}")
    if plan.metric is not None and plan.metric not in names:
        raise WorkloadError(
            f"ddpperf.converge(metric={plan.metric!r}): evaluate(model, device) gave {', '.join(names[1:])}; name "
            "one of these"
        )
    return names


def _require_same_start(workload: Any, names: Sequence[str], ranks: Sequence[tuple[RankTraining, ...]]) -> None:
    """Refuses trainings of a launch from other weights or on other batches than the first one's."""
    for rank, trainings in enumerate(ranks):
        for name, training in zip(names, trainings, strict=True):
            if training.weights != trainings[0].weights:
                raise WorkloadError(
                    f"{located(workload.model)} gave {name} other weights than {names[0]} on rank {rank}: it must give "
                    "every strategy the same ones; torch, numpy and random are seeded before each call, so draw from "
                    "their global generators, or from one that it makes anew with a fixed seed"
                )
            pairs = zip(trainings[0].batches, training.batches, strict=False)  # one may have ended early
            step = next((step for step, (theirs, its) in enumerate(pairs, 1) if theirs != its), None)
            if step is not None:
                given = located(workload.batch or workload.loader)
                raise WorkloadError(
                    f"{given} gave {name} another batch than {names[0]} at step {step} on rank {rank}: it must give "
                    "every strategy the same ones; torch, numpy and random are seeded, so draw from their global "
                    "generators, or from one that it makes anew with a fixed seed"
                )


def _curve(ranks: Sequence[RankTraining], steps: tuple[int, ...], quantities: Sequence[str]) -> Curve:
    """One training, as the mean over the ranks; not a number from where it was lost."""

    def mean(name: str, point: int) -> float:
        values = [rank.values[name][point] for rank in ranks if point < len(rank.steps)]
        return fmean(values) if values and all(map(math.isfinite, values)) else math.nan

    return Curve(
        steps=steps, values={name: tuple(mean(name, point) for point in range(len(steps))) for name in quantities}
    )


def _lost(launches: Sequence[Sequence[RankTraining]]) -> tuple[str, ...]:
    """Returns what ranks found not to be finite, a line for each launch in which one did."""
    first = ((next((rank.lost for rank in ranks if rank.lost), ""), number) for number, ranks in enumerate(launches, 1))
    return tuple(f"{lost} in launch {number}" for lost, number in first if lost)


def require_quality(found: Convergence, failing: Collection[Verdict]) -> None:
    """Raises QualityLost where a strategy trains to something worse, or to something else, than the first.

    That is as a regression is: where none fails a test, it is only listed.
    """
    __tracebackhide__ = True
    lines = lost(found)
    if lines and Verdict.REGRESSED in failing:
        first = found.strategies[0].name
        cure = "ddpperf.check(workload, strategy=...) compares gradients with a single process and names the parameter"
        raise QualityLost("\n  ".join((*lines, f"all began with the weights of {first} and had its batches; {cure}")))
