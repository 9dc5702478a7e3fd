"""Tolerances, and how far losses fall."""

from __future__ import annotations

import pytest

from pytest_ddpperf.training.correctness.tolerances import fall, floor, missed, tolerance


def test_the_least_precise_type_decides() -> None:
    assert tolerance("fp32", "fp32") < tolerance("fp32", "fp16") < tolerance("bf16", "fp16")
    assert tolerance("bf16", "fp32") == tolerance("fp32", "bf16")


def test_every_narrow_type_brings_more_that_is_nothing_but_rounding() -> None:
    assert floor("fp32", "fp32") == 0.01
    assert floor("fp32", "bf16") == floor("tf32", "fp32") == 0.1


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


@pytest.mark.parametrize("last", [3.98, 4.0, 5.0])
def test_a_single_process_that_does_not_learn_is_no_measure(last: float) -> None:
    assert missed([4.0, 9.0, 9.0, 9.0], [4.0, last, last, last]) == 0.0
