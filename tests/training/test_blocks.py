"""Blocks: which modules of a model repeat, and recomputing their activations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.training.blocks import blocks_of, recompute, repeated


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(inputs))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(Inner(), Inner())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.parts(inputs)
        return outputs


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.layers = nn.ModuleList([Outer(), Outer(), Outer()])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.first(inputs)
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


def test_the_outermost_repeated_siblings_are_the_blocks() -> None:
    """Six Inner repeat too, but two by two: the three Outer hold all of their parameters."""
    model = Deep()
    assert repeated(model) == tuple(model.layers)


def test_plain_layers_are_no_blocks() -> None:
    assert repeated(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == ()
    assert repeated(nn.Linear(4, 4)) == ()


def test_the_workloads_own_choice_wins() -> None:
    model = Deep()
    assert blocks_of(model, lambda module: [module.get_submodule("first")]) == (model.first,)


@pytest.mark.parametrize(("stranger", "kind"), [(nn.Linear(1, 1), "Linear"), ("layers.0", "str")])
def test_a_choice_that_is_no_part_of_the_model_is_refused(stranger: Any, kind: str) -> None:
    with pytest.raises(WorkloadError, match=rf"gave a {kind} that is no module inside the model"):
        blocks_of(Deep(), lambda _module: [stranger])


def test_recomputing_changes_memory_and_neither_names_nor_gradients() -> None:
    plain, recomputed = (Deep() for _ in range(2))
    recomputed.load_state_dict(plain.state_dict())
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    recomputed.layers[0].parts[0].register_forward_hook(count)  # type: ignore[index, union-attr]  # torch
    recompute(repeated(recomputed))
    inputs = torch.randn(3, 4)
    for model in (plain, recomputed):
        model(inputs).square().sum().backward()

    assert calls == 2  # forward, and again in backward
    assert recomputed.state_dict().keys() == plain.state_dict().keys()
    for one, other in zip(plain.parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)
