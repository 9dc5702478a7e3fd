"""The single process, by hand: a model w x, loss (w x)^2, w = 1.

Rank 0 has x = 1 with weight 0.5, rank 1 has x = 2 with weight 1.5. Losses 0.5 and 6, gradients by w 1 and 12.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.correctness.micro_batches import MicroBatches, weighted
from pytest_ddpperf.training.correctness.reference import SingleProcess, computing_in
from pytest_ddpperf.training.workload import Workload


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.unused = nn.Parameter(torch.ones(1))
        self.register_buffer("turns", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        self.get_buffer("turns").add_(1)
        return self.weight * inputs


def square(outputs: Tensor, _targets: Tensor) -> Tensor:
    return outputs.square().sum()


def alone(ctx: Any, settings: Settings | None = None, loss: Any = square, **options: Any) -> SingleProcess:
    workload = Workload(
        model=Product,
        batch=lambda: (torch.ones(1), torch.ones(1)),
        loss=loss,
        optimizer=partial(torch.optim.SGD, lr=0.25),
        samples_per_step=1,
    )
    data = MicroBatches([[(torch.tensor([x]), torch.zeros(1))] for x in (1.0, 2.0)], in_step=1)
    return SingleProcess(ctx, weighted(workload), settings or Settings(), values=VALUES, data=data, **options)


BUFFERS = [torch.zeros(1)]
VALUES = [torch.ones(1), torch.ones(1), *BUFFERS]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradients_are_the_mean_over_the_ranks(make_ctx: Any, precision: str) -> None:
    reference = alone(make_ctx(), Settings(precision=precision))
    for _ in range(2):  # gradients of a step do not depend on how often they are asked for
        loss, gradients = reference.backward(0, BUFFERS)
        assert loss == 3.25
        assert gradients == {"weight": torch.tensor([6.5]), "unused": None}
        reference.update(1, {"weight": torch.zeros(1), "unused": None})


def test_what_each_micro_batch_gives_by_itself(make_ctx: Any) -> None:
    reference = alone(make_ctx())
    assert reference.parts("weight", 0, BUFFERS) == [[torch.tensor([1.0])], [torch.tensor([12.0])]]
    assert reference.parts("unused", 0, BUFFERS) == [[torch.zeros(1)], [torch.zeros(1)]]


def test_it_updates_with_the_gradients_that_it_is_given(make_ctx: Any) -> None:
    """w = 1 - 0.25 x 2."""
    reference = alone(make_ctx())
    reference.backward(0, BUFFERS)
    reference.update(1, {"weight": torch.tensor([2.0]), "unused": None})
    assert reference.parameters() == {"weight": torch.tensor([0.5]), "unused": torch.tensor([1.0])}
    assert reference.gradients()["weight"] == 2.0


def test_a_loss_that_is_not_finite_is_the_workloads(make_ctx: Any) -> None:
    reference = alone(make_ctx(), loss=lambda outputs, _targets: outputs.sum() * torch.nan)
    with pytest.raises(WorkloadError, match="loss is nan at step 1 of a single process on the ranks' first batches"):
        reference.backward(0, BUFFERS)


def test_a_gradient_that_is_not_finite_is_the_workloads(make_ctx: Any) -> None:
    reference = alone(make_ctx(), loss=lambda outputs, _targets: (0 * outputs).sum().sqrt())
    with pytest.raises(WorkloadError, match="the gradient of weight is not finite at step 1 of a single process"):
        reference.backward(0, BUFFERS)


def test_parameters_may_be_cast_and_gradients_come_back_in_their_own_type(make_ctx: Any) -> None:
    """1 + 2^-9 is 1 in bf16."""
    seen = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        seen.append(outputs.dtype)
        return square(outputs, targets)

    reference = alone(make_ctx(), loss=loss, param_dtype="bf16")
    _, gradients = reference.backward(0, BUFFERS)
    assert set(seen) == {torch.bfloat16}
    assert gradients["weight"] is not None
    assert gradients["weight"].dtype == torch.float32
    wide = torch.tensor([1 + 2.0**-9])
    assert computing_in(Product(), make_ctx(), dtype="bf16").module(wide) == 1.0
