"""Judged results to report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_ddpperf.against.git import Checkout
from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.metrics.table import METRICS
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.launch import Launch
from pytest_ddpperf.records.measurement import Interval, Measurement, MetricRules, Plan, Series
from pytest_ddpperf.records.results import BaselineRecord, Comparison, PairedRevision, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.charts.chart import Axis, Chart, ChartSeries
from pytest_ddpperf.reports.documents.entries import Run
from tests.factories import analysed, make_environment, make_rank_launch, make_results_document, read_again

CPU = make_environment(cpu_model="AMD EPYC", cores=2, recorded={"host": "runner-1"})
RULES = {row.name: row.rules for row in METRICS}
UNITS = {"step_time": "s", "epoch_time": "s", "step_time_max": "s", "throughput": "samples/s", "peak_resident": "B"}
DIFFERENCES = {"straggler_skew", "scaling_efficiency"}


def make_comparison(metric: str, value: float, verdict: Verdict, **fields: Any) -> Comparison:
    """A judged metric; ``samples`` and ``interval`` are of its series."""
    series = Series(
        metric=metric,
        unit=UNITS.get(metric, "1"),
        better="higher" if metric in {"throughput", "scaling_efficiency"} else "lower",
        family="absolute",
        scale="difference" if metric in DIFFERENCES else "ratio",
        gated=True,
        min_tolerance=0.0,
        samples=fields.pop("samples", (value,)),
        value=value,
        rules=RULES.get(metric, MetricRules()),
        interval=fields.pop("interval", None),
    )
    for remark in {"note", "difference"} & fields.keys():  # a code without words is told as it is
        fields[remark] = Finding(fields[remark]) if fields[remark] else None
    defaults = {"baseline": None, "change": None, "change_interval": None, "tolerance": 0.03, "mde": None}
    return Comparison(series=series, verdict=verdict, **{**defaults, "gated": True, **fields})


def counted(metric: str, verdict: Verdict) -> Comparison:
    """A judged count, which is 2 on both sides."""
    made = make_comparison(metric, 2.0, verdict, baseline=2.0)
    return replace(made, series=replace(made.series, scale="exact"))


CODE = Checkout("3f2a1c0" + "0" * 33, "main", dirty=True, commit_date="2026-01-11T09:00:00+00:00")
RANKS = tuple(make_rank_launch(rank, (0.04 + 0.01 * rank,) * 3) for rank in range(2))  # the second one is the slower
MEASUREMENT = Measurement(
    name="bucketed",
    strategy="bucketed",
    mode=None,
    plan=Plan(warmup=5, steps=60),
    environment=CPU,
    launches=tuple(Launch(round=number, ranks=RANKS, seconds=1.0) for number in range(8)),
)
BASELINE = BaselineRecord(
    name="bucketed",
    strategy="bucketed",
    mode=None,
    plan=Plan(warmup=5, steps=60),
    environment=CPU,
    series=(),
    commit="3f2a1c0" + "0" * 33,
    date="2026-01-12",
)
REGRESSED = make_comparison(
    "step_time",
    0.0473,
    Verdict.REGRESSED,
    interval=Interval(low=0.0468, high=0.0478, confidence=0.95),
    baseline=0.0418,
    change=0.132,
    change_interval=Interval(low=0.119, high=0.146, confidence=0.95),
    mde=0.021,
    base_samples=(0.0416, 0.042),
    margin=0.05,
)


def make_result(
    *,
    measured: dict[str, Any] | None = None,
    baseline: BaselineRecord | None = BASELINE,
    origin: str = "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13",
    differs: tuple[str, ...] = (),
    paired: PairedRevision | None = None,
    **fields: Any,
) -> Result:
    """A result: by default one whose step time regressed; ``measured`` changes its measurement."""
    measurement = replace(MEASUREMENT, **(measured or {}))
    defaults: dict[str, Any] = {
        "test": "perf_tests/test_strategies.py::test_step[bucketed]",
        "comparisons": (REGRESSED,),
        "verdict": Verdict.REGRESSED,
        "reference": paired or StoredBaseline(record=baseline, origin=origin, differs=differs),
    }
    return analysed(Result(measurement=measurement, **{**defaults, **fields}))


def make_calibrated(*runs: tuple[float, Verdict], **fields: Any) -> Calibrated:
    """A benchmark that was held against itself: a run for each pair of the value of its step time and a verdict.

    Each run rules out 3 % and would have found 5 %; ``fields`` are of its results.
    """
    results = []
    for seconds, verdict in runs or ((0.05, Verdict.UNCHANGED), (0.05, Verdict.OK)):
        step = make_comparison("step_time", seconds, verdict, bound=0.03, mde=0.05)
        made = {"comparisons": (step,), "verdict": verdict, "measured": {"series": (step.series,)}}
        results.append(make_result(**{**made, **fields}))
    return Calibrated(test=results[0].test, results=tuple(results))


def make_document(*results: Result, change: Callable[[Any], None] = lambda _: None, **more: Any) -> Run:
    """The run of a document with these results, as its file has it after a change."""
    document = make_results_document(results, CODE, **{"date": "2026-01-12T10:00:00+00:00", **more})
    change(document)
    return read_again(document)


def made_chart(*series: ChartSeries, **fields: Any) -> Chart:
    """A chart of lines that is about nothing."""
    defaults: dict[str, Any] = {"kind": "made_up", "title": "made up", "style": "lines"}
    return Chart(**{**defaults, "x": Axis(name="x"), "y": Axis(name="y"), "series": series, **fields})
