"""Blocks of timed steps."""

from __future__ import annotations

from itertools import pairwise

from pytest_ddpperf.instruments.clock import Clock
from pytest_ddpperf.training.timing import by_period, timed_block


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


def test_what_happens_in_one_step_of_several_is_shared_out() -> None:
    """1, 1, 4 twice is 2 twice; the seventh step begins a period that does not end."""
    assert by_period((1, 1, 4, 1, 1, 4, 9), 3) == (2, 2)
    assert by_period((1, 3), 3) == (2,)
