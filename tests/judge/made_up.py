"""Made-up measurements and baselines, and their comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_ddpperf.judge.benchmark import compare
from pytest_ddpperf.judge.changes import enough
from pytest_ddpperf.judge.decision import DecisionContext, Evidence, decide
from pytest_ddpperf.judge.detection import EQUIVALENCE_MARGIN
from pytest_ddpperf.metrics.table import METRICS
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import CpuHealth, Health
from pytest_ddpperf.records.measurement import Environment, Measurement, Plan, Series
from pytest_ddpperf.records.results import BaselineRecord, PairedRevision, Reference, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import Change
from tests.factories import make_baseline_record, make_environment, make_launch, make_measurement, make_series

ROWS = {metric.name: metric for metric in METRICS}
ENVIRONMENT = make_environment(cpu_model="some cpu", recorded={"host": "here"})
STEADY = (1.000, 1.001, 0.999, 1.000, 1.001, 0.999, 1.000, 1.000)
UNSTEADY = (1.0, 1.3, 0.8, 1.1, 0.9, 1.2, 1.0, 0.7)


def series(metric: str, samples: Sequence[float], *, factor: float = 1.0) -> Series:
    return ROWS[metric].series(tuple(factor * sample for sample in samples))


def measured(
    *metrics: Series, environment: Environment = ENVIRONMENT, findings: tuple[Finding, ...] = ()
) -> Measurement:
    return make_measurement(plan=Plan(warmup=3, steps=60), environment=environment, findings=findings, series=metrics)


def on_machine(one: Measurement, others: float = 0.0, launches: int = 8) -> Measurement:
    """The same with launches of one step, during which other processes took so much of the cores."""
    health = Health(cpu=CpuHealth(others=others))
    made = tuple(make_launch((1.0,), round=number, health=health) for number in range(launches))
    return replace(one, launches=made)


def stored(*metrics: Series, plan: Plan = Plan(warmup=3, steps=60)) -> BaselineRecord:  # noqa: B008 - frozen
    return make_baseline_record(plan=plan, environment=ENVIRONMENT, series=metrics, commit="3f2a1c0")


def found(*metrics: Series, plan: Plan = Plan(warmup=3, steps=60), differs: tuple[str, ...] = ()) -> StoredBaseline:  # noqa: B008 - frozen
    return StoredBaseline(record=stored(*metrics, plan=plan), origin="cpu-8c-gloo-w2", differs=differs)


def judged(new: Measurement, base: Reference, **rules: Any) -> Result:
    context = DecisionContext(**{"tolerance": 0.05, "alpha": 0.0025, **rules})
    return compare("test_x.py::test_a", new, base, context)


def beside(*metrics: Series, then: Counts | None = None) -> PairedRevision:
    """The other side of this very run."""
    record = replace(stored(*metrics), counts=then)
    return PairedRevision(revision="3f2a1c0 (main)", commit=None, record=record)


def with_commit(base: StoredBaseline, *metrics: Series, turns: bool = False) -> StoredBaseline:
    """The baseline whose commit was measured in the rounds of the candidate, and has these metrics there."""
    pair = beside(*metrics)
    assert pair.record is not None
    return replace(base, pair=replace(pair, record=replace(pair.record, turns=turns)))


def difference(shift: float, standard_error: float | None, *, fixed: float = 0.0, launches: int = 4) -> Change:
    """A change on the plain scale whose scatter is known as well as can be."""
    sampling = None if standard_error is None else standard_error**2 - fixed
    return Change(shift=shift, launches=launches, sampling_variance=sampling, fixed_variance=fixed)


def decided(
    change: Change, *, tolerance: float, better: Any = "lower", whole: float | None = None, **context: Any
) -> Verdict:
    """The verdict on a change of a metric that has all of the level."""
    metric = make_series("step_time", 1.0, better=better)
    evidence = Evidence(series=metric, base=metric, tolerance=tolerance, whole=whole)
    return decide(change, evidence, DecisionContext(**context))


def needed(change: Change, *, tolerance: float, alpha: float, margin: float = EQUIVALENCE_MARGIN) -> int | None:
    """Returns how many launches decide a metric that is better lower, by no other proof than one within the margin."""
    evidence = Evidence(series=series("step_time", [1.0]), base=None, tolerance=tolerance)
    return enough(evidence, change, DecisionContext(alpha=alpha, margin=margin), None)


def quotient(factor: float, standard_error: float) -> Change:
    """The same of a ratio."""
    return Change(shift=math.log(factor), launches=4, logarithmic=True, sampling_variance=standard_error**2)
