"""Seconds of a call by what they were spent on; each look at the clock is scripted."""

from __future__ import annotations

from pytest_ddpperf.records.launch import TimeSpent
from pytest_ddpperf.run.call.time_sheet import TimeSheet


def test_the_parts_add_up_to_the_wall_time() -> None:
    """The call began at 10 and had its sheet at 13; launches took 6, 20 and 5 seconds, and 7 lie between them."""
    now = iter([13.0, 14.0, 20.0, 21.0, 41.0, 44.0, 49.0, 51.0])
    sheet = TimeSheet(10.0, clock=lambda: next(now))
    sheet.note_launch(sheet.now(), verifying=2.0, counting=1.0, measuring=0.5)
    sheet.note_launch(sheet.now(), measuring=18.0)
    sheet.note_launch(sheet.now(), diagnosing=4.0)
    spent = sheet.spent
    assert spent == TimeSpent(
        starting=3.0 + 2.5 + 2.0 + 1.0, verifying=2.0, counting=1.0, measuring=18.5, diagnosing=4.0, other=7.0
    )
    assert spent.total == 51.0 - 10.0


def test_no_launch_works_longer_than_it_lasts() -> None:
    """Code under test may have patched the clock of its ranks."""
    now = iter([0.0, 0.0, 5.0, 5.0, 8.0, 8.0])
    sheet = TimeSheet(0.0, clock=lambda: next(now))
    sheet.note_launch(sheet.now(), counting=-3.0, measuring=4.0, diagnosing=100.0)
    sheet.note_launch(sheet.now(), measuring=1e9)
    assert sheet.spent == TimeSpent(measuring=7.0, diagnosing=1.0)


def test_the_seconds_of_two_passes_add_up_part_by_part() -> None:
    first, second = TimeSpent(starting=1.0, counting=2.0, measuring=4.0), TimeSpent(starting=0.5, measuring=3.0)
    assert first + second == TimeSpent(starting=1.5, counting=2.0, measuring=7.0)
