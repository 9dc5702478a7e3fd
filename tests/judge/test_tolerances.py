"""The tolerance of each metric, worked by hand."""

from __future__ import annotations

import pytest

from pytest_ddpperf.judge.decision import PAIRED_TOLERANCE, TOLERANCE, DecisionContext
from pytest_ddpperf.judge.tolerances import tolerance_of
from tests.judge.made_up import series


@pytest.mark.parametrize(
    ("metric", "baseline", "tolerance", "expected"),
    [
        ("step_time", 20.0, 0.03, 0.03),
        ("peak_resident", 1e9, 0.03, 0.10),  # the slack
        ("peak_resident", 1e9, 0.20, 0.20),
        ("peak_resident", 2.0**24, 0.20, 0.5),  # 8 of 16 MiB
        ("final_loss", 0.001, 0.0, 0.03),
        ("final_loss", 10.0, 0.0, 0.3),  # 3 % of 10
        ("final_loss", -10.0, 0.05, 0.5),
        ("memory_growth", 1000.0, 0.05, 65536.0),  # the slack, in bytes
        ("memory_growth", 4e6, 0.05, 2e5),
        ("phase_forward", 0.002, 0.03, 6e-5),  # of itself, where no step time is known
    ],
)
def test_tolerances(metric: str, baseline: float, tolerance: float, expected: float) -> None:
    assert tolerance_of(series(metric, (baseline, baseline)), baseline, tolerance) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("baseline", "step", "expected"), [(0.08, 0.1, 0.0375), (0.001, 0.1, 3.0), (0.3, 0.1, 0.03), (0.08, None, 0.03)]
)
def test_what_a_step_has_a_core_for_may_differ_by_what_the_step_may(
    baseline: float, step: float | None, expected: float
) -> None:
    """3 % of a step of 100 ms are 3 ms; with more threads than one it may be above the step, and 3 % are 3 %."""
    assert tolerance_of(series("cpu_time", (0.08, 0.08)), baseline, 0.03, step) == pytest.approx(expected)


def test_less_is_accepted_where_both_sides_are_measured_in_the_same_rounds() -> None:
    auto = DecisionContext(alpha=0.01)
    assert (auto.accepted(paired=False), auto.accepted(paired=True)) == (TOLERANCE, PAIRED_TOLERANCE) == (0.03, 0.015)
    given = DecisionContext(alpha=0.01, tolerance=0.04)
    assert (given.accepted(paired=False), given.accepted(paired=True)) == (0.04, 0.04)
