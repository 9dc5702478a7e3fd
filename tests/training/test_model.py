"""Which modules of a model repeat, recomputing their activations, and putting back what training changes."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pytest_ddpperf.errors import WorkloadError
from pytest_ddpperf.training.model import blocks_of, recompute, repeated, snapshot, snapshot_bytes


def deep() -> Any:
    """Three siblings, of two siblings each."""
    outer = [nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))) for _ in range(3)]
    return nn.Sequential(OrderedDict(first=nn.Linear(4, 4), layers=nn.Sequential(*outer)))


def test_the_outermost_repeated_siblings_are_the_blocks() -> None:
    """Six inner modules repeat too, but two by two: the three outer ones hold all of their parameters."""
    model = deep()
    assert repeated(model) == tuple(model.layers)


def test_plain_layers_are_no_blocks() -> None:
    assert repeated(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))) == ()
    assert repeated(nn.Linear(4, 4)) == ()


def test_the_workloads_own_choice_wins_if_it_is_a_part_of_the_model() -> None:
    model = deep()
    assert blocks_of(model, lambda module: [module.get_submodule("first")]) == (model.first,)
    for stranger, kind in ((nn.Linear(1, 1), "Linear"), ("layers.0", "str")):
        with pytest.raises(WorkloadError, match=rf"gave a {kind} that is no module inside the model"):
            blocks_of(model, lambda _, given=stranger: [given])  # type: ignore[misc]  # a mistake of users
    with pytest.raises(WorkloadError, match=r"gave a Linear: return a list of modules of the model"):
        blocks_of(model, lambda _: model.first)


def test_recomputing_changes_memory_and_neither_names_nor_gradients() -> None:
    plain, recomputed = (deep() for _ in range(2))
    recomputed.load_state_dict(plain.state_dict())
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1

    recomputed.layers[0][0].register_forward_hook(count)
    recompute(repeated(recomputed))
    inputs = torch.randn(3, 4)
    for model in (plain, recomputed):
        model(inputs).square().sum().backward()

    assert calls == 2  # forward, and again in backward
    assert recomputed.state_dict().keys() == plain.state_dict().keys()
    for one, other in zip(plain.parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad)


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


def train(module: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    module(torch.rand(4, 3)).square().sum().backward()
    optimizer.step()


def test_parameters_buffers_and_state_are_restored_in_place(module: nn.Module) -> None:
    optimizer = torch.optim.AdamW(module.parameters())
    train(module, optimizer)
    tensors = [*module.state_dict().values(), *(one for s in optimizer.state.values() for one in s.values())]
    before = [tensor.clone() for tensor in tensors]
    restore = snapshot(module, optimizer)
    train(module, optimizer)
    assert not any(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))
    for _ in range(2):  # as often as one likes
        restore()
        assert all(torch.equal(one, other) for one, other in zip(tensors, before, strict=True))
        train(module, optimizer)


def test_an_expanded_buffer_is_restored() -> None:
    module = nn.Linear(1, 1)
    values = torch.zeros(1)
    module.register_buffer("expanded", values.expand(4))
    restore = snapshot(module, torch.optim.SGD(module.parameters()))
    values.fill_(1.0)
    restore()
    assert values == 0


def test_optimizer_state_other_than_tensors_is_restored_too(module: nn.Module) -> None:
    """As of LBFGS, which keeps lists, and of an optimizer around another, which keeps nothing itself."""
    inner = torch.optim.SGD(module.parameters(), lr=0.1)
    state = inner.state[next(module.parameters())]
    state.update(count=1, history=[1])
    restore: Any = snapshot(module, SimpleNamespace(optim=inner))  # type: ignore[arg-type]
    for _ in range(2):
        state["count"] += 1
        state["history"].append(2)
        restore()
        assert state == {"count": 1, "history": [1]}


def test_the_scale_of_fp16_gradients_is_restored(module: nn.Module) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))  # makes its state
    restore = snapshot(module, torch.optim.SGD(module.parameters()), scaler)
    scaler.update(2.0)
    restore()
    assert scaler.get_scale() == 8.0


def test_the_memory_of_a_snapshot_is_known_before_it_is_made(module: nn.Module) -> None:
    """12 and 6 parameters; buffers 6 and a count of 8 bytes; momentum as large as the parameters."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    assert snapshot_bytes(module, optimizer) == 4 * (18 + 6) + 8
    train(module, optimizer)
    assert snapshot_bytes(module, optimizer) == 4 * (2 * 18 + 6) + 8
