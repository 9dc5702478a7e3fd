"""The worsening of all steps together, worked by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from pytest_ddpperf.judge.changes import worsening_of_all_steps
from pytest_ddpperf.records.measurement import MetricRules
from tests.judge.made_up import series


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
def test_all_steps_together_are_those_of_all_rounds_but_the_worst(
    metric: str,
    made: Callable[[Sequence[float]], tuple[float, ...]],
    new: list[float],
    base: list[float],
    expected: float,
) -> None:
    found = worsening_of_all_steps(series(metric, made(new)), series(metric, made(base)))
    assert found == pytest.approx(expected)


def test_what_has_no_rounds_or_no_steps_has_no_such_worsening() -> None:
    one, other = series("step_time", [1.0, 1.0]), series("step_time", [2.0])
    assert worsening_of_all_steps(one, other) is None
    assert worsening_of_all_steps(replace(one, rules=MetricRules()), one) is None
    assert worsening_of_all_steps(replace(one, scale="difference"), one) is None
    assert worsening_of_all_steps(series("step_time", [0.0, 1.0]), one) is None
