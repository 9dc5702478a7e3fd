"""Tolerances, and how far losses fall."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_ddpperf.strategies.parallel import Parallel
from pytest_ddpperf.training.correctness.tolerances import (
    excused,
    fall,
    falls,
    leniency,
    missed,
    smallest,
    tolerance,
    unit,
)
from pytest_ddpperf.training.verification import Leniency


def test_the_least_precise_type_decides() -> None:
    assert tolerance("fp32", "fp32") < tolerance("fp32", "fp16") < tolerance("bf16", "fp16")
    assert tolerance("bf16", "fp32") == tolerance("fp32", "bf16")


def test_the_least_precise_types_unit_in_the_last_place() -> None:
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
def test_a_looser_standard_is_told(precision: str, fields: dict[str, Any], expected: Leniency | None) -> None:
    assert leniency(precision, Parallel(nn.Linear(1, 1), **fields)) == expected


def test_losses_fall_to_the_mean_of_the_last_three() -> None:
    assert fall([5.0, 9.0, 1.0, 2.0, 3.0]) == 3.0  # 5 - (1 + 2 + 3) / 3
    assert fall([5.0]) == 0.0


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
def test_what_a_fall_misses_of_a_single_process(losses: list[float], share: float) -> None:
    assert missed(losses, [4.0, 2.0, 2.0, 2.0]) == share


@pytest.mark.parametrize(("last", "far"), [(3.95, True), (3.98, False), (4.0, False), (5.0, False)])
def test_a_fall_by_less_than_a_hundredth_says_nothing(last: float, far: bool) -> None:  # noqa: FBT001  a test's case
    assert falls([4.0, last, last, last]) == far
    assert not falls([0.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("noise", "size", "most"), [(1.0, 0.0, 4.0), (0.5, 1.0, 2.0), (0.4, 1.0, 0.125), (0.01, 1.0, 0.02), (0.0, 1.0, 0.0)]
)
def test_rounding_excuses_all_of_a_gradient_that_it_makes_and_little_of_any_other(
    noise: float, size: float, most: float
) -> None:
    assert excused(noise, size) == most
