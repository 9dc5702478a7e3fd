"""Causes of wrong gradients; two ranks with two micro-batches each, whose gradients are written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_ddpperf.strategies.table import resolve
from pytest_ddpperf.training.correctness.deviation import likely_cause, unused_cause


def of(*values: float) -> Tensor:
    return torch.tensor(values)


# What each micro-batch's loss alone gives. A rank's own gradient is the mean of its two: (2, 3) and (5, 2).
# Right is their mean: (3.5, 2.5).
PARTS = [[of(1, 2), of(3, 4)], [of(2, 4), of(8, 0)]]


@pytest.mark.parametrize(
    ("rank", "gradient", "cause"),
    [
        (0, of(2, 3), "it is this rank's own gradient: it was not synchronised"),
        (1, of(5, 2), "it is this rank's own gradient: it was not synchronised"),
        (1, of(2, 3), "it is rank 0's own gradient: it was copied instead of averaged"),
        (0, of(7, 5), "about 2 times too large: summed over the ranks instead of averaged"),
        (0, of(1.75, 1.25), "about 2 times too small: divided by the number of ranks twice"),
        (0, of(1, 1.5), "it is this rank's own gradient, divided by the number of ranks: it was not summed"),
        # The first ones' mean (1.5, 3), halved as the trainer halves each of two; the last ones' (5.5, 2).
        (0, of(0.75, 1.5), "it is the first micro-batch's gradient: it was synchronised before accumulation ended"),
        (0, of(2.75, 1), "it is the last micro-batch's gradient: the gradients of earlier micro-batches were lost"),
        (0, of(1.5, 3), "it is the first micro-batch's gradient, as if the step had no other micro-batches"),
        (0, of(5.5, 2), "it is the last micro-batch's gradient, as if the step had no other micro-batches"),
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
def test_each_mistake_is_known_by_what_it_leaves(rank: int, gradient: Tensor | None, cause: str) -> None:
    assert likely_cause(gradient, PARTS, rank, 1e-4) == cause


def test_an_explanation_may_be_off_by_the_tolerance() -> None:
    assert likely_cause(of(2.02, 3), PARTS, 0, 1e-2).startswith("it is this rank's own gradient")
    assert likely_cause(of(2.02, 3), PARTS, 0, 1e-4) == ""


def test_as_many_micro_batches_as_ranks_leave_the_likelier_cause() -> None:
    """Twice as much is the sum over two ranks as well as that over two micro-batches."""
    assert "over the ranks" in likely_cause(of(7, 5), PARTS, 0, 1e-4)
    one_rank = PARTS[:1]  # its own gradient is right
    assert "over the micro-batches" in likely_cause(of(4, 6), one_rank, 0, 1e-4)
    assert "number of micro-batches twice" in likely_cause(of(1, 1.5), one_rank, 0, 1e-4)


def test_with_one_part_a_factor_is_all_that_can_be_told() -> None:
    assert likely_cause(of(2, 4), [[of(1, 2)]], 0, 1e-4) == "about 2 times too large"


def test_complex_gradients() -> None:
    parts = [[torch.tensor([1 + 1j])], [torch.tensor([3 - 1j])]]
    assert likely_cause(torch.tensor([1 + 1j]), parts, 0, 1e-4).startswith("it is this rank's own gradient")
    assert likely_cause(torch.tensor([-2 + 0j]), parts, 0, 1e-4) == ""


@pytest.mark.parametrize("strategy", ["ddp", "ddp[bucket_cap_mb=5]", "zero1"])
def test_what_ddp_waits_for_in_vain_is_named(strategy: str) -> None:
    gradients = {"used": of(1, 2), "spare.weight": None, "spare.bias": None}
    text = unused_cause(resolve(strategy), gradients)
    assert text.startswith("spare.weight, spare.bias took no part in the loss, and DDP waits for all gradients: use ")
    assert f"{strategy.partition('[')[0]}[find_unused_parameters=true]" in text


@pytest.mark.parametrize(
    "strategy", ["naive", "bucketed", "ddp[find_unused_parameters=true]", "ddp[static_graph=true]"]
)
def test_others_do_not_wait_for_what_is_not_used(strategy: str) -> None:
    assert not unused_cause(resolve(strategy), {"used": of(1, 2), "spare": None})
    assert not unused_cause(resolve("ddp"), {"used": of(1, 2)})
