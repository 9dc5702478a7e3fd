"""Strategies on real ranks: what they train is what one process would have trained on all the data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_ddpperf.launch.context import RankContext
from pytest_ddpperf.launch.launcher import Launcher
from pytest_ddpperf.strategies.table import parallelise

RANKS = 2
STEPS = 3


def run(launcher: Launcher, function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    return launcher.run(function, *args, world_size=RANKS, backend="gloo", device="cpu", timeout=60).values


class Net(nn.Module):
    """Has what trips hand-written data parallelism: a tied weight, a frozen one, and ones that not all inputs use.

    ``odd`` is used by inputs of odd ranks only, ``never`` by none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(4, 4)
        self.again = nn.Linear(4, 4)
        self.again.weight = self.inside.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)
        self.odd = nn.Linear(4, 4)
        self.never = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))

    def forward(self, inputs: Tensor, *, use_odd: bool) -> Tensor:
        hidden: Tensor = self.frozen(torch.tanh(self.again(torch.tanh(self.inside(inputs)))))
        return hidden + self.odd(inputs) if use_odd else hidden


class Plain(nn.Module):
    """Every parameter is used in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, inputs: Tensor, *, use_odd: bool) -> Tensor:
        del use_odd
        outputs: Tensor = self.layers(inputs)
        return outputs


def share_of(rank: int, step: int) -> Tensor:
    """Different data for every rank and step; each rank's have the same size, so the mean of means is the mean."""
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(100 * step + rank))


State = dict[str, Tensor]


def train_on_rank(ctx: RankContext, model: type[nn.Module], strategy: str) -> list[tuple[State, State]]:
    """After each step, the gradients and the parameters of this rank; each begins with parameters of its own."""
    torch.manual_seed(ctx.rank)
    module = model()
    parallel = parallelise(strategy, module, ctx)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    states = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        parallel.module(share_of(ctx.rank, step), use_odd=ctx.rank % 2 == 1).square().mean().backward()
        parallel.synchronise()
        optimizer.step()
        states.append(_state(module))
    return states


def train_alone(model: type[nn.Module]) -> list[tuple[State, State]]:
    """The reference: one process, whose loss is the mean over the ranks' shares, from rank 0's parameters."""
    torch.manual_seed(0)
    module = model()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    states = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        losses = [module(share_of(rank, step), use_odd=rank % 2 == 1).square().mean() for rank in range(RANKS)]
        (sum(losses[1:], losses[0]) / RANKS).backward()
        optimizer.step()
        states.append(_state(module))
    return states


def _state(module: nn.Module) -> tuple[State, State]:
    named = dict(module.named_parameters())
    gradients = {name: parameter.grad.clone() for name, parameter in named.items() if parameter.grad is not None}
    return gradients, {name: parameter.detach().clone() for name, parameter in named.items()}


@pytest.mark.parametrize(("strategy", "model"), [("ddp", Plain), ("naive", Net)])
def test_ranks_train_what_one_process_would_train_on_all_the_data(
    launcher: Launcher, strategy: str, model: type[nn.Module]
) -> None:
    expected = train_alone(model)
    for states in run(launcher, train_on_rank, model, strategy):
        for (gradients, parameters), (alone_gradients, alone_parameters) in zip(states, expected, strict=True):
            assert gradients.keys() >= alone_gradients.keys()
            for name, gradient in alone_gradients.items():
                torch.testing.assert_close(gradients[name], gradient)
            for name, parameter in alone_parameters.items():
                torch.testing.assert_close(parameters[name], parameter)


def test_naive_averages_what_some_rank_used_and_leaves_the_frozen_alone(launcher: Launcher) -> None:
    (first, *_), (second, *_) = run(launcher, train_on_rank, Net, "naive")
    for gradients, _ in (first, second):
        assert not {"frozen.weight", "frozen.bias"} & gradients.keys()
        assert gradients["odd.weight"].any()  # rank 0 did not use it, rank 1 did
        assert not gradients["never.weight"].any()  # nobody did: zeros, the same on every rank
    assert first[0].keys() == second[0].keys()


def reductions_of_a_step(ctx: RankContext) -> list[tuple[int, ...]]:
    """The shapes that a step of naive all-reduces, in order."""
    module = Net()
    parallel = parallelise("naive", module, ctx)
    parallel.module(share_of(ctx.rank, 0), use_odd=True).sum().backward()
    shapes = []
    real = dist.all_reduce

    def spy(tensor: Tensor, *args: Any, **kwargs: Any) -> object:
        shapes.append(tuple(tensor.shape))
        return real(tensor, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", spy)
        parallel.synchronise()
    return shapes


def test_naive_reduces_each_gradient_once_in_parameter_order(launcher: Launcher) -> None:
    """inside: weight, bias; again: bias, its weight is tied; odd and never: weight, bias. Frozen is left out."""
    expected = [(4, 4), (4,), (4,), (4, 4), (4,), (4, 4), (4,)]
    assert run(launcher, reductions_of_a_step) == (expected, expected)


def single_alone(ctx: RankContext) -> bool:
    module = Plain()
    parallel = parallelise("single", module, ctx)
    parallel.synchronise()
    return parallel.module is module


def test_single_leaves_the_module_as_it_is(launcher: Launcher) -> None:
    assert launcher.run(single_alone, world_size=1, backend="gloo", device="cpu").values == (True,)
