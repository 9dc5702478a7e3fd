"""The single process, by hand: a model w x, loss (w x)^2, w = 1.

Rank 0 has x = 1 with weight 0.5, rank 1 has x = 2 with weight 1.5. Losses 0.5 and 6, gradients by w 1 and 12.
"""

from __future__ import annotations

from functools import partial
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.correctness.reference import SingleProcess, UnverifiableError, computing_in
from pytest_ddpperf.training.correctness.training_run import MicroBatches
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


SGD = partial(torch.optim.SGD, lr=0.25)


def alone(
    ctx: Any,
    settings: Settings | None = None,
    loss: Any = square,
    model: Any = Product,
    optimizer: Any = SGD,
    **options: Any,
) -> SingleProcess:
    workload = Workload(
        model=model, batch=lambda: (torch.ones(1), torch.ones(1)), loss=loss, optimizer=optimizer, samples_per_step=1
    )
    data = MicroBatches([[(torch.tensor([x]), torch.zeros(1))] for x in (1.0, 2.0)], in_step=1)
    return SingleProcess(ctx, workload, settings or Settings(), values=VALUES, data=data, **options)


BUFFERS = [torch.zeros(1)]
VALUES = [torch.ones(1), torch.ones(1), *BUFFERS]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_gradients_are_the_mean_over_the_ranks(make_ctx: Any, precision: str) -> None:
    reference = alone(make_ctx(), Settings(precision=precision))
    for _ in range(2):  # gradients of a step do not depend on how often they are asked for
        right = reference.backward(0, BUFFERS)
        assert right.loss == 3.25
        assert right.gradients == {"weight": torch.tensor([6.5]), "unused": None}
        assert right.sizes == {"weight": 6.5, "unused": 0.0}
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
    assert reference.training.parameters() == {"weight": torch.tensor([0.5]), "unused": torch.tensor([1.0])}
    assert reference.training.gradients()["weight"] == 2.0


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
    gradients = reference.backward(0, BUFFERS).gradients
    assert set(seen) == {torch.bfloat16}
    assert gradients["weight"] is not None
    assert gradients["weight"].dtype == torch.float32
    wide = torch.tensor([1 + 2.0**-9])
    assert computing_in(Product(), make_ctx(), dtype="bf16").module(wide) == 1.0


def test_noise_is_what_moved_parameters_make(make_ctx: Any) -> None:
    """Gradients are proportional to w, so they move by as large a share: at most 0.5 and 6, half of what they are.

    The root mean square of these is 6.02.
    """
    reference = alone(make_ctx())
    noise = reference.noise(0, BUFFERS, 0.5)
    assert 0 < noise["weight"] < 6.03
    assert noise["unused"] == 0.0
    assert reference.training.parameters()["weight"] == 1.0  # back where it was
    assert reference.noise(0, BUFFERS, 0.0)["weight"] == 0.0


class Normed(nn.Module):
    """The bias in front of the norm changes nothing: its gradient is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(1, 8)
        self.norm = nn.BatchNorm1d(8)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.norm(self.inside(torch.linspace(-1, 1, 32).outer(inputs))).sigmoid()
        return found


@pytest.mark.parametrize(("precision", "unit"), [("fp32", 2.0**-23), ("bf16", 2.0**-7)])
def test_noise_tells_what_is_nothing_but_rounding(make_ctx: Any, precision: str, unit: float) -> None:
    """How the roundings of one model fall is chance, and differs between processors: so most of nine models."""
    of_rounding, of_gradient = [], []
    for seed in range(9):
        torch.manual_seed(seed)
        model = Normed()
        start = [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
        reference = SingleProcess(
            make_ctx(),
            Workload(
                model=Normed,
                batch=lambda: (torch.ones(1), torch.ones(1)),
                loss=lambda outputs, _targets: (outputs * torch.linspace(0, 1, 8)).square().sum(),
                optimizer=SGD,
                samples_per_step=1,
            ),
            Settings(precision=precision),
            values=start,
            data=MicroBatches([[(torch.tensor([x]), torch.zeros(1))] for x in (1.0, 2.0)], in_step=1),
        )
        buffers = start[-3:]
        sizes, noise = reference.backward(0, buffers).sizes, reference.noise(0, buffers, unit)
        assert sizes["inside.bias"] > 0
        of_rounding.append(noise["inside.bias"] / sizes["inside.bias"])
        of_gradient.append(noise["norm.weight"] / sizes["norm.weight"])
    assert median(of_rounding) > 0.3
    assert median(of_gradient) < 0.02


def full(*_args: object, **_kwargs: object) -> Any:
    raise torch.OutOfMemoryError


class Filling(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return full(closure)


def test_where_memory_does_not_suffice_nothing_can_be_verified(make_ctx: Any) -> None:
    """While the model is built, the loss taken, the optimizer updates."""
    words = "the whole model does not fit on one device"
    with pytest.raises(UnverifiableError, match=words):
        alone(make_ctx(), model=full)
    with pytest.raises(UnverifiableError, match=words):
        alone(make_ctx(), loss=full).backward(0, BUFFERS)
    reference = alone(make_ctx(), optimizer=partial(Filling, lr=0.1))
    gradients = reference.backward(0, BUFFERS).gradients
    with pytest.raises(UnverifiableError, match=words):
        reference.update(1, gradients)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_there_is_one_optimizer_for_all_ranks(make_ctx: Any, precision: str) -> None:
    made = []

    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        made.append(torch.optim.Adam(parameters))
        return made[-1]

    reference = alone(make_ctx(), Settings(precision=precision), optimizer=optimizer)
    for step in (1, 2):
        reference.update(step, reference.backward(0, BUFFERS).gradients)
    assert [found.state[found.param_groups[0]["params"][0]]["step"] for found in made] == [2.0]
