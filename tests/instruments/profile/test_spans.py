from __future__ import annotations

import pytest

from pytest_ddpperf.instruments.profile.spans import Span, intersection, length, union, within


@pytest.mark.parametrize(
    ("spans", "merged"),
    [
        ([], []),
        ([(2, 3), (0, 1)], [(0, 1), (2, 3)]),
        ([(0, 2), (1, 3)], [(0, 3)]),
        ([(0, 5), (1, 2)], [(0, 5)]),  # one in another
        ([(0, 1), (1, 2)], [(0, 2)]),  # they touch
        ([(1, 1), (2, 1)], []),  # of no length
    ],
)
def test_a_union_counts_all_time_once(spans: list[Span], merged: list[Span]) -> None:
    assert union(spans) == merged
    assert length(spans) == sum(end - start for start, end in merged)


def test_an_intersection_is_the_time_in_both() -> None:
    assert intersection([(0, 4), (6, 10)], [(2, 7), (9, 12)]) == [(2, 4), (6, 7), (9, 10)]
    assert intersection([(0, 3), (2, 4)], [(1, 2), (1, 3)]) == [(1, 3)]
    assert intersection([(0, 1)], [(1, 2)]) == []


def test_a_window_cuts_off_what_is_outside() -> None:
    assert within([(0, 3), (4, 5), (8, 12), (20, 30)], (2, 10)) == [(2, 3), (4, 5), (8, 10)]


@pytest.mark.parametrize(
    ("ready", "cost", "busy", "exposed", "window"),
    [
        ((25, 50, 75, 100), 20, 80, 20, 95),
        ((25, 50, 75, 100), 25, 100, 25, 100),
        ((25, 50, 75, 100), 30, 120, 45, 120),
        ((100,), 80, 80, 80, 80),
        ((10, 20), 5, 10, 0, 15),
    ],
)
def test_buckets_that_overlap_with_backward(
    ready: tuple[int, ...], cost: int, busy: int, exposed: int, window: int
) -> None:
    """Buckets sent one after the other, each when it is ready, in a backward of 100: a window is not busy time."""
    sent: list[Span] = []
    for moment in ready:
        start = max(moment, sent[-1][1] if sent else 0)
        sent.append((start, start + cost))
    assert length(sent) == busy
    assert busy - length(intersection(sent, [(0, 100)])) == exposed
    assert sent[-1][1] - sent[0][0] == window
