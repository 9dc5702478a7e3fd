"""Runs that are added to a baseline."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.baselines.runs import MOST_RUNS, adds_run, changed_counts, lies_apart, with_run
from pytest_ddpperf.metrics.table import METRICS
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Control, Plan
from pytest_ddpperf.records.results import BaselineRecord, Comparison
from pytest_ddpperf.records.verdict import Verdict
from tests.baselines.conftest import RECORD
from tests.factories import make_new_result, make_series

ROWS = {metric.name: metric for metric in METRICS}


def run(*seconds: float, day: str = "2026-01-12", **fields: Any) -> BaselineRecord:
    series = (ROWS["step_time"].series(seconds), ROWS["peak_resident"].series((5e8,)))
    steps = tuple({"min": second} for second in seconds)
    return replace(RECORD, **{"series": series, "steps": steps, "date": day, **fields})


@pytest.mark.parametrize(
    "other",
    [
        {"commit": "9d8c7b6"},
        {"commit": None},
        {"dirty": True},
        {"plan": Plan(warmup=5, steps=61)},
        {"turns": True},
        {"strategy": "fsdp2"},
        {"recipe": {"precision": "bf16"}},
        {"steps": ()},
    ],
)
def test_only_the_same_code_measured_in_the_same_way_is_a_run_more(other: dict[str, Any]) -> None:
    assert adds_run(run(1.0), run(1.1, day="2026-01-13"))
    assert not adds_run(run(1.0), run(1.1, **other))
    assert not adds_run(run(1.0, **other), run(1.1))
    assert not adds_run(None, run(1.1))


def test_a_baseline_of_two_runs_lies_between_them() -> None:
    """The centers are 1 and e^2, whatever the numbers of their launches: e^1; with t(97.5 %, 1 df) = 12.706 around."""
    both = with_run(run(1.0, 1.0, lost=0.1), run(*[math.exp(2)] * 4, day="2026-01-14", lost=0.3))
    step_time, memory = both.series
    assert step_time.samples == (1.0, 1.0, *[math.exp(2)] * 4)
    assert step_time.value == pytest.approx(math.e)
    assert step_time.interval is not None
    assert math.log(step_time.interval.high) == pytest.approx(1 + 12.7062, rel=1e-4)
    assert [(each.launches, each.date, each.lost) for each in both.runs] == [
        (2, "2026-01-12", 0.1),
        (4, "2026-01-14", 0.3),
    ]
    assert (both.date, len(both.steps)) == ("2026-01-14", 6)
    assert both.lost == pytest.approx(0.2)
    assert memory.samples == (5e8, 5e8)
    assert both.sizes_of_runs(step_time) == (2, 4)
    assert both.sizes_of_runs(memory) == ()  # one number for each run: which launch it is of is not told


def test_the_mean_of_runs_is_as_good_as_that_of_their_days() -> None:
    """Of two runs of one day and one of another, days have the weights 2/3 and 1/3: 1 / (4/9 + 1/9)."""
    one_day = with_run(run(1.0), run(1.1))
    assert (run(1.0).days, one_day.days) == (1, 1)
    assert with_run(one_day, run(1.2, day="2026-01-13")).days == pytest.approx(9 / 5)
    assert with_run(run(1.1), run(1.2, day="2026-01-13")).days == 2


def test_the_oldest_run_is_left_out_of_too_many() -> None:
    record = run(1.0, 1.0)
    for number in range(MOST_RUNS):
        record = with_run(record, run(2.0 + number, day="2026-01-13"))
    assert len(record.runs) == len(record.steps) == MOST_RUNS
    assert record.series[0].samples == tuple(2.0 + number for number in range(MOST_RUNS))


def test_control_steps_stay_with_the_launches_that_they_are_of() -> None:
    def controlled(*seconds: float) -> BaselineRecord:
        plain = run(*[1.0] * len(seconds))
        return replace(plain, series=(replace(plain.series[0], control=Control(seconds=seconds)), plain.series[1]))

    both = with_run(controlled(0.1, 0.2), controlled(0.3))
    assert both.series[0].control == Control(seconds=(0.1, 0.2, 0.3))
    for _ in range(MOST_RUNS - 1):
        both = with_run(both, controlled(0.4))
    assert both.series[0].control == Control(seconds=(0.3, *[0.4] * (MOST_RUNS - 1)))
    assert not adds_run(run(1.0), controlled(0.1))  # without times of the control step no quotient could be compared
    assert not adds_run(controlled(0.1), run(1.0))


def test_what_one_run_alone_has_stays() -> None:
    both = with_run(run(1.0), replace(run(1.1), series=(run(1.1).series[0], ROWS["throughput"].series((8.0,)))))
    assert [(series.metric, len(series.samples)) for series in both.series] == [
        ("step_time", 2),
        ("throughput", 1),
        ("peak_resident", 1),
    ]


def test_counts_of_runs_have_to_be_equal_where_they_are_known() -> None:
    def of(calls: float, **fields: Any) -> BaselineRecord:
        totals = {"collective_calls": calls, "flops": 1e9}
        return run(1.0, counts=Counts(totals=totals, details={}, **{"unstable": {}, **fields}))

    assert changed_counts(of(2), of(2)) == ()
    assert changed_counts(of(2), of(3)) == ("collective_calls",)
    assert changed_counts(of(2), of(3, unstable={"collective_calls": "all_reduce"})) == ()
    assert changed_counts(of(2), run(1.0)) == ()


@pytest.mark.parametrize(
    ("metric", "verdict", "expected"),
    [
        ("step_time", Verdict.REGRESSED, True),
        ("step_time", Verdict.IMPROVED, True),
        ("step_time", Verdict.INCONCLUSIVE, False),
        ("peak_resident", Verdict.REGRESSED, False),
    ],
)
def test_a_time_that_is_judged_to_differ_lies_apart(metric: str, verdict: Verdict, *, expected: bool) -> None:
    series = ROWS[metric].series((1.0, 1.0)) if metric == "step_time" else make_series(metric, 5e8, unit="B")
    judged = Comparison(series=series, tolerance=0.03, verdict=verdict, gated=True)
    assert lies_apart(replace(make_new_result(), comparisons=(judged,))) is expected


def test_a_count_that_steps_of_one_run_differed_in_stays_unstable() -> None:
    """With the most of any step, so that a later run is not red for what an earlier one was seen to do."""

    def of(calls: float, unstable: dict[str, str]) -> BaselineRecord:
        totals = {"collective_calls": calls, "flops": 1e9}
        return run(1.0, counts=Counts(totals=totals, details={"collective_calls": {"send": calls}}, unstable=unstable))

    for runs in ((of(3, {"collective_calls": "send"}), of(2, {})), (of(2, {}), of(3, {"collective_calls": "send"}))):
        counts = with_run(*runs).counts
        assert counts is not None
        assert counts.totals == {"collective_calls": 3, "flops": 1e9}
        assert counts.details["collective_calls"] == {"send": 3}
        assert counts.unstable == {"collective_calls": "send"}
