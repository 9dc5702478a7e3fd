"""What a device reaches in simple work."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from pytest_ddpperf.instruments.phases import diagnosed_steps


def test_rates_are_those_of_the_shortest_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosed_steps, "_shortest", lambda work, _device: [work(), 0.5][1])
    found = diagnosed_steps.read_rates(torch.device("cpu"))
    assert found is not None
    assert found.products == 2 * 512**3 / 0.5
    assert found.copies == 2 * (32 << 20) / 0.5
    assert found.operator == 0.5 / 120


def test_the_small_step_calls_as_many_operators_as_it_is_said_to() -> None:
    step = diagnosed_steps._small_step(torch.device("cpu"))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiler:
        step()
    names = Counter(event.name for event in profiler.events())
    computing = ("aten::mm", "aten::tanh", "aten::tanh_backward", "aten::add", "aten::add_")
    # The inputs of the first layer need no gradient, and its weight has no earlier gradient to add to.
    assert sum(names[name] for name in computing) == pytest.approx(
        diagnosed_steps._OPERATORS * diagnosed_steps._LAYERS, abs=2
    )


def test_without_room_there_are_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosed_steps, "_COPIED", {"cpu": 1 << 60})
    assert diagnosed_steps.read_rates(torch.device("cpu")) is None


def test_no_random_number_is_drawn() -> None:
    state = torch.random.get_rng_state()
    assert diagnosed_steps.read_rates(torch.device("cpu"), "bf16") is not None
    assert torch.equal(torch.random.get_rng_state(), state)
