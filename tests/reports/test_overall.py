"""The last line of a session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.overall import overall_lines
from tests.reports.conftest import comparison

Make = Callable[..., Result]


@pytest.fixture
def timed(make_result: Make) -> Callable[..., Result]:
    """A benchmark with a verdict by its step time, which has a bound, and with other metrics."""

    def made(verdict: Verdict, bound: float | None = None, *others: Comparison, name: str = "a") -> Result:
        step = comparison("step_time", 0.04, verdict, bound=bound)
        return make_result(test=f"t.py::test_{name}[bucketed]", verdict=verdict, comparisons=(step, *others))

    return made


def counted(verdict: Verdict) -> Comparison:
    made = comparison("flops", 2.0, verdict)
    return replace(made, series=replace(made.series, scale="exact"))


def test_the_worst_verdict_comes_first_and_0_regressed_are_told(timed: Make) -> None:
    ok = [timed(Verdict.OK, bound) for bound in (0.031, 0.049, 0.092)]
    others = [timed(Verdict.IMPROVED), *(timed(Verdict.UNCHANGED) for _ in range(9))]
    line, *_ = overall_lines([*others, timed(Verdict.INCONCLUSIVE, 0.14, name="larger"), *ok])
    assert line == (
        "14 benchmarks: 0 regressed, 1 inconclusive (could be slower: test_larger[bucketed] +14.0 %), "
        "3 ok (a slowdown beyond 3.1 % to 9.2 % would have shown), 9 unchanged, 1 improved"
    )
    assert overall_lines([timed(Verdict.UNCHANGED)])[0] == "1 benchmark: 0 regressed, 1 unchanged"
    line, *_ = overall_lines([timed(Verdict.REGRESSED), timed(Verdict.BROKEN), timed(Verdict.REGRESSED)])
    assert line == "3 benchmarks: 1 broken, 2 regressed"


def test_of_many_undecided_benchmarks_those_that_could_be_slowest_are_named(timed: Make) -> None:
    bounds = {"a": 0.11, "b": 0.35, "c": None, "d": 0.2, "e": 12.0}
    line, *_ = overall_lines([timed(Verdict.INCONCLUSIVE, bound, name=name) for name, bound in bounds.items()])
    assert line == (
        "5 benchmarks: 0 regressed, 5 inconclusive "
        "(could be slower: test_e[bucketed] >+1000 %, test_b[bucketed] +35.0 %, test_d[bucketed] +20.0 % and 2 more)"
    )


def test_a_benchmark_whose_memory_is_undecided_is_not_called_slower(make_result: Make) -> None:
    memory = comparison("peak_resident", 4e8, Verdict.INCONCLUSIVE, bound=0.12)
    step = comparison("step_time", 0.04, Verdict.UNCHANGED, bound=0.02)
    result = make_result(test="t.py::test_a[bucketed]", verdict=Verdict.INCONCLUSIVE, comparisons=(step, memory))
    assert "1 inconclusive (could be worse: test_a[bucketed] +12.0 %)" in overall_lines([result])[0]


def test_counts_that_are_compared_without_times_are_told(timed: Make) -> None:
    new = [timed(Verdict.NEW, None, *counts) for counts in ((), (counted(Verdict.UNCHANGED),), ())]
    foreign = timed(Verdict.INCOMPATIBLE, None, counted(Verdict.IMPROVED))
    assert overall_lines([*new, foreign])[0] == (
        "4 benchmarks: 0 regressed, 1 incompatible (1 with counts changed), 3 new (1 with counts same)"
    )
