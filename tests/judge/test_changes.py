"""The worsening of all steps together, and how many launches would decide, worked by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.changes import worsening_of_all_steps
from pytest_ddpperf.judge.detection import LAST_SHARE
from pytest_ddpperf.records.measurement import MetricRules
from tests.judge.made_up import difference, needed, series


def times(samples: Sequence[float]) -> tuple[float, ...]:
    return tuple(samples)


def rates(samples: Sequence[float]) -> tuple[float, ...]:
    """Six in a step."""
    return tuple(6 / sample for sample in samples)


@pytest.mark.parametrize(("metric", "made"), [("step_time", times), ("throughput", rates)])
@pytest.mark.parametrize(
    ("new", "base", "expected"),
    [
        pytest.param([1, 1, 3], [1, 1, 1], 0.0, id="a pause in one round is the machine's"),
        pytest.param([1, 3, 5], [1, 1, 1], 1.0, id="in two it is the code's: 1 + 3 over 1 + 1"),
        pytest.param([1, 30, 50], [1, 1, 1], 14.5, id="however long it is"),
        pytest.param([2, 12, 9], [2, 10, 1], 1 / 6, id="a round counts as much as it took: 2 + 12 over 2 + 10"),
        pytest.param([1.2], [1], 0.2, id="a single round is all there is"),
        pytest.param([0.5, 0.5, 0.5], [1, 1, 1], -0.5, id="shorter"),
    ],
)
def test_the_worsening_of_all_steps_omits_the_worst_round(
    metric: str,
    made: Callable[[Sequence[float]], tuple[float, ...]],
    new: list[float],
    base: list[float],
    expected: float,
) -> None:
    found = worsening_of_all_steps(series(metric, made(new)), series(metric, made(base)))
    assert found == pytest.approx(expected)


def test_a_series_without_rounds_or_steps_has_no_worsening_of_all_steps() -> None:
    one, other = series("step_time", [1.0, 1.0]), series("step_time", [2.0])
    assert worsening_of_all_steps(one, other) is None
    assert worsening_of_all_steps(replace(one, rules=MetricRules()), one) is None
    assert worsening_of_all_steps(replace(one, scale="difference"), one) is None
    assert worsening_of_all_steps(series("step_time", [0.0, 1.0]), one) is None


ALPHA_LAST = 0.05 / LAST_SHARE  # as in test_decision: the level of all looks that makes 0.05 of the last one


@pytest.mark.parametrize(
    ("shift", "error", "expected"),
    [
        (0.0, 0.1, 11),  # 4 * 0.01 / (0.1 / 1.64485)^2 = 10.8
        (0.05, 0.1, 44),  # half the margin, four times the launches: 43.3
        (0.15, 0.1, 7),  # beyond the tolerance what matters is the distance from no change: 6.8
        (0.1, 0.1, None),  # right on the limit: no number would do
        (0.0, None, None),  # of a scatter that is not known
    ],
)
def test_the_number_of_needed_launches_agrees_with_values_by_hand(
    shift: float, error: float | None, expected: int | None
) -> None:
    assert needed(difference(shift, error), tolerance=0.1, alpha=ALPHA_LAST, margin=1.0) == expected


def test_launches_do_not_shrink_the_error_of_the_baseline() -> None:
    """(0.1 / 1.64485)^2 = 0.003696: less than 0.005 that stays, and 0.002696 more than 0.001 that stays."""
    hopeless = difference(0.0, 0.1, fixed=0.005)
    slow = difference(0.0, 0.1, fixed=0.001)
    assert needed(hopeless, tolerance=0.1, alpha=ALPHA_LAST, margin=1.0) is None
    assert needed(slow, tolerance=0.1, alpha=ALPHA_LAST, margin=1.0) == math.ceil(4 * 0.009 / 0.002696)
