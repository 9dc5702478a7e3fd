"""How far tensors are apart, by hand from the triangle of 3, 4 and 5; causes of wrong gradients, and tolerances."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.strategies.strategy import Parallel
from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.correctness import deviation, tolerances
from pytest_ddpperf.training.correctness.deviation import Deviation, buffer_deviations, deviations_of
from pytest_ddpperf.training.correctness.tolerances import smallest, tolerance, unit
from pytest_ddpperf.training.verification import Leniency


def of(*values: float) -> Tensor:
    return torch.tensor(values)


def errors(deviations: list[Deviation]) -> dict[str, float]:
    return {one.name: one.error for one in deviations}


def faults(deviations: list[Deviation]) -> dict[str, str]:
    return {one.name: one.fault for one in deviations if one.fault}


def test_the_error_of_a_gradient_is_relative_to_its_norm_or_to_the_norm_of_its_parts() -> None:
    """(3, 4) for (3, 0): 4 off, of 3. (6, 8) for (3, 4): 5 off, of 5, or of the parts' 10."""
    found, expected = {"a": of(3, 4), "b": of(6, 8)}, {"a": of(3, 0), "b": of(3, 4)}
    assert errors(deviations_of(found, expected)) == {"a": 4 / 3, "b": 1.0}
    assert errors(deviations_of(found, expected, {"a": 4.0, "b": 10.0})) == {"a": 1.0, "b": 0.5}


def test_a_difference_that_rounding_may_cause_is_no_error() -> None:
    """Where noise (0.5) is half of a size (1) or more, four times that is excused, 2: a is 1 off, half of what may be.

    Else twice the noise, but an eighth of the size at most: c's 0.5 of a size of 8 is half of what may be, and d's 3
    of 8 are too much. What is below the tolerance stays as it is (b, 0.001 of 1).
    """
    found = {"a": of(1.0), "b": of(1.001), "c": of(8.5), "d": of(11.0), "e": of(math.nan)}
    expected = {"a": of(0.0), "b": of(1.0), "c": of(8.0), "d": of(8.0), "e": of(0.0)}
    sizes = {"a": 1.0, "b": 1.0, "c": 8.0, "d": 8.0, "e": 1.0}
    noise = {"a": 0.5, "b": 0.5, "c": 0.5, "d": 2.0, "e": 0.5}
    judged = errors(deviation.apart_from_rounding(deviations_of(found, expected, sizes), sizes, noise, 0.01))
    assert judged == {"a": 0.005, "b": pytest.approx(0.001, rel=0.01), "c": 0.005, "d": 0.375, "e": math.inf}


def test_no_gradient_and_one_of_zeros_are_the_same() -> None:
    found = {"a": None, "b": of(0, 0), "c": of(1.0)}
    expected = {"a": of(0, 0), "b": None, "c": of(1.0), "d": None, "e": of(0.0)}
    assert errors(deviations_of(found, expected)) == dict.fromkeys("abcde", 0.0)


def test_an_unexpected_gradient_and_a_missing_one_are_errors() -> None:
    """Nothing is what a should be, and b lacks all of itself."""
    deviations = deviations_of({"a": of(1.0), "b": None, "c": of(1.0)}, {"a": None, "b": of(0.5), "c": of(1.0)})
    assert errors(deviations) == {"a": math.inf, "b": 1.0, "c": 0.0}


def test_gradients_that_cannot_be_compared_by_numbers_are_faults() -> None:
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


def test_the_error_of_a_parameter_is_relative_to_its_update() -> None:
    """From (0, 0) to (3, 4) is 5; found at (3, 3) it is 1 off. What never moves may not move at all."""
    start = {"a": of(0, 0), "b": of(1.0), "c": of(1.0)}
    expected = {"a": of(3, 4), "b": of(1.0), "c": of(1.0)}
    found = {"a": of(3, 3), "b": of(1.0), "c": of(1.5)}
    deviations = errors(deviation.parameter_deviations(found, expected, start))
    assert deviations["a"] == pytest.approx(0.2)
    assert deviations["b"] == 0.0
    assert deviations["c"] > 1


def test_a_parameter_may_differ_by_its_own_rounding() -> None:
    """An update of one unit in the last place of 1, 1.2e-7: twice as much is still as good as right (below 1e-3).

    Whole numbers have no rounding.
    """
    unit = torch.finfo(torch.float32).eps
    start, expected, found = {"a": of(1.0)}, {"a": of(1 + unit)}, {"a": of(1 + 3 * unit)}
    assert 0 < errors(deviation.parameter_deviations(found, expected, start))["a"] < 1e-3
    whole = {"a": torch.tensor([1])}
    assert errors(deviation.parameter_deviations({"a": torch.tensor([2])}, whole, whole)) == {"a": math.inf}


def test_buffers_are_known_by_their_order() -> None:
    assert errors(buffer_deviations([of(1.0), of(2.0)], [of(1.0), of(1.0)], ["a", "b"])) == {"a": 0.0, "b": 1.0}
    assert faults(buffer_deviations([], [of(1.0)], ["a"])) == {"the number of buffers": "is 0 instead of 1"}


def test_equal_infinities_are_no_distance_apart() -> None:
    mask = of(-math.inf, 0, math.nan)
    assert deviation.distance(mask, mask.clone()) == 0
    assert not math.isfinite(deviation.distance(mask, of(math.inf, 0, 0)))


def test_norms_are_computed_of_all_types_of_numbers() -> None:
    assert deviation.norm(torch.tensor([[3, 0], [0, 4]])) == 5
    assert deviation.norm(torch.tensor([3 + 4j])) == 5
    assert deviation.norm(torch.full((2, 2), 2.0**100, dtype=torch.bfloat16)) == 2.0**101
    assert deviation.distance(torch.tensor([3 + 4j]), torch.tensor([0j])) == 5


# What each micro-batch's loss alone gives. A rank's own gradient is the mean of its two: (2, 3) and (5, 2).
# Right is their mean: (3.5, 2.5).
PARTS = [[of(1, 2), of(3, 4)], [of(2, 4), of(8, 0)]]


@pytest.mark.parametrize(
    ("rank", "gradient", "cause"),
    [
        (0, of(2, 3), "the rank kept its own gradient, which was not synchronised"),
        (1, of(5, 2), "the rank kept its own gradient, which was not synchronised"),
        (1, of(2, 3), "the gradient of rank 0 alone, copied instead of averaged"),
        (0, of(7, 5), "about 2 times too large: summed over the ranks instead of averaged"),
        (0, of(1.75, 1.25), "about 2 times too small: divided by the number of ranks twice"),
        (0, of(1, 1.5), "the rank divided its own gradient by the number of ranks, but ranks were not summed"),
        # The first ones' mean (1.5, 3), halved as the trainer halves each of two; the last ones' (5.5, 2).
        (
            0,
            of(0.75, 1.5),
            "the gradient is only the first micro-batch's, because ranks synchronised before accumulation ended",
        ),
        (
            0,
            of(2.75, 1),
            "the gradient is only the last micro-batch's, because earlier micro-batches' gradients were lost",
        ),
        (0, of(1.5, 3), "the gradient is the first micro-batch's, as if the step had no other micro-batches"),
        (0, of(5.5, 2), "the gradient is the last micro-batch's, as if the step had no other micro-batches"),
        # (0.75, 1.5) and half of (3, 4); (2.75, 1) and half of (1, 2).
        (
            0,
            of(2.25, 3.5),
            ("only the first micro-batch's gradient was synchronised; the other micro-batches' are this rank's own"),
        ),
        (
            0,
            of(3.25, 2),
            "only the last micro-batch's gradient was synchronised; the other micro-batches' are this rank's own",
        ),
        (0, of(0, 0), "no gradient arrived here"),
        (0, None, "no gradient arrived here"),
        (0, of(10.5, 7.5), "about 3 times too large"),
        (0, of(0.35, 0.25), "about 10 times too small"),
        (0, of(3.507, 2.505), "about 0.2 % too large"),
        (0, of(3.465, 2.475), "about 1 % too small"),
        (0, of(-3.5, -2.5), ""),
        (0, of(-9, 40), ""),
    ],
)
def test_each_mistake_is_recognised_by_its_gradient(rank: int, gradient: Tensor | None, cause: str) -> None:
    assert deviation.likely_cause(gradient, PARTS, rank, 1e-4) == cause


def test_an_explanation_may_be_off_by_the_tolerance() -> None:
    assert deviation.likely_cause(of(2.02, 3), PARTS, 0, 1e-2).startswith("the rank kept its own gradient")
    assert deviation.likely_cause(of(2.02, 3), PARTS, 0, 1e-4) == ""


def test_as_many_micro_batches_as_ranks_leave_the_likelier_cause() -> None:
    """Twice as much is the sum over two ranks as well as that over two micro-batches."""
    assert "over the ranks" in deviation.likely_cause(of(7, 5), PARTS, 0, 1e-4)
    one_rank = PARTS[:1]  # its own gradient is right
    assert "over the micro-batches" in deviation.likely_cause(of(4, 6), one_rank, 0, 1e-4)
    assert "number of micro-batches twice" in deviation.likely_cause(of(1, 1.5), one_rank, 0, 1e-4)


def test_with_one_part_only_a_factor_can_be_named() -> None:
    assert deviation.likely_cause(of(2, 4), [[of(1, 2)]], 0, 1e-4) == "about 2 times too large"


def test_the_cause_of_wrong_complex_gradients_is_named() -> None:
    parts = [[torch.tensor([1 + 1j])], [torch.tensor([3 - 1j])]]
    assert deviation.likely_cause(torch.tensor([1 + 1j]), parts, 0, 1e-4).startswith("the rank kept its own gradient")
    assert deviation.likely_cause(torch.tensor([-2 + 0j]), parts, 0, 1e-4) == ""


@pytest.mark.parametrize("strategy", ["ddp", "ddp[bucket_cap_mb=5]", "zero1"])
def test_parameters_whose_gradients_ddp_waits_for_in_vain_are_named(strategy: str) -> None:
    gradients = {"used": of(1, 2), "spare.weight": None, "spare.bias": None}
    text = deviation.unused_cause(resolve(strategy), gradients)
    assert text.startswith("spare.weight, spare.bias took no part in the loss, and DDP waits for all gradients: use ")
    assert f"{strategy.partition('[')[0]}[find_unused_parameters=true]" in text


@pytest.mark.parametrize(
    "strategy", ["naive", "bucketed", "ddp[find_unused_parameters=true]", "ddp[static_graph=true]"]
)
def test_strategies_other_than_ddp_do_not_wait_for_unused_parameters(strategy: str) -> None:
    assert not deviation.unused_cause(resolve(strategy), {"used": of(1, 2), "spare": None})
    assert not deviation.unused_cause(resolve("ddp"), {"used": of(1, 2)})


def test_the_least_precise_type_decides_on_the_tolerance_and_the_unit_in_the_last_place() -> None:
    assert tolerance("fp32", "fp32") < tolerance("fp32", "fp16") < tolerance("bf16", "fp16")
    assert tolerance("bf16", "fp32") == tolerance("fp32", "bf16")
    assert unit("fp32") == torch.finfo(torch.float32).eps
    assert unit("fp32", "bf16") == torch.finfo(torch.bfloat16).eps
    assert unit("fp16", "fp32") == torch.finfo(torch.float16).eps


def test_only_fp16_cannot_hold_small_numbers() -> None:
    assert smallest("fp32", "fp16") == torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps
    assert smallest("fp32", "bf16") == 0.0


@pytest.mark.parametrize(
    ("precision", "fields", "expected"),
    [
        ("fp32", {}, None),
        ("bf16", {}, None),
        ("fp32", {"precision": "bf16"}, Leniency(precision="bf16")),
        ("fp16", {"precision": "bf16"}, Leniency(precision="bf16")),
        ("bf16", {"precision": "bf16"}, None),
        ("bf16", {"precision": "fp16"}, None),
        ("fp32", {"lossy": True, "precision": "bf16"}, Leniency(precision=None)),
        ("fp32", {"lossy": True, "exact_steps": 2}, Leniency(precision=None, exact_steps=2)),
    ],
)
def test_a_reason_for_a_looser_tolerance_is_named(
    precision: str, fields: dict[str, Any], expected: Leniency | None
) -> None:
    assert tolerances.leniency(precision, Parallel(nn.Linear(1, 1), **fields)) == expected


def test_losses_fall_to_the_mean_of_the_last_three() -> None:
    assert tolerances.fall([5.0, 9.0, 1.0, 2.0, 3.0]) == 3.0  # 5 - (1 + 2 + 3) / 3
    assert tolerances.fall([5.0]) == 0.0


@pytest.mark.parametrize(
    ("losses", "share"),
    [
        ([4.0, 2.0, 2.0, 2.0], 0.0),  # as far as the single process
        ([4.0, 1.0, 1.0, 1.0], 0.0),  # farther
        ([4.0, 3.5, 3.5, 3.5], 0.75),  # by 0.5 of 2
        ([4.0, 4.0, 4.0, 4.0], 1.0),
        ([4.0, 5.0, 5.0, 5.0], 1.5),  # it rose by half of that
    ],
)
def test_the_missed_share_of_the_fall_of_the_loss_is_computed(losses: list[float], share: float) -> None:
    assert tolerances.missed(losses, [4.0, 2.0, 2.0, 2.0]) == share


@pytest.mark.parametrize(("last", "far"), [(3.95, True), (3.98, False), (4.0, False), (5.0, False)])
def test_a_fall_by_less_than_a_hundredth_says_nothing(last: float, far: bool) -> None:  # noqa: FBT001  a test's case
    assert tolerances.falls([4.0, last, last, last]) == far
    assert not tolerances.falls([0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("noise", "size", "most"), [(1.0, 0.0, 4.0), (0.5, 1.0, 2.0), (0.4, 1.0, 0.125), (0.01, 1.0, 0.02), (0.0, 1.0, 0.0)]
)
def test_rounding_excuses_all_of_a_gradient_that_it_makes_and_little_of_any_other(
    noise: float, size: float, most: float
) -> None:
    assert tolerances.excused(noise, size) == most
