from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_ddpperf.cli.bisect.bisector import ShiftEstimate, classify, middle_tolerance, shift_of
from pytest_ddpperf.records.measurement import Scale
from pytest_ddpperf.records.results import Comparison
from pytest_ddpperf.records.verdict import Verdict
from tests.factories import make_series

SERIES = make_series("step_time", 0.05)
# Worse by a quarter: 0.223 in logarithms, known to 0.01, with 7 degrees of freedom.
COMPARISON = Comparison(
    series=SERIES,
    baseline=0.04,
    change=0.25,
    standard_error=0.01,
    tolerance=0.03,
    mde=0.02,
    verdict=Verdict.REGRESSED,
    gated=True,
    df=7,
)
BAD = ShiftEstimate(0.2, 0.01, 7)


def test_the_shift_of_a_time() -> None:
    shift = shift_of(COMPARISON)
    assert shift is not None
    assert (shift.worsening, shift.standard_error) == pytest.approx((math.log(1.25), 0.01))
    assert shift.df == 7
    fallen = shift_of(replace(COMPARISON, series=replace(SERIES, better="higher"), change=-0.2))
    assert fallen is not None
    assert fallen.worsening == pytest.approx(math.log(1.25))


def test_the_shift_of_a_count_has_no_error() -> None:
    counted = replace(COMPARISON, series=replace(SERIES, scale="exact"), change=2.0, standard_error=None)
    assert shift_of(counted) == ShiftEstimate(2.0, 0.0, math.inf)
    assert shift_of(replace(counted, change=0.0)) == ShiftEstimate(1.0, 0.0, math.inf)  # as much of something else
    assert shift_of(replace(counted, change=0.0, verdict=Verdict.UNCHANGED)) == ShiftEstimate(0.0, 0.0, math.inf)


def test_a_comparison_without_a_change_or_its_error_has_no_shift() -> None:
    assert shift_of(replace(COMPARISON, change=None)) is None
    assert shift_of(replace(COMPARISON, standard_error=None)) is None


@pytest.mark.parametrize(("worsening", "answer"), [(-0.1, "good"), (0.099, "good"), (0.1, "bad"), (0.5, "bad")])
def test_the_nearer_end_is_the_one_that_a_commit_is_like(worsening: float, answer: str) -> None:
    assert classify(ShiftEstimate(worsening, 0.01, 7), BAD).answer == answer


def test_the_error_is_that_of_the_other_end() -> None:
    """One-sided 1 % of Student's t with 7 degrees of freedom is beyond 2.998; looks may err as often as 16 apart."""
    assert classify(ShiftEstimate(0.2, 0.2 / 2.998, 7), BAD).error == pytest.approx(0.16, rel=1e-3)
    # As good as the good end: the bad end's own error adds to the commit's: hypot(3, 4) is 5.
    good = classify(ShiftEstimate(0.0, 0.03, 7), ShiftEstimate(5 * 0.01 * 2.998, 0.04, 7))
    assert good.answer == "good"
    assert good.error == pytest.approx(0.16, rel=1e-3)


def test_two_errors_have_the_freedom_of_the_one_that_is_known_less() -> None:
    for commit, bad in ((7, 40), (40, 7)):
        good = classify(ShiftEstimate(0.0, 0.03, commit), ShiftEstimate(5 * 0.01 * 2.998, 0.04, bad))
        assert good.error == pytest.approx(0.16, rel=1e-3)
    # One without any error has no freedom to lack.
    assert classify(ShiftEstimate(0.0, 0.05, 7), ShiftEstimate(5 * 0.01 * 2.998, 0.0, 1)).error == pytest.approx(
        0.16, rel=1e-3
    )


@pytest.mark.parametrize(
    ("scale", "unit", "baseline", "expected"),
    [
        ("ratio", "s", 0.04, math.sqrt(1.25) - 1),
        ("difference", "1", 0.5, 0.05),
        ("difference", "1", 10.0, 0.005),
        ("difference", "B", 2.0, 0.025),
        ("difference", "B", 0.0, 0.05),
    ],
)
def test_the_middle_is_said_as_the_tolerance_is(scale: Scale, unit: str, baseline: float, expected: float) -> None:
    comparison = replace(COMPARISON, series=replace(SERIES, scale=scale, unit=unit), baseline=baseline)
    bad = ShiftEstimate(math.log(1.25) if scale == "ratio" else 0.1, 0.0, 7)
    assert middle_tolerance(bad, comparison) == pytest.approx(expected)
