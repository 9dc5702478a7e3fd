"""What is held from step to step: readings around steps that keep what the test tells them to."""

from __future__ import annotations

import pytest
import torch

from pytest_ddpperf.instruments import growth
from pytest_ddpperf.instruments.collector import collector_paused
from pytest_ddpperf.instruments.growth import BLOCK_BYTES, held_after_steps
from pytest_ddpperf.instruments.live_memory import memory_reader
from pytest_ddpperf.stats.growth import growth_per_step

CPU = torch.device("cpu")
STEPS = 5
readable = pytest.mark.skipif(memory_reader(CPU) is None, reason="this system does not tell what malloc has given out")


@readable
def test_one_reading_before_and_one_after_each_step() -> None:
    done: list[int] = []
    with collector_paused():
        readings = held_after_steps(lambda: done.append(1), STEPS, CPU)
    assert len(readings) == STEPS + 1
    assert len(done) == STEPS


@readable
def test_bytes_that_are_no_tensor_are_seen() -> None:
    kept: list[bytes] = []
    with collector_paused():
        readings = held_after_steps(lambda: kept.append(bytes(200_000)), STEPS, CPU)
    assert 200_000 <= growth_per_step(readings) < 210_000


@readable
def test_small_objects_are_seen_by_their_number() -> None:
    """A thousand dictionaries and their floats, for which Python has pages of its own."""
    kept: list[dict[str, float]] = []
    with collector_paused():
        readings = held_after_steps(lambda: kept.extend({"loss": i / 7} for i in range(1000)), STEPS, CPU)
    assert growth_per_step(readings) >= 2000 * BLOCK_BYTES


@readable
def test_garbage_that_waits_to_be_collected_is_no_growth() -> None:
    def circle() -> None:
        kept: list[object] = [bytes(200_000)]
        kept.append(kept)

    with collector_paused():
        readings = held_after_steps(circle, STEPS, CPU)
    assert growth_per_step(readings) < 20_000


def test_a_rank_that_cannot_read_runs_the_steps_that_the_others_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "memory_reader", lambda _device: None)
    done: list[int] = []
    assert held_after_steps(lambda: done.append(1), STEPS, CPU) == ()
    assert len(done) == STEPS
