"""When launches were in their timed steps."""

from __future__ import annotations

from pytest_ddpperf.records.launch import Launch, Window, timed_window
from tests.factories import make_rank_launch


def launch(*windows: Window | None) -> Launch:
    ranks = tuple(make_rank_launch(rank, window=window) for rank, window in enumerate(windows))
    return Launch(round=0, ranks=ranks, seconds=1.0)


def test_a_launch_is_in_timed_steps_while_all_ranks_are_and_launches_while_one_of_them_is() -> None:
    assert timed_window([launch((10.0, 14.5), (10.5, 14.0))]) == (10.5, 14.0)
    assert timed_window([launch((10.0, 14.0)), launch((10.2, 15.0))]) == (10.0, 15.0)
    assert timed_window([]) is timed_window([launch(None, None)]) is None
