"""Clocks, and the garbage collector between marks."""

from __future__ import annotations

import gc

import pytest
import torch

from pytest_ddpperf.instruments.clock import CPU_CLOCK, clock_for, collector_paused


def test_seconds_are_the_differences_of_consecutive_marks() -> None:
    assert CPU_CLOCK.seconds([1.0, 1.5, 3.5, 3.75]) == (0.5, 2.0, 0.25)
    assert CPU_CLOCK.seconds([7.0]) == ()


class Events:
    """A stand-in for CUDA's events: each knows the stream that it was recorded on, and when, in ms."""

    made: list[Events]
    log: list[object]

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        self.made.append(self)

    def record(self, stream: object) -> None:
        self.log.append(stream)
        self.at = 250.0 * len(self.log)

    def elapsed_time(self, other: Events) -> float:
        assert self.log[-1] == "all done"
        return other.at - self.at


def test_marks_are_of_the_stream_that_was_current_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those made inside of a side stream, and those beyond the number that was foreseen."""
    Events.made, Events.log = [], []
    current = iter(["main", "side"])
    monkeypatch.setattr(torch.cuda, "Event", Events)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: next(current))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: Events.log.append("all done"))
    clock = clock_for(torch.device("cuda", 0), marks=2)
    assert len(Events.made) == 2
    clock.settle()
    marks = [clock.mark() for _ in range(3)]
    assert clock.seconds(marks) == (0.25, 0.25)
    assert len(Events.made) == 3
    assert Events.log == ["main", "main", "all done", "main", "main", "main", "all done"]


@pytest.mark.gpu
def test_events_time_the_work_and_not_its_launch() -> None:
    """The second interval holds 50 products of 8192 x 8192: 5.5e13 FLOP, more than 10 ms on any GPU of today."""
    device = torch.device("cuda", 0)
    matrix = torch.ones(8192, 8192, device=device)
    torch.mm(matrix, matrix)
    clock = clock_for(device, marks=3)
    clock.settle()
    marks = [clock.mark(), clock.mark()]
    for _ in range(50):
        torch.mm(matrix, matrix)
    marks.append(clock.mark())
    empty, full = clock.seconds(marks)
    assert 0 <= empty < full
    assert full > 0.01


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_rests_inside_and_is_as_before_afterwards(*, enabled: bool) -> None:
    """Frozen objects stay frozen: a rank shares them with the zygote, and a collection of them would copy them."""
    (gc.enable if enabled else gc.disable)()
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        assert gc.get_freeze_count() > frozen / 2  # other threads may free some meanwhile
    finally:
        gc.enable()
