"""Blocks of timed steps."""

from __future__ import annotations

import time
from itertools import count, pairwise
from typing import Any, cast

import pytest
import torch

from pytest_ddpperf.instruments.clock import Clock, clock_for
from pytest_ddpperf.training import timing
from pytest_ddpperf.training.timing import by_period, device_sizes, timed_block, timed_blocks, turn_sizes


def test_a_block_is_marked_before_the_first_step_and_after_each() -> None:
    """The marks tell the number of steps done so far, squared: 0, 1, 4, 9. Their differences are 1, 3, 5."""
    events: list[str] = []

    def run() -> int:
        events.append("step")
        return events.count("step")

    def mark() -> float:
        events.append("mark")
        return float(events.count("step") ** 2)

    clock = Clock(
        settle=lambda: events.append("settle"),
        mark=mark,
        seconds=lambda marks: tuple(after - before for before, after in pairwise(marks)),
    )
    assert timed_block(run, 3, clock) == ((1.0, 3.0, 5.0), 3)
    assert events == ["settle", "mark", "step", "mark", "step", "mark", "step", "mark"]


def test_losses_are_kept_without_their_graphs_and_tensors() -> None:
    weight = torch.ones(1, requires_grad=True)
    clock = Clock(settle=lambda: None, mark=lambda: 0.0, seconds=lambda marks: (0.0,) * (len(marks) - 1))
    losses: list[Any] = []
    view_of_much = torch.full((100, 100), 5.0)[0, 0]
    results = iter([weight * 2, view_of_much, 3.0, None])
    timed_block(lambda: next(results), 4, clock, losses)
    assert losses == [2.0, 5.0, 3.0, None]
    assert [type(loss) for loss in losses] == [float, float, float, type(None)]
    refused = iter([weight.expand(2) * 2])
    timed_block(lambda: next(refused), 1, clock, losses)
    assert (losses[-1].shape, losses[-1].requires_grad) == ((2,), False)


def test_what_happens_in_one_step_of_several_is_shared_out() -> None:
    """1, 1, 4 twice is 2 twice; the seventh step begins a period that does not end."""
    assert by_period((1, 1, 4, 1, 1, 4, 9), 3) == (2, 2)
    assert by_period((1, 3), 3) == (2,)


@pytest.mark.parametrize(
    ("steps", "period", "sizes"),
    [
        pytest.param(184, 1, (4,) * 41 + (5,) * 4, id="a second of 5 ms steps"),
        pytest.param(90, 1, (2,) * 45, id="a second of 11 ms steps"),
        pytest.param(15, 1, (2,) * 6 + (3,), id="a second of 70 ms steps: blocks of two or more"),
        pytest.param(5, 1, (2, 3), id="the fewest steps that are planned"),
        pytest.param(3, 1, (3,), id="not divided"),
        pytest.param(40, 4, (8,) * 5, id="blocks are whole periods"),
        pytest.param(4, 4, (4,), id="one period"),
    ],
)
def test_steps_that_take_turns_are_timed_in_short_blocks(steps: int, period: int, sizes: tuple[int, ...]) -> None:
    blocks = turn_sizes(steps, period)
    assert sorted(blocks) == list(sizes)
    assert sum(blocks) == steps


def test_every_block_begins_when_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock stands still but for the steps, of which the n-th takes n seconds."""
    events: list[str] = []
    steps, now = count(), [0.0]

    def run() -> int:
        number = next(steps)
        events.append(str(number))
        now[0] += number
        return number

    clock = Clock(
        settle=lambda: None, mark=lambda: now[0], seconds=lambda marks: tuple(b - a for a, b in pairwise(marks))
    )
    at_work = iter([1.0, 1.5, 10.0, 10.25])  # before and after each block
    monkeypatch.setattr(time, "process_time", lambda: next(at_work))
    timed = timed_blocks(run, (2, 1), clock, lambda part: events.append(f"begin {part}"))
    assert (timed.seconds, timed.loss) == ((0.0, 1.0, 2.0), 2)
    assert timed.cpu == (0.5 + 0.25) / 3
    assert timed.cpu_blocks == (0.5 / 2, 0.25 / 1)
    assert events == ["begin 0.0", "0", "1", "begin 0.5", "2"]


def test_ranks_meet_before_a_block_of_communication_when_their_devices_have_done_what_leads_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    clock = Clock(
        settle=lambda: events.append("settle"), mark=lambda: 0.0, seconds=lambda marks: (0.0,) * (len(marks) - 1)
    )
    monkeypatch.setattr(timing, "clock_for", lambda *_, **__: clock)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: events.append("meet"))
    timing._block(lambda: events.append("step"), 2, 1, torch.device("cpu"))
    assert events == ["step", "settle", "meet", "settle", "step", "step"]


class Device:
    """A clock whose marks see a part of the work only, and steps of a second of wall time."""

    def __init__(self, seen: float, step: float = 1.0) -> None:
        self.now, self.seen, self.step = 0.0, seen, step
        self.events: list[str] = []
        self.clock = Clock(
            settle=lambda: self.events.append("settle"), mark=self.mark, seconds=self.seconds, wall=self.wall
        )

    def mark(self) -> float:
        self.events.append("mark")
        return self.now * self.seen

    def wall(self) -> float:
        self.events.append("wall")
        return self.now

    def seconds(self, marks: Any) -> tuple[float, ...]:
        self.events.append("read")
        return tuple(after - before for before, after in pairwise(marks))

    def run(self) -> None:
        self.now += self.step
        self.step *= 1.5


@pytest.mark.parametrize(
    ("seen", "step", "seconds", "missed"),
    [
        pytest.param(1.0, 1.0, (1.0, 1.5), [], id="all"),
        pytest.param(0.96, 1.0, (0.96, 1.44), [], id="4 % less are the host's way to the device"),
        pytest.param(0.9, 1.0, (1.25, 1.25), [0.1], id="10 % less: of another stream"),
        pytest.param(1.1, 1.0, (1.25, 1.25), [0.1], id="10 % more: events that were not recorded"),
        pytest.param(0.5, 0.0004, (0.0002, 0.0003), [], id="half a millisecond of a short block"),
    ],
)
def test_where_events_miss_work_of_a_block_its_wall_time_counts(
    seen: float, step: float, seconds: tuple[float, ...], missed: list[float]
) -> None:
    """The wall time is read at the borders alone, where the device has done its work."""
    device = Device(seen, step)
    times, _ = timed_block(device.run, 2, device.clock)
    assert times == pytest.approx(seconds)
    assert device.clock.missed == pytest.approx(missed)
    assert device.events == ["settle", "wall", "mark", "mark", "mark", "settle", "wall", "read"]


def test_events_of_a_script_are_held_against_wall_time_too() -> None:
    """Its own thread makes the marks."""
    device = Device(seen=0.0)

    def marked(steps: int, mark: Any) -> list[Any]:
        marks = [mark()]
        for _ in range(steps):
            device.run()
            marks.append(mark())
        return marks

    run: Any = type("Steps", (), {"marked": staticmethod(marked)})()
    assert timed_block(run, 2, device.clock) == ((1.25, 1.25), None)
    assert device.clock.missed == [1.0]


@pytest.mark.gpu
def test_events_of_a_gpu_miss_the_work_of_a_stream_that_nothing_waits_for() -> None:
    """20 million cycles are 10 ms, on its current stream or on another one."""
    device, cuda = torch.device("cuda", 0), cast("Any", torch.cuda)  # torch leaves some of it untyped
    other = cuda.Stream(device)

    def aside() -> None:
        with cuda.stream(other):
            cuda._sleep(20_000_000)

    for run, missed in ((aside, True), (lambda: cuda._sleep(20_000_000), False)):
        clock = clock_for(device, marks=6)
        seconds, _ = timed_block(run, 5, clock)
        assert min(seconds) > 0.001
        assert bool(clock.missed) is missed


@pytest.mark.parametrize(
    ("steps", "period", "sizes"),
    [
        pytest.param(1003, 1, (100,) * 7 + (101,) * 3, id="ten blocks of a long launch"),
        pytest.param(23, 1, (5, 6, 6, 6), id="five steps or more"),
        pytest.param(4, 1, (4,), id="one block"),
        pytest.param(64, 8, (8,) * 8, id="whole periods"),
        pytest.param(60, 2, (6,) * 10, id="periods of two"),
    ],
)
def test_steps_on_a_device_are_timed_in_blocks_long_enough_for_it_to_fall_behind(
    steps: int, period: int, sizes: tuple[int, ...]
) -> None:
    assert sorted(device_sizes(steps, period)) == list(sizes)
