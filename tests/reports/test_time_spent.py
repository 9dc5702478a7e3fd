"""Where the time of calls went, in words and as a part of the summary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.reports.breakdown import time_table, time_text
from pytest_ddpperf.reports.outputs import Outputs
from pytest_ddpperf.reports.screen import summary_parts
from pytest_ddpperf.reports.table import render
from tests.reports.made import make_result

SPENT = TimeSpent(starting=12.3, verifying=5.2, counting=4.1, measuring=30.6, diagnosing=5.8)


@pytest.mark.parametrize(
    ("spent", "text"),
    [
        (SPENT, "58 s: starting 12, verifying 6, counting 4, measuring 30, diagnosing 6"),  # 12.3, 17.5, 21.6, 52.2, 58
        (TimeSpent(starting=0.42, counting=0.26), "0.7 s: starting 0.4, counting 0.3"),
        (TimeSpent(measuring=60.0, other=0.3), "60 s: measuring 60"),
    ],
)
def test_rounded_parts_add_up_and_none_is_0(spent: TimeSpent, text: str) -> None:
    assert time_text(spent) == text


def test_a_call_has_a_row_on_the_screen() -> None:
    parts = dict(summary_parts(Outputs(results=[make_result(spent=SPENT)]), verbosity=1))
    assert parts["ddpperf time"].splitlines()[0] == "time of 1 benchmark, 58 s in all"
    assert "ddpperf time" not in dict(summary_parts(Outputs(results=[make_result()]), verbosity=1))


def test_several_have_a_table_the_slowest_first() -> None:
    """A call that measured two variants counts once, and its benchmarks are as many as elsewhere in the summary."""
    spent = {"20": replace(SPENT, measuring=20.0, other=1.0), "50": replace(SPENT, measuring=50.0, other=1.0)}
    results = [make_result(test=f"t.py::test_{name}", spent=each) for name, each in spent.items()]
    first = results[0]
    both = [
        replace(first, test="t.py::test_both", spent=SPENT, measurement=replace(first.measurement, name=name))
        for name in ("a", "b")
    ]
    assert render(time_table([*results, *both]), 100).splitlines() == [
        "time of 4 benchmarks in 3 calls, 185 s in all",
        "benchmark          all  starting  verifying  counting  measuring  diagnosing  other",
        "                     s         s          s         s          s           s      s",
        "----------------  ----  --------  ---------  --------  ---------  ----------  -----",
        "test_50 bucketed  78.4      12.3       5.20      4.10       50.0        5.80   1.00",
        "test_both         58.0      12.3       5.20      4.10       30.6        5.80      -",
        "test_20 bucketed  48.4      12.3       5.20      4.10       20.0        5.80   1.00",
    ]
