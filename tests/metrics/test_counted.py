"""Counts as series."""

from __future__ import annotations

from pytest_ddpperf.metrics.counted import counted_series
from pytest_ddpperf.records.counts import Counts


def test_each_count_is_one_exact_number() -> None:
    """Derived counts are shown and not gated; those that differ from step to step are for the comparison to judge."""
    totals = {"flops": 300.0, "collective_calls": 2.0, "flops_forward": 100.0, "operators": 7.0}
    calls, flops, forward, operators = counted_series(
        Counts(totals=totals, details={}, unstable={"operators": "add 3, then 4"})
    )
    assert [one.metric for one in (calls, flops, forward, operators)] == [
        "collective_calls",
        "flops",
        "flops_forward",
        "operators",
    ]
    assert (calls.value, calls.samples, calls.scale, calls.family, calls.gated) == (
        2.0,
        (2.0,),
        "exact",
        "counted",
        True,
    )
    assert (flops.unit, flops.gated, forward.gated, operators.gated) == ("FLOP", True, False, True)
