from __future__ import annotations

import pytest

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.planner import overlapped

READY = (25, 50, 75, 100)


@pytest.mark.parametrize(
    ("ready", "cost", "expected"),
    [
        (READY, 20, (120, 20, 80, 95, 0.75)),
        (READY, 25, (125, 25, 100, 100, 0.75)),
        (READY, 30, (145, 45, 120, 120, 0.625)),
        ((100,), 80, (180, 80, 80, 80, 0)),
        ((10, 20), 5, (25, 0, 10, 15, 1)),
    ],
)
def test_buckets_are_sent_one_after_another(ready: tuple[float, ...], cost: float, expected: tuple[float, ...]) -> None:
    """Expected are the end of the last one, exposed and busy time, the window and the share that is hidden."""
    found = overlapped(ready, [cost] * len(ready), 100)
    assert (found.finish, found.exposed, found.busy, found.window, found.share) == expected
    assert found.hidden + found.exposed == found.busy


def test_where_nothing_is_sent_no_share_is_hidden() -> None:
    found = overlapped([], [], 100)
    assert (found.exposed, found.window, found.share) == (0, 0, None)


@pytest.mark.parametrize(
    ("ready", "costs", "backward", "words"),
    [
        ([1.0], [1.0, 2.0], 3.0, "costs has 2 times for 1 buckets; give one for each"),
        ([-1.0], [1.0], 3.0, "ready=-1.0 is no such quantity; give a finite number of at least 0"),
        ([1.0], [float("nan")], 3.0, "costs=nan is no such quantity"),
    ],
)
def test_times_that_cannot_be_are_refused(ready: list[float], costs: list[float], backward: float, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        overlapped(ready, costs, backward)
