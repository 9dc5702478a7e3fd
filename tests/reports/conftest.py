"""Judged results to report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.baselines.calibration import Calibrated, Recommended
from pytest_ddpperf.metrics.table import series_of
from pytest_ddpperf.records.measurement import (
    Environment,
    Interval,
    Launch,
    Measurement,
    Plan,
    RankLaunch,
    Series,
    Spread,
)
from pytest_ddpperf.records.results import BaselineRecord, Calibration, Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.rates import Rate

CPU = Environment("cpu", "AMD EPYC", 0, "AMD EPYC", 2, 1, 1, "gloo", 2, "2.13", None, {"host": "runner-1"})
UNITS = {"step_time": "s", "throughput": "samples/s", "peak_resident": "B"}
DIFFERENCES = {"straggler_skew", "scaling_efficiency"}


def comparison(metric: str, value: float, verdict: Verdict, **fields: Any) -> Comparison:
    """A judged metric; ``samples`` and ``interval`` are of its series."""
    series = Series(
        metric=metric,
        unit=UNITS.get(metric, "1"),
        better="higher" if metric in {"throughput", "scaling_efficiency"} else "lower",
        family="absolute",
        scale="difference" if metric in DIFFERENCES else "ratio",
        gated=True,
        slack=0.0,
        samples=fields.pop("samples", (value,)),
        value=value,
        interval=fields.pop("interval", None),
    )
    defaults = {"baseline": None, "change": None, "change_interval": None, "tolerance": 0.03, "mde": None}
    return Comparison(series=series, verdict=verdict, **{**defaults, "gated": True, **fields})


def launch(number: int) -> Launch:
    """Two ranks, of which the second is the slower."""
    ranks = [RankLaunch(rank, (0.04 + 0.01 * rank,) * 3, {}, None, None, None) for rank in range(2)]
    return Launch(round=number, ranks=tuple(ranks), seconds=1.0)


MEASUREMENT = Measurement(
    name="bucketed",
    strategy="bucketed",
    mode=None,
    plan=Plan(5, 60),
    environment=CPU,
    launches=tuple(map(launch, range(8))),
)
BASELINE = BaselineRecord(
    "bucketed", "bucketed", None, Plan(5, 60), CPU, (), "3f2a1c0" + "0" * 33, "2026-01-12", ({"min": 0.04},)
)
REGRESSED = comparison(
    "step_time",
    0.0473,
    Verdict.REGRESSED,
    interval=Interval(0.0468, 0.0478, 0.95),
    baseline=0.0418,
    change=0.132,
    change_interval=Interval(0.119, 0.146, 0.95),
    mde=0.021,
    base_samples=(0.0416, 0.042),
    margin=0.05,
)


@pytest.fixture
def make_comparison() -> Callable[..., Comparison]:
    """Makes a judged metric: name, value, verdict, then any field."""
    return comparison


@pytest.fixture
def make_result() -> Callable[..., Result]:
    """A result: by default one whose step time regressed; ``measured`` changes its measurement."""

    def make(*, measured: dict[str, Any] | None = None, **fields: Any) -> Result:
        measurement = replace(MEASUREMENT, **(measured or {}))
        defaults: dict[str, Any] = {
            "test": "perf_tests/test_strategies.py::test_step[bucketed]",
            "comparisons": (REGRESSED,),
            "verdict": Verdict.REGRESSED,
            "baseline": BASELINE,
            "origin": "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13",
            "findings": (),
        }
        return Result(measurement=measurement, **{**defaults, **fields})

    return make


@pytest.fixture
def make_calibrated() -> Callable[..., Calibrated]:
    """Makes a benchmark that was held against itself: any field."""
    spreads = (Spread(0.15, 900), Spread(0.02, 35), Spread(0.004, 4))
    calibration = Calibration("bucketed", "2026-01-12", "3f2a1c0", 5, 8, 24, 51.0, *spreads, 0.042)
    default = Calibrated(
        test="perf_tests/test_strategies.py::test_step[bucketed]",
        measurement=replace(MEASUREMENT, series=series_of(MEASUREMENT)),
        calibration=calibration,
        runs=((0.04, 0.05), (0.04, 0.05)),
        alarms=Rate(0, 20, 2),
        inconclusive=Rate(3, 20, 2),
        mde=0.061,
        recommended=Recommended(8, 24, 0.045, None),
        findings=("other processes used 37.1 % of the cores in 1 of 8 launches",),
    )

    def make(**fields: Any) -> Calibrated:
        return replace(default, **fields)

    return make
