"""Blocks of timed steps."""

from __future__ import annotations

import time
from itertools import count, pairwise
from typing import Any

import pytest
import torch

from pytest_ddpperf.instruments.clock import Clock
from pytest_ddpperf.training import timing
from pytest_ddpperf.training.timing import by_period, timed_block, timed_blocks, turn_sizes


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
