"""What training changes is put back, in place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from pytest_ddpperf.training.snapshot import snapshot, snapshot_bytes


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


def train(module: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    module(torch.rand(4, 3)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("make", [torch.optim.AdamW, lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9)])
def test_parameters_buffers_and_state_are_put_back_where_they_were(module: nn.Module, make: Any) -> None:
    optimizer = make(module.parameters())
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


def test_what_is_no_tensor_is_put_back_too(module: nn.Module) -> None:
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


def test_the_scale_of_fp16_gradients_is_put_back(module: nn.Module) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))  # makes its state
    restore = snapshot(module, torch.optim.SGD(module.parameters()), scaler)
    scaler.update(2.0)
    restore()
    assert scaler.get_scale() == 8.0


def test_what_copies_take_is_known_before_they_are_made(module: nn.Module) -> None:
    """12 and 6 parameters; buffers 6 and a count of 8 bytes; momentum as large as the parameters."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    assert snapshot_bytes(module, optimizer) == 4 * (18 + 6) + 8
    train(module, optimizer)
    assert snapshot_bytes(module, optimizer) == 4 * (2 * 18 + 6) + 8
