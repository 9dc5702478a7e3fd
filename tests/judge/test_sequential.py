from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_ddpperf.judge.sequential import (
    STOP,
    Action,
    Phase,
    alpha_of_benchmark,
    blind_metrics,
    next_action,
    phase_after,
    suspicious_metrics,
    wants_launches,
)
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import MetricRules
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from tests.factories import make_measurement, make_result, make_series


@pytest.mark.parametrize(
    ("verdicts", "last", "expected"),
    [
        pytest.param((), False, STOP, id="nothing is judged"),
        pytest.param((Verdict.NEW, Verdict.INCOMPATIBLE, Verdict.IMPROVED), False, STOP, id="decided or foreign"),
        pytest.param((Verdict.UNCHANGED, Verdict.INCONCLUSIVE), False, Action("more", 1), id="one is open"),
        pytest.param((Verdict.INCONCLUSIVE,), True, STOP, id="no time is left"),
        pytest.param((Verdict.REGRESSED,), True, Action("confirm", 6), id="what is worse is confirmed even then"),
    ],
)
def test_open_verdicts_ask_for_a_launch_and_worse_ones_for_a_confirmation(
    verdicts: tuple[Verdict, ...], expected: Action, *, last: bool
) -> None:
    assert next_action(Phase.SCREEN, verdicts, launches=6, suspects=False, last=last) == expected


@pytest.mark.parametrize(
    ("benchmarks", "expected", "side_by_side"),
    [(1, 0.01, 0.007), (20, 0.002, 0.00175), (50, 0.0008, 0.0007), (0, 0.01, 0.007)],
)
def test_benchmarks_share_the_level(benchmarks: int, expected: float, side_by_side: float) -> None:
    assert alpha_of_benchmark(benchmarks) == pytest.approx(expected)
    assert alpha_of_benchmark(benchmarks, paired=True) == pytest.approx(side_by_side)


NOT_GROSS = Finding("not_gross", {"gross": 0.5})
ALARM = MetricRules(partnered=True, alarm_only=True)


def compared(metric: str = "step_time", *, unit: str = "s", **fields: Any) -> Comparison:
    """An undecided and gated metric that was 1.0 before, compared with what was stored."""
    columns = {name: fields.pop(name) for name in ("scale", "better", "rules") if name in fields}
    series = make_series(metric, 1.0, unit=unit, **columns)
    defaults = {"tolerance": 0.03, "verdict": Verdict.INCONCLUSIVE, "gated": True, "baseline": 1.0, "change": 0.1}
    return Comparison(series=series, **{**defaults, **fields})


def result(*comparisons: Comparison) -> Result:
    series = tuple(each.series for each in comparisons)
    return make_result(
        measurement=make_measurement(series=series), comparisons=comparisons, verdict=Verdict.INCONCLUSIVE
    )


@pytest.mark.parametrize(
    ("comparison", "wanted"),
    [
        pytest.param(compared(paired=True), True, id="a time that is paired"),
        pytest.param(compared("peak_resident", unit="B"), True, id="bytes beside what was stored"),
        pytest.param(compared("final_loss", rules=MetricRules(drifts=False)), True, id="a loss"),
        pytest.param(compared("flops", scale="exact", paired=True), False, id="a count"),
        pytest.param(compared(baseline=None, change=None, verdict=Verdict.NEW), True, id="a time without a baseline"),
        pytest.param(compared(note=Finding("stored_times"), verdict=Verdict.OK), False, id="no slower than stored"),
        pytest.param(compared(note=Finding("busy", {"now": 0.3, "then": None}), change=9.0), False, id="when busy"),
        pytest.param(compared(note=Finding("other_step_time"), change=None), False, id="of usual steps"),
        pytest.param(compared(note=NOT_GROSS, change=0.49), False, id="slower by 49 %"),
        pytest.param(compared(note=NOT_GROSS, change=0.51), True, id="slower by 51 %"),
        pytest.param(compared(note=NOT_GROSS, change=-0.9), False, id="faster"),
        # 1 / 1.5 is 66.7 %
        pytest.param(compared(note=NOT_GROSS, better="higher", change=-0.33), False, id="a rate of 67 %"),
        pytest.param(compared(note=NOT_GROSS, better="higher", change=-0.34), True, id="a rate of 66 %"),
        pytest.param(compared(note=NOT_GROSS, scale="difference", baseline=0.1, change=0.051), True, id="0.051 s"),
        pytest.param(compared(note=NOT_GROSS, scale="difference", baseline=0.1, change=0.049), False, id="0.049 s"),
    ],
)
def test_a_comparison_asks_for_launches_if_they_may_decide_it(comparison: Comparison, *, wanted: bool) -> None:
    assert wants_launches(comparison) is wanted


def test_a_worse_metric_is_suspected_if_launches_may_confirm_it() -> None:
    paired, memory = compared("cpu_time", paired=True), compared("peak_resident", unit="B")
    suspects = [replace(each, suspicious=True) for each in (paired, memory)]
    stored = compared(verdict=Verdict.INCONCLUSIVE, note=NOT_GROSS, suspicious=True)
    count = compared("flops", scale="exact", verdict=Verdict.REGRESSED)
    red = compared("throughput", paired=True, verdict=Verdict.REGRESSED)
    ungated = replace(suspects[0], gated=False)
    assert suspicious_metrics(result(*suspects, stored, count, red, ungated)) == (
        "cpu_time",
        "peak_resident",
        "throughput",
    )
    assert suspicious_metrics(result(paired, memory)) == ()


def test_metrics_that_more_launches_may_decide_are_blind() -> None:
    paired = compared(paired=True)
    others = (
        compared(note=NOT_GROSS),  # stored times
        compared("a", paired=True, verdict=Verdict.OK),
        compared("b", paired=True, rules=ALARM),
        compared("c", paired=True, note=Finding("no_launches_decide", {})),
        compared("d", paired=True, note=Finding("unconfirmed")),
        compared("e", paired=True, gated=False),
    )
    assert blind_metrics(result(paired, *others)) == [paired]


def test_a_confirmation_goes_on_if_no_time_is_left_to_confirm_another_suspicion() -> None:
    assert phase_after(Action("more", 1), Phase.CONFIRM, screened=True) is Phase.CONFIRM
    assert phase_after(Action("more", 1), Phase.SCREEN, screened=True) is Phase.CLEAR
