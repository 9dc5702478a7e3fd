"""Environments and records to store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_ddpperf.records.measurement import Environment, Interval, Plan
from pytest_ddpperf.records.results import BaselineRecord
from tests import factories
from tests.factories import make_baseline_record

CPU = factories.make_environment(cpu_model="AMD EPYC", cores=2, recorded={"host": "runner-1", "note": ""})
STEP_TIME = factories.make_series(
    "step_time", 0.0418, samples=(0.041, 0.0418, 0.0426), interval=Interval(low=0.0398, high=0.0438, confidence=0.95)
)
SHARE = {"unit": "1", "family": "relative", "scale": "difference", "gated": False, "min_tolerance": 0.03}
SKEW = factories.make_series("straggler_skew", 0.01, samples=(0.01,), **SHARE)
RECORD = make_baseline_record(
    plan=Plan(warmup=5, steps=60), environment=CPU, series=(STEP_TIME, SKEW), commit="3f2a1c0" + "0" * 33
)


def make_environment(**facts: Any) -> Environment:
    """An environment with some facts changed."""
    return replace(CPU, **facts)


def make_record(step_time: float = 0.0418, **fields: Any) -> BaselineRecord:
    """A record with some fields changed; ``step_time`` sets the value of that metric."""
    series = (replace(STEP_TIME, value=step_time), SKEW)
    return replace(RECORD, **{"series": series, **fields})
