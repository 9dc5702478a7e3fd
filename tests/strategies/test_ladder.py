"""What hand-written data parallelism gets wrong: the sums of every such strategy on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.strategies.table import parallelise
from tests.strategies.conftest import all_reduces, case, case_anywhere, refusal

if TYPE_CHECKING:
    from tests.strategies.conftest import Placement

OnRanks = Callable[..., tuple[Any, ...]]
RANKS = 3
Gradients = dict[str, Tensor]


class Net(nn.Module):
    """A tied weight, a frozen layer, a norm's small parameters, and a layer that the caller may leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.again = nn.Linear(6, 6)
        self.again.weight = self.inside.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.optional = nn.Linear(6, 6)
        self.never = nn.Linear(6, 6)

    def forward(self, inputs: Tensor, *, optional: bool = True) -> Tensor:
        hidden: Tensor = self.frozen(torch.tanh(self.again(self.norm(torch.tanh(self.inside(inputs))))))
        return hidden + self.optional(inputs) if optional else hidden


class Sharing(nn.Module):
    """Gradients that share memory: with what goes on to earlier layers, and with one another."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.positions = nn.Parameter(torch.rand(5, 6))
        self.one = nn.Parameter(torch.rand(36))
        self.other = nn.Parameter(torch.rand(6, 6))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.before(inputs[None]) + self.positions.unsqueeze(0))
        return hidden @ (self.one.view(6, 6) + self.other.view(6, 6))


class Branches(nn.Module):
    """Two branches, one after the other: the order in which they run is each rank's own."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(6, 6)
        self.middle = nn.Linear(6, 6, bias=False)
        self.right = nn.Linear(6, 6)

    def forward(self, inputs: Tensor, *, left_first: bool) -> Tensor:
        first, second = (self.left, self.right) if left_first else (self.right, self.left)
        outputs: Tensor = second(self.middle(torch.tanh(first(inputs))))
        return outputs


@dataclass(frozen=True)
class Training:
    """A model, and what its forward pass is given besides inputs in a micro-batch of a step on a rank."""

    model: type[nn.Module]
    given: Callable[[int, int, int], dict[str, bool]] = lambda _rank, _step, _part: {}
    parts: int = 1  # micro-batches of a step
    steps: int = 3


USERS: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (0, 1))  # ranks that use the optional layer, by step
TRAININGS = {
    "gradients that share memory": Training(Sharing),
    "each rank has an order of its own": Training(
        Branches, lambda rank, step, _part: {"left_first": (rank + step) % 2 == 0}
    ),
    "some ranks leave out a layer": Training(Net, lambda rank, step, _part: {"optional": rank in USERS[step]}, steps=4),
    "only an earlier micro-batch uses a layer": Training(
        Net, lambda _rank, _step, part: {"optional": part == 0}, parts=2
    ),
}


def built(training: Training, device: torch.device, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return training.model().to(device)


def backward(training: Training, module: nn.Module, place: tuple[int, int, int], of: int = 1) -> None:
    """Data differ for each rank, step and micro-batch, but have one size: so the mean of means is the mean."""
    rank, step, part = place
    inputs = torch.randn(5, 6, generator=torch.Generator().manual_seed(10_000 * step + 100 * part + rank))
    outputs = module(inputs.to(next(module.parameters()).device), **training.given(*place))
    (outputs.square().mean() / of).backward()


def gradients_of(module: nn.Module) -> Gradients:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


@case_anywhere
def gradients_of_steps(ctx: RankContext, strategy: str) -> dict[str, tuple[list[int], list[Gradients]]]:
    """Of each training, the sizes of what was sent, and the gradients after each step."""
    found = {}
    for name, training in TRAININGS.items():
        module = built(training, ctx.device, seed=ctx.rank)
        parallel = parallelise(strategy, module, ctx)
        steps = []
        with all_reduces() as sent:
            for step in range(training.steps):
                module.zero_grad()
                for part in range(training.parts):
                    local = part < training.parts - 1 and parallel.no_sync is not None
                    with parallel.no_sync() if local and parallel.no_sync is not None else nullcontext():
                        backward(training, module, (ctx.rank, step, part))
                parallel.synchronise()
                steps.append(gradients_of(module))
        found[name] = sent, steps
    return found


def gradients_alone(device: torch.device, ranks: int, name: str) -> list[Gradients]:
    """The mean of the ranks' gradients, each computed alone: what shares memory would be added up twice."""
    training, steps = TRAININGS[name], []
    module = built(training, device)
    for step in range(training.steps):
        total: Gradients = {}
        for rank in range(ranks):
            module.zero_grad()
            for part in range(training.parts):
                backward(training, module, (rank, step, part), of=ranks)
            for key, gradient in gradients_of(module).items():
                total[key] = total[key] + gradient if key in total else gradient
        steps.append(total)
    return steps


@pytest.mark.parametrize("name", TRAININGS)
def test_gradients_are_the_mean_over_the_ranks_and_all_send_in_one_order(
    on_ranks: OnRanks, alone: Callable[..., Any], strategy: str, placement: Placement, name: str
) -> None:
    """Compared as one long vector."""
    ranks = placement.of(RANKS).ranks
    expected = alone(placement, gradients_alone, ranks, name)
    results = [found[name] for found in on_ranks(gradients_of_steps, strategy, placement)]
    assert len({tuple(sent) for sent, _ in results}) == 1
    for _, steps in results:
        for found, right in zip(steps, expected, strict=True):
            assert found.keys() >= right.keys()
            difference = sum((found[key] - tensor).double().square().sum() for key, tensor in right.items())
            norm = sum(tensor.double().square().sum() for tensor in right.values())
            assert difference**0.5 <= placement.tolerance * norm**0.5
            assert not {"frozen.weight", "frozen.bias"} & found.keys()
            assert "never.weight" not in found or not found["never.weight"].any()  # no rank used it: zeros, on all
    if name == "some ranks leave out a layer":
        for _, steps in results:
            used = [bool(found["optional.weight"].any()) for found in steps]
            assert used == [any(rank in users for rank in range(ranks)) for users in USERS]


@case
def changed_later(ctx: RankContext, strategy: str) -> list[str | None]:
    messages = []
    for layer, trained in (("frozen", True), ("optional", False)):
        module = Net()
        parallel = parallelise(strategy, module, ctx)
        for _ in range(2):
            module.zero_grad()
            module(torch.ones(5, 6)).sum().backward()
            parallel.synchronise()
        module.get_submodule(layer).requires_grad_(requires_grad=trained)
        module(torch.ones(5, 6)).sum().backward()
        messages.append(refusal(parallel.synchronise))
    return messages


def test_freezing_and_unfrozing_later_is_refused(on_ranks: OnRanks, strategy: str) -> None:
    for unfrozen, frozen in on_ranks(changed_later, strategy):
        assert unfrozen.startswith("parameter frozen.weight was unfrozen after training began")
        assert frozen.startswith("parameter optional.weight was frozen after training began")


@case
def nothing_to_train(ctx: RankContext, strategy: str) -> int:
    module = nn.Linear(4, 4).requires_grad_(requires_grad=False)
    parallelise(strategy, module, ctx).synchronise()
    return len(gradients_of(module))


def test_a_model_may_have_nothing_to_train(on_ranks: OnRanks, strategy: str) -> None:
    assert on_ranks(nothing_to_train, strategy) == (0,) * RANKS
