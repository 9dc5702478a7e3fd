"""Extra work on a GPU slows a step by its share, whether it waits for the GPU or for the host: on made-up clocks."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perf_tests import extra_work

MODEL: Any = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda", 0))]))
KERNELS = 10  # of a step
READING = 1e-6  # seconds that a look at the clock takes
RATE = 1.5e9  # cycles per second


class Machine:
    """A host that queues work, and a GPU that does it in order; in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.free = 0.0  # when the GPU will have done all that is queued
        self.rate = RATE
        self.waits = 0

    def read(self) -> float:
        self.now += READING
        return self.now

    def queue(self, seconds: float) -> None:
        self.free = max(self.free, self.now) + seconds

    def sleep(self, cycles: int) -> None:
        self.queue(cycles / self.rate)

    def synchronize(self, *_: object) -> None:
        self.waits += 1
        self.now = max(self.now, self.free)

    def step(self, of_host: float, of_gpu: float) -> None:
        for _ in range(KERNELS):
            self.now += of_host / KERNELS
            self.queue(of_gpu / KERNELS)

    def event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at=None)
        event.record = lambda: setattr(event, "at", max(self.now, self.free))
        event.query = lambda: event.at <= self.now
        event.elapsed_time = lambda other: 1e3 * (other.at - event.at)
        return event


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr("time.perf_counter", made.read)
    for name in ("Event", "_sleep", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, {"Event": made.event, "_sleep": made.sleep}.get(name, made.synchronize))
    return made


def seconds_of_a_step(machine: Machine, hook: Callable[..., object], of_host: float, of_gpu: float) -> float:
    """The mean of 40 steps, after a warm-up of 12 of which each is waited for."""
    for _ in range(12):
        hook(MODEL, ())
        machine.step(of_host, of_gpu)
        machine.synchronize()
    for number in range(50):
        if number == 10:
            begun = machine.free
        hook(MODEL, ())
        machine.step(of_host, of_gpu)
    return (machine.free - begun) / 40


STEPS = [pytest.param(1e-3, 10e-3, id="waits for the GPU"), pytest.param(10e-3, 1e-3, id="waits for the host")]


@pytest.mark.parametrize("share", [0.03, 0.1])
@pytest.mark.parametrize(("of_host", "of_gpu"), STEPS)
def test_a_step_is_slower_by_the_share(machine: Machine, of_host: float, of_gpu: float, share: float) -> None:
    longer = seconds_of_a_step(machine, extra_work.ExtraWork(share), of_host, of_gpu)
    assert longer / 10e-3 == pytest.approx(1 + share, abs=0.001)


@pytest.mark.parametrize(("of_host", "of_gpu"), STEPS)
def test_without_a_share_the_step_is_as_long_as_before(machine: Machine, of_host: float, of_gpu: float) -> None:
    assert seconds_of_a_step(machine, extra_work.ExtraWork(0.0), of_host, of_gpu) == pytest.approx(10e-3, rel=0.001)


def test_only_the_first_step_is_waited_for(machine: Machine) -> None:
    hook = extra_work.ExtraWork(0.1)
    for _ in range(20):
        hook(MODEL, ())
        machine.step(1e-3, 10e-3)
    assert machine.waits == 1


def test_extra_work_follows_a_clock_that_changes(machine: Machine) -> None:
    """A GPU that was idle when the hook was made runs at a low clock: a sleep of so many cycles gets shorter."""
    machine.rate = RATE / 5
    hook = extra_work.ExtraWork(0.1)
    hook(MODEL, ())
    machine.rate = RATE
    assert seconds_of_a_step(machine, hook, 1e-3, 10e-3) == pytest.approx(11e-3, rel=0.001)


def test_waits_of_interleaved_steps_do_not_count_as_step_time(machine: Machine) -> None:
    """Blocks of two steps: half of the intervals between hooks hold 100 ms in which another launch had its turn."""
    hook, longer = extra_work.ExtraWork(0.1), []
    for _ in range(20):
        machine.synchronize()
        machine.now += 0.1
        begun = machine.now
        for _ in range(2):
            hook(MODEL, ())
            machine.step(1e-3, 10e-3)
        longer.append(machine.free - begun)
    assert longer[-10:] == pytest.approx([22e-3] * 10, rel=0.02)
