"""Trains a workload by several strategies, and compares their training curves with the first strategy's."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from pytest_ddpperf.errors import QualityLost, SettingError, WorkloadError, hidden
from pytest_ddpperf.judge.quality import QualityRules, held, lost, trained
from pytest_ddpperf.records.measurement import Better
from pytest_ddpperf.records.verbs import LOSS, Convergence, Curve
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.run.call.benchmark_run import BenchmarkRun
from pytest_ddpperf.run.call.variants import Variant
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.strategies.strategy import Strategy
from pytest_ddpperf.training.jobs import ConvergeJob, RankTraining
from pytest_ddpperf.training.subject import Workload, located, require_same_names

__tracebackhide__ = hidden

POINTS = 10  # of a curve, if the call does not set ``every``


def job_of(
    workload: Workload,
    strategies: Sequence[Strategy],
    settings: Settings,
    *,
    every: int | None,
    launches: int,
    metric: str | None,
    better: str,
) -> ConvergeJob:
    """Returns the job of the first launch of ``ddpperf.converge``; raises SettingError for an invalid argument."""
    steps = settings.steps or 1
    every = max(1, steps // POINTS) if every is None else every
    for word, value, least in (("every", every, 1), ("launches", launches, 3)):
        if not isinstance(value, int) or value < least:
            raise SettingError(f"ddpperf.converge({word}={value!r}): expected a whole number of at least {least}")
    if better not in {"higher", "lower"}:
        raise SettingError(f"ddpperf.converge(better={better!r}): expected 'higher' or 'lower'")
    if metric not in {None, LOSS} and workload.evaluate is None:
        reason = f"ddpperf.converge(metric={metric!r}): this Workload has no function evaluate"
        raise SettingError(f"{reason}; give Workload(evaluate=lambda model, device: ...), which returns the metric")
    if settings.compile == "step":
        raise SettingError("compile=step: ddpperf.converge compiles no whole step; use compile=model or compile=no")
    return ConvergeJob(
        subject=workload, strategies=tuple(strategies), settings=settings, steps=steps, every=every, metric=metric
    )


def converged(  # noqa: PLR0917 - what a call asks for
    run: BenchmarkRun, test: str, variants: Mapping[str, Variant], job: ConvergeJob, better: Better, number: int
) -> Convergence:
    """Trains by all strategies in each of ``number`` launches, and compares their curves with the first strategy's."""
    names, first = tuple(variants), next(iter(variants.values()))
    launches = list[Sequence[tuple[RankTraining, ...]]]()
    for launch in range(number):
        launches.append(run.trained(first, replace(job, launch=launch), f"launch {launch + 1} of {number}"))
        _require_same_start(job.subject, (*names, f"{names[0]} (second training, weights perturbed)"), launches[-1])
        quantities = _quantities(job, launches)
    of_variant = [[[rank[variant] for rank in ranks] for ranks in launches] for variant in range(len(names) + 1)]
    points = launches[0][0][0].steps
    *found, moved = (
        trained(name, [_curve(ranks, points, quantities) for ranks in own], lost=_lost(own))
        for name, own in zip((*names, "moved"), of_variant, strict=True)
    )
    metric = job.metric or quantities[min(1, len(quantities) - 1)]
    rules = QualityRules(metric=metric, better=better, tolerance=run.settings.tolerance or 0.0)
    exact = {name for variant, name in enumerate(names) if launches[0][0][0].exact and launches[0][0][variant].exact}
    same_buffers = all(
        len({rank[variant].buffers for rank in ranks}) == 1 for ranks in launches for variant in range(len(names))
    )
    return Convergence(
        test=test,
        world_size=first.world_size,
        metric=metric,
        strategies=tuple(found),
        kept=held(found, moved, exact, rules, same_buffers=same_buffers),
    )


def _quantities(job: ConvergeJob, launches: Sequence[Sequence[tuple[RankTraining, ...]]]) -> tuple[str, ...]:
    """Returns the quantities that all trainings evaluate, the loss first; raises an error if ``metric`` is missing."""
    names = tuple(launches[0][0][0].values)
    for rank, trainings in enumerate(launches[-1]):
        for training in (one for one in trainings if one.values):
            require_same_names(job.subject, training.values, names, f"on rank {rank} in launch {len(launches)}")
    if job.metric is not None and job.metric not in names:
        reason = f"the Workload's evaluate(model, device) returns no such metric; give one of {', '.join(names[1:])}"
        raise WorkloadError(f"ddpperf.converge(metric={job.metric!r}): {reason}")
    return names


def _require_same_start(workload: Any, names: Sequence[str], ranks: Sequence[tuple[RankTraining, ...]]) -> None:
    """Raises an error if a training began with other weights or batches than the first training of its launch."""
    for rank, trainings in enumerate(ranks):
        for name, training in zip(names, trainings, strict=True):
            if training.weights != trainings[0].weights:
                raise WorkloadError(
                    f"{located(workload.model)} gave strategy {name} other weights than {names[0]} on rank {rank}: "
                    "every strategy needs the same weights; torch, numpy and random are seeded before each call, so "
                    "use their global generators, or make one with a fixed seed in each call"
                )
            pairs = zip(trainings[0].batches, training.batches, strict=False)  # one may have ended early
            step = next((step for step, (theirs, its) in enumerate(pairs, 1) if theirs != its), None)
            if step is not None:
                given = located(workload.batch or workload.loader)
                raise WorkloadError(
                    f"{given} gave strategy {name} another batch than {names[0]} at step {step} on rank {rank}: "
                    "every strategy needs the same batches; torch, numpy and random are seeded, so use their global "
                    "generators, or make one with a fixed seed in each call"
                )


def _curve(ranks: Sequence[RankTraining], steps: tuple[int, ...], quantities: Sequence[str]) -> Curve:
    """Returns the mean of the ranks' curves of one training; NaN from the point at which values were not finite."""

    def mean(name: str, point: int) -> float:
        values = [rank.values[name][point] for rank in ranks if point < len(rank.steps)]
        return fmean(values) if values and all(map(math.isfinite, values)) else math.nan

    return Curve(
        steps=steps, values={name: tuple(mean(name, point) for point in range(len(steps))) for name in quantities}
    )


def _lost(launches: Sequence[Sequence[RankTraining]]) -> tuple[str, ...]:
    """Returns a line of text for each launch in which a rank had a value that is not finite."""
    first = ((next((rank.lost for rank in ranks if rank.lost), ""), number) for number, ranks in enumerate(launches, 1))
    return tuple(f"{lost} in launch {number}" for lost, number in first if lost)


def require_quality(found: Convergence, failing: Collection[Verdict]) -> None:
    """Raises QualityLost if a strategy trains worse or differs beyond rounding, and ``failing`` has ``regressed``."""
    lines = lost(found)
    if lines and Verdict.REGRESSED in failing:
        first = found.strategies[0].name
        equal = f"all strategies began with the weights of {first} and had the same batches"
        cure = "ddpperf.check(workload, strategy=...) compares the gradients with a single process"
        raise QualityLost("\n  ".join((*lines, f"{equal}; {cure}")))
