"""The single process, by hand: a model w x, loss (w x)^2, w = 1.

Rank 0 has x = 1 with weight 0.5, rank 1 has x = 2 with weight 1.5. Losses 0.5 and 6, gradients by w 1 and 12.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.settings import Settings
from pytest_ddpperf.training.correctness.reference import (
    SingleProcess,
    UnverifiableError,
    _CollectivesRefused,
    computing_in,
)
from pytest_ddpperf.training.correctness.training_run import MicroBatches, changes, copied
from pytest_ddpperf.training.subject import Workload
from tests.training.workloads import Weight


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


def test_each_micro_batch_has_a_separate_gradient(make_ctx: Any) -> None:
    reference = alone(make_ctx())
    assert reference.parts("weight", 0, BUFFERS) == [[torch.tensor([1.0])], [torch.tensor([12.0])]]
    assert reference.parts("unused", 0, BUFFERS) == [[torch.zeros(1)], [torch.zeros(1)]]


def test_a_complex_parameter_that_a_micro_batch_does_not_use_has_complex_zeros(make_ctx: Any) -> None:
    """Else they could not be added to the gradient of another micro-batch."""

    class Complex(Product):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Parameter(torch.ones(1, dtype=torch.complex64))

    (part,), _ = alone(make_ctx(), model=Complex).parts("unused", 0, BUFFERS)
    assert (part.dtype, part.tolist()) == (torch.complex64, [0])


def test_the_reference_updates_with_the_given_gradients(make_ctx: Any) -> None:
    """w = 1 - 0.25 x 2."""
    reference = alone(make_ctx())
    reference.backward(0, BUFFERS)
    reference.update(1, {"weight": torch.tensor([2.0]), "unused": None})
    assert reference.training.parameters() == {"weight": torch.tensor([0.5]), "unused": torch.tensor([1.0])}
    assert reference.training.gradients()["weight"] == 2.0


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda outputs, _: outputs.sum() * torch.nan, "loss is nan at step 1 of a single process on the ranks' first"),
        (lambda outputs, _: (0 * outputs).sum().sqrt(), "the gradient of weight is not finite at step 1 of a single"),
    ],
)
def test_a_loss_or_gradient_that_is_not_finite_is_an_error_of_the_workload(
    make_ctx: Any, loss: Any, message: str
) -> None:
    with pytest.raises(WorkloadError, match=message):
        alone(make_ctx(), loss=loss).backward(0, BUFFERS)


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


class InFp32(Product):
    """Its buffer turns everything that it meets into fp32."""

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs + self.get_buffer("turns"), self.weight[None])


def test_a_type_that_the_model_cannot_be_cast_to_cannot_be_verified(make_ctx: Any) -> None:
    with pytest.raises(UnverifiableError, match=r"^the single process fails with all parameters cast to bf16: "):
        alone(make_ctx(), model=InFp32, param_dtype="bf16").backward(0, BUFFERS)


def test_a_model_that_communicates_cannot_be_verified(make_ctx: Any) -> None:
    """A single process has nobody to talk to."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        dist.all_reduce(torch.ones(1))
        return square(outputs, targets)

    with pytest.raises(UnverifiableError, match=r"^the model or its loss communicates between ranks$"):
        alone(make_ctx(), loss=loss).backward(0, BUFFERS)


def test_noise_is_the_effect_of_perturbed_parameters(make_ctx: Any) -> None:
    """Gradients are proportional to w, so they move by as large a share: at most 0.5 and 6, half of what they are.

    The root mean square of these is 6.02.
    """
    reference = alone(make_ctx())
    noise = reference.noise(0, BUFFERS, 0.5)
    assert 0.5 < noise["weight"] < 6.03
    assert noise["unused"] == 0.0
    assert reference.training.parameters()["weight"] == 1.0  # back where it was
    assert reference.noise(0, BUFFERS, 0.0)["weight"] == 0.0


def full(*_args: object, **_kwargs: object) -> Any:
    raise torch.OutOfMemoryError


class Filling(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return full(closure)


def test_if_memory_does_not_suffice_nothing_can_be_verified(make_ctx: Any) -> None:
    """While the model is built, the loss taken, the optimizer updates."""
    words = "the whole model does not fit into the memory of one device"
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


def batch() -> dict[str, Tensor]:
    return {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([-1.0, 0.5])}


def mean(model: nn.Module, given: dict[str, Tensor]) -> Any:
    return model(given["x"]).mean()


WORKLOAD = Workload(model=Weight, batch=batch, forward=mean, optimizer=torch.optim.SGD, samples_per_step=2)


def step(ctx: Any, forward: Any, settings: Settings | None = None, **changes: Any) -> float:
    """The loss of a single process's first step."""
    data = MicroBatches([[(batch(), ())]], in_step=1)
    workload = replace(WORKLOAD, forward=forward, **changes)
    return SingleProcess(ctx, workload, settings or Settings(), values=[torch.ones(())], data=data).backward(0, []).loss


def test_a_tensor_that_each_step_changes_is_named_with_the_cure(make_ctx: Any) -> None:
    def doubling(model: nn.Module, given: dict[str, Tensor]) -> Any:
        given["x"].mul_(2)
        return mean(model, given)

    message = r"^a step changes batch\['x'\] in place, but .*batch of batch \(.*clone\(\)"
    with pytest.raises(WorkloadError, match=message):
        step(make_ctx(), doubling, Settings(precision="fp16"))


def test_a_key_that_a_step_takes_out_is_named_with_the_cure(make_ctx: Any) -> None:
    def popping(model: nn.Module, given: dict[str, Tensor]) -> Any:
        return model(given["x"]).mean() + given.pop("y").sum()

    with pytest.raises(WorkloadError, match=r"^a step removes batch\['y'\] from its batch, .*from dict\(batch\)"):
        step(make_ctx(), popping)


def test_a_change_that_a_second_step_does_not_repeat_is_none(make_ctx: Any) -> None:
    """Labels of padding are masked so."""

    def masking(model: nn.Module, given: dict[str, Tensor]) -> Any:
        given["y"].clamp_(min=0)
        given["new"] = given["y"]
        return mean(model, given)

    assert step(make_ctx(), masking) == step(make_ctx(), mean) == 1.5


def test_a_loader_makes_a_batch_for_each_step(make_ctx: Any) -> None:
    def popping(model: nn.Module, given: dict[str, Tensor]) -> Any:
        return model(given["x"].mul_(2)).mean() + 0 * given.pop("y").sum()

    assert step(make_ctx(), popping, batch=None, loader=lambda _rank, _world_size: [batch()]) == 3.0


def test_tensors_that_a_step_changed_are_found_in_nested_containers() -> None:
    before: Any = [(torch.tensor([1.0, float("nan")]), {"a": [torch.ones(1), "text"], "b": torch.ones(1)})]
    after = list(map(copied, before))
    assert changes(before, after) == (set(), set())
    after[0][1]["a"][0].add_(1)
    del after[0][1]["b"]
    lost, changed = changes(before, after)
    assert [str(way[-1]) for way in changed] == ["[0]"]
    assert [str(way[-1]) for way in lost] == ["['b']"]
    assert before[0][1]["a"][0] == 1


@pytest.mark.skipif(torch.__version__ < "2.11", reason="torch 2.6 refuses these operators in a mode")
def test_functions_of_higher_order_operators_have_gradients_while_collectives_are_refused() -> None:
    layer, inputs = nn.Linear(2, 2), torch.ones(1, 2)
    torch.compiler.reset()  # else torch goes on as in an earlier test
    with _CollectivesRefused():  # type: ignore[no-untyped-call]
        torch.cond(inputs.sum() > 0, lambda x: layer(x).relu(), lambda x: layer(x).tanh(), (inputs,)).sum().backward()
    assert layer.weight.grad is not None
