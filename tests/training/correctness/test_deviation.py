"""How far tensors are apart; numbers by hand, from the triangle of 3, 4 and 5."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pytest_ddpperf.training.correctness.deviation import (
    Deviation,
    apart_from_rounding,
    buffer_deviations,
    deviations_of,
    distance,
    norm,
    parameter_deviations,
)


def of(*values: float) -> Tensor:
    return torch.tensor(values)


def errors(deviations: list[Deviation]) -> dict[str, float]:
    return {one.name: one.error for one in deviations}


def faults(deviations: list[Deviation]) -> dict[str, str]:
    return {one.name: one.fault for one in deviations if one.fault}


def test_a_gradients_error_is_relative_to_itself_or_to_what_it_is_the_mean_of() -> None:
    """(3, 4) for (3, 0): 4 off, of 3. (6, 8) for (3, 4): 5 off, of 5, or of the parts' 10."""
    found, expected = {"a": of(3, 4), "b": of(6, 8)}, {"a": of(3, 0), "b": of(3, 4)}
    assert errors(deviations_of(found, expected)) == {"a": 4 / 3, "b": 1.0}
    assert errors(deviations_of(found, expected, {"a": 4.0, "b": 10.0})) == {"a": 1.0, "b": 0.5}


def test_what_rounding_may_have_made_is_no_error() -> None:
    """Where noise (0.5) is half of a size (1) or more, four times that is excused, 2: a is 1 off, half of what may be.

    Else twice the noise, but an eighth of the size at most: c's 0.5 of a size of 8 is half of what may be, and d's 3
    of 8 are too much. What is below the tolerance stays as it is (b, 0.001 of 1).
    """
    found = {"a": of(1.0), "b": of(1.001), "c": of(8.5), "d": of(11.0), "e": of(math.nan)}
    expected = {"a": of(0.0), "b": of(1.0), "c": of(8.0), "d": of(8.0), "e": of(0.0)}
    sizes = {"a": 1.0, "b": 1.0, "c": 8.0, "d": 8.0, "e": 1.0}
    noise = {"a": 0.5, "b": 0.5, "c": 0.5, "d": 2.0, "e": 0.5}
    judged = errors(apart_from_rounding(deviations_of(found, expected, sizes), sizes, noise, 0.01))
    assert judged == {"a": 0.005, "b": pytest.approx(0.001, rel=0.01), "c": 0.005, "d": 0.375, "e": math.inf}


def test_a_gradient_that_is_only_small_is_no_rounding() -> None:
    """Of 1e-6, beside one of 5: dropped, it is all of itself off."""
    sizes = {"a": 5.0, "b": 1e-6}
    deviations = deviations_of({"a": of(5.0), "b": None}, {"a": of(5.0), "b": of(1e-6)}, sizes)
    judged = errors(apart_from_rounding(deviations, sizes, {"a": 1e-1, "b": 1e-7}, 0.05))
    assert judged == {"a": 0.0, "b": pytest.approx(1.0)}


def test_no_gradient_and_one_of_zeros_are_the_same() -> None:
    found = {"a": None, "b": of(0, 0), "c": of(1.0)}
    expected = {"a": of(0, 0), "b": None, "c": of(1.0), "d": None, "e": of(0.0)}
    assert errors(deviations_of(found, expected)) == dict.fromkeys("abcde", 0.0)


def test_a_gradient_where_there_should_be_none_and_the_other_way_round() -> None:
    """Nothing is what a should be, and b lacks all of itself."""
    deviations = deviations_of({"a": of(1.0), "b": None, "c": of(1.0)}, {"a": None, "b": of(0.5), "c": of(1.0)})
    assert errors(deviations) == {"a": math.inf, "b": 1.0, "c": 0.0}


def test_what_no_number_can_say_is_a_fault() -> None:
    found = {"nan": of(math.nan), "inf": of(math.inf), "flat": of(1, 2), "stranger": of(1.0)}
    expected = {"nan": of(1.0), "inf": of(1.0), "flat": torch.ones(2, 1), "lost": of(1.0)}
    deviations = deviations_of(found, expected)
    assert faults(deviations) == {
        "nan": "is not finite",
        "inf": "is not finite",
        "flat": "has shape (2,) instead of (2, 1)",
        "lost": "is missing",
        "stranger": "is no parameter of the model",
    }
    assert all(one.error == math.inf for one in deviations)


def test_a_gradient_where_all_are_zero_is_infinitely_wrong() -> None:
    assert errors(deviations_of({"a": of(1e-9)}, {"a": of(0.0)})) == {"a": math.inf}


def test_a_parameters_error_is_relative_to_its_way() -> None:
    """From (0, 0) to (3, 4) is 5; found at (3, 3) it is 1 off. What never moves may not move at all."""
    start = {"a": of(0, 0), "b": of(1.0), "c": of(1.0)}
    expected = {"a": of(3, 4), "b": of(1.0), "c": of(1.0)}
    found = {"a": of(3, 3), "b": of(1.0), "c": of(1.5)}
    deviations = errors(parameter_deviations(found, expected, start))
    assert deviations["a"] == pytest.approx(0.2)
    assert deviations["b"] == 0.0
    assert deviations["c"] > 1


def test_a_parameter_may_differ_by_its_own_rounding() -> None:
    """An update of one unit in the last place of 1, 1.2e-7: twice as much is still as good as right (below 1e-3)."""
    unit = torch.finfo(torch.float32).eps
    start, expected, found = {"a": of(1.0)}, {"a": of(1 + unit)}, {"a": of(1 + 3 * unit)}
    assert 0 < errors(parameter_deviations(found, expected, start))["a"] < 1e-3


def test_whole_numbers_have_no_rounding() -> None:
    start = {"a": torch.tensor([1])}
    assert errors(parameter_deviations({"a": torch.tensor([2])}, start, start)) == {"a": math.inf}


def test_states_are_relative_to_themselves() -> None:
    assert errors(deviations_of({"a": of(3, 5)}, {"a": of(3, 4)})) == {"a": 0.2}
    assert errors(deviations_of({"a": torch.tensor([True])}, {"a": torch.tensor([False])})) == {"a": math.inf}


def test_buffers_are_known_by_their_order() -> None:
    assert errors(buffer_deviations([of(1.0), of(2.0)], [of(1.0), of(1.0)], ["a", "b"])) == {"a": 0.0, "b": 1.0}
    assert faults(buffer_deviations([], [of(1.0)], ["a"])) == {"the number of buffers": "is 0 instead of 1"}


def test_equal_infinities_are_no_distance_apart() -> None:
    mask = of(-math.inf, 0, math.nan)
    assert distance(mask, mask.clone()) == 0
    assert not math.isfinite(distance(mask, of(math.inf, 0, 0)))


def test_norms_of_all_kinds_of_numbers() -> None:
    assert norm(torch.tensor([[3, 0], [0, 4]])) == 5
    assert norm(torch.tensor([3 + 4j])) == 5
    assert norm(torch.full((2, 2), 2.0**100, dtype=torch.bfloat16)) == 2.0**101
    assert distance(torch.tensor([3 + 4j]), torch.tensor([0j])) == 5
