"""Where the time of calls went, in words and as a part of the summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.outputs import Outputs
from pytest_ddpperf.reports.summary import summary_parts
from pytest_ddpperf.reports.time_spent import time_part, time_text

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


def test_one_benchmark_has_a_line(make_result: Callable[..., Result]) -> None:
    text = time_part([make_result(spent=SPENT)], 40)
    assert text.splitlines() == ["58 s: starting 12, verifying 6, counting", "  4, measuring 30, diagnosing 6"]
    assert dict(summary_parts(Outputs(results=[make_result(spent=SPENT)])))["ddpperf time"] == time_text(SPENT)
    assert time_part([make_result()], 40) == ""


def test_several_have_the_three_slowest_and_all_where_it_is_asked(make_result: Callable[..., Result]) -> None:
    """A call that measured two variants counts once, and its benchmarks are as many as elsewhere in the summary."""
    seconds = (20.0, 50.0, 30.0, 40.0)
    results = [make_result(test=f"t.py::test_{n:.0f}", spent=replace(SPENT, measuring=n, other=1.0)) for n in seconds]
    both = [
        replace(results[0], test="t.py::test_both", spent=SPENT, measurement=replace(results[0].measurement, name=name))
        for name in ("a", "b")
    ]
    assert time_part([*results, *both], 100).splitlines() == [
        "seconds of 6 benchmarks in 5 calls, 312 in all; the 3 slowest of 5 calls",
        "benchmark         all  starting  verifying  counting  measuring  diagnosing  other",
        "----------------  ---  --------  ---------  --------  ---------  ----------  -----",
        "test_50 bucketed   78        12          6         4         50           5      1",
        "test_40 bucketed   68        12          6         4         40           5      1",
        "test_30 bucketed   58        12          6         4         30           5      1",
    ]
    assert time_part(results, 100).splitlines()[0] == "seconds of 4 benchmarks, 254 in all; the 3 slowest of 4"
    every = time_part([*results, *both], 100, every=True)
    assert every.splitlines()[0] == "seconds of 6 benchmarks in 5 calls, 312 in all"
    assert [line.split()[0] for line in every.splitlines()[3:]] == [f"test_{n}" for n in (50, 40, 30)] + [
        "test_both",
        "test_20",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(make_result: Callable[..., Result], width: int) -> None:
    results = [make_result(test=f"t.py::test_{'long' * n}", spent=replace(SPENT, other=float(n))) for n in range(20)]
    assert max(map(len, time_part(results, width).splitlines())) <= width
