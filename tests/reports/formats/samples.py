"""What tests of formats share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.verdict import Verdict
from tests.factories import make_counts, make_interval
from tests.reports.made import make_comparison, make_result

HOSTILE = "<script>|_&*x*\n`y`~[z](u)@me #1"
COUNTS = make_counts({"collective_calls": {"all_reduce": 8.0}})
CALLS = Comparison(
    series=counted_series(COUNTS)[0],
    baseline=2.0,
    change=3.0,
    tolerance=0.0,
    verdict=Verdict.REGRESSED,
    gated=True,
    note=Finding("all_reduce 2 -> 8 calls per step (+6)"),
)
RATE = make_comparison("throughput", 2000.0, Verdict.REGRESSED, baseline=2262.0, change=-0.116)
REGRESSED = make_result(measured={"counts": COUNTS}, findings=(Finding("only 1 of 8 launches ran alone"),))
REGRESSED = replace(REGRESSED, comparisons=(CALLS, *REGRESSED.comparisons, RATE))
"""Slower, with more collectives."""
STEP_TIME = make_comparison(
    "step_time",
    0.03,
    Verdict.UNCHANGED,
    baseline=0.03,
    change=0.001,
    change_interval=make_interval(-0.002, 0.004),
    interval=make_interval(0.0299, 0.0301),
    samples=(0.0299, 0.0301),
    bound=0.004,
)
UNCHANGED = make_result(test="t.py::test_b", comparisons=(STEP_TIME,), verdict=Verdict.UNCHANGED)
BROKEN = make_result(
    test=f"t.py::test_c[{HOSTILE}]",
    measured={"name": HOSTILE, "launches": ()},
    comparisons=(),
    verdict=Verdict.BROKEN,
    findings=(Finding("broken", {"reason": f"rank 1 raised {HOSTILE}"}),),
)
"""A benchmark that could not be measured, of a name that is markup everywhere."""
STEP: dict[str, Any] = {
    "world_size": 64,
    "network": "pcie-ethernet100",
    "accelerator": "h100",
    "seconds": 0.04,
    "low": 0.03,
    "high": 0.05,
    "samples": 64.0,
    "lost": 0.25,
    "computing": 0.03,
    "communication": 0.02,
    "exposed": 0.01,
    "efficiency": 0.75,
    "efficiency_low": 0.6,
    "efficiency_high": 0.9,
}
