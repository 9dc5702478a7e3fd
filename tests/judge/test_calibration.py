"""What runs of the same code beside itself say of a machine, worked by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_ddpperf.judge.calibration import Calibrated
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.stats.intervals import clopper_pearson
from tests.factories import make_measurement, make_result, make_series

R, U, O, I = Verdict.REGRESSED, Verdict.UNCHANGED, Verdict.OK, Verdict.INCONCLUSIVE  # noqa: E741


def run(verdict: Verdict = U, *, seconds: float = 1.0, bound: float | None = None, mde: float | None = None) -> Result:
    """A run whose step takes so long."""
    series = make_series("step_time", seconds)
    step = Comparison(series=series, tolerance=0.015, verdict=verdict, gated=True, bound=bound, mde=mde)
    return make_result(measurement=make_measurement(series=(series,)), comparisons=(step,), verdict=verdict)


def calibrated(*runs: Result) -> Calibrated:
    return Calibrated(test="t.py::test", results=runs)


def test_a_red_run_is_a_false_alarm() -> None:
    """One of eight was red, and five were green: an open one is neither."""
    one = calibrated(*map(run, (R, U, U, O, Verdict.IMPROVED, O, I, I)))
    assert (one.alarms.value, one.green.value) == (1 / 8, 5 / 8)
    assert one.alarms.interval == clopper_pearson(1, 8)
    assert one.green.interval == clopper_pearson(5, 8)


def test_bound_and_mde_of_a_calibration_come_from_the_median_run() -> None:
    """A run without a known scatter tells neither."""
    runs = [run(bound=bound, mde=mde) for bound, mde in ((0.02, 0.05), (0.05, 0.03), (None, None), (0.03, 0.09))]
    assert (calibrated(*runs).bound, calibrated(*runs).mde) == (0.03, 0.05)
    assert (calibrated(run()).bound, calibrated(run()).mde) == (None, None)


@pytest.mark.parametrize(
    ("seconds", "gross"),
    [
        ([1.0], 0.5),
        ([1.0, 1.1, 1.05], 0.5),  # 15 %
        ([1.3, 1.0], 0.5),  # 45 %
        ([1.0, 1.25, 0.8], 0.8),  # 1.25 / 0.8 is 56.25 % more: 84 %, rounded to a tenth
        ([1.0, 2.0], 1.5),
    ],
)
def test_gross_is_half_as_much_again_as_runs_were_apart(seconds: Sequence[float], gross: float) -> None:
    assert calibrated(*(run(seconds=each) for each in seconds)).gross == pytest.approx(gross)
