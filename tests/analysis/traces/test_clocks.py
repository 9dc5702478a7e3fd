"""Clocks of ranks are aligned by the collectives in which they met, never further off than is told."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pytest_ddpperf.analysis.traces.clocks import align, merged_trace
from pytest_ddpperf.errors import TraceError
from tests.analysis.traces.made_traces import collective, event, later, step, trace

US = 1e-6


def test_a_clock_that_is_ahead_is_moved_by_the_median_of_the_ends() -> None:
    first = [step(0, 200), collective(10, 60), collective(100, 130)]
    second = later([step(0, 200), collective(40, 62), collective(90, 128)], 1000)
    found = align([trace(0, 2, *first), trace(1, 2, *second)])
    assert found.shifts == pytest.approx((0, 1000 * US))  # of ends that differ by 1002 and 998
    # It is at least 1040 - 60 = 980 and at most 1128 - 100 = 1028.
    assert found.uncertainties == pytest.approx((0, 28 * US))
    assert found.collectives == 2


def test_an_estimated_clock_shift_beyond_its_limits_is_moved_to_the_limit() -> None:
    first = [step(0, 400), collective(0, 10), collective(100, 200), collective(300, 400)]
    second = [step(0, 400), collective(0, 10), collective(150, 160), collective(350, 360)]
    found = align([trace(0, 2, *first), trace(1, 2, *second)])
    assert found.shifts[1] == pytest.approx(-10 * US)  # not the median of the ends, -40: it is from -10 to 10
    assert found.uncertainties[1] == pytest.approx(20 * US)


def test_no_clock_of_a_rank_is_further_off_than_its_uncertainty() -> None:
    """Ranks come and go at random times, as gloo and NCCL let them: none ends before the last has begun."""
    for case in range(50):
        number = random.Random(case)  # noqa: S311
        ahead = [0.0, *(number.uniform(-1e5, 1e5) for _ in range(3))]
        ranks: list[list[dict[str, Any]]] = [[step(0, 10_000)] for _ in ahead]
        time = 0.0
        for _ in range(5):
            begins = [time + number.expovariate(1 / 200) for _ in ahead]
            ends = [max(begins) + number.expovariate(1 / 50) for _ in ahead]
            time = max(ends)
            for events, begin, end in zip(ranks, begins, ends, strict=True):
                events.append(collective(begin, end))
        found = align([trace(i, 4, *later(ranks[i], ahead[i])) for i in range(4)])
        for shift, uncertainty, truth in zip(found.shifts, found.uncertainties, ahead, strict=True):
            assert abs(shift / US - truth) <= uncertainty / US + 1e-3


def test_a_single_rank_needs_no_meeting() -> None:
    assert align([trace(0, 1, step(0, 10), event("aten::mm", 0, 5))]).shifts == (0.0,)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (
            [collective(10, 20, kind="broadcast")],
            [collective(10, 20, kind="broadcast")],
            "the traces need an all_reduce",
        ),
        ([collective(10, 20)], [], r"the collectives of ranks 1 and 0 differ in number \(0 and 1\), kind"),
        ([collective(10, 20)], [collective(10, 20, floats=11)], r"differ in number \(1 and 1\)"),
        (
            [collective(10, 30), collective(20, 40, tid=3)],
            [collective(10, 20), collective(20, 40)],
            "overlaps no other collective",
        ),
        ([collective(10, 20), collective(50, 60)], [collective(10, 20), collective(80, 90)], "at least 1e-05 s apart"),
    ],
)
def test_traces_that_cannot_be_aligned_are_refused_with_the_reason(
    first: list[dict[str, Any]], second: list[dict[str, Any]], reason: str
) -> None:
    with pytest.raises(TraceError, match=f"^traces cannot be merged.*{reason}"):
        align([trace(0, 2, step(0, 100), *first), trace(1, 2, step(0, 100), *second)])


def test_groups_of_some_ranks_are_no_meetings() -> None:
    groups = [{"pg_size": 2}, {"pg_size": 1}]
    ranks = [trace(rank, 2, step(0, 100), collective(10, 20), pg_config=groups) for rank in (0, 1)]
    with pytest.raises(TraceError, match="cannot be merged"):
        align(ranks)


def test_collectives_outside_of_steps_do_not_count() -> None:
    ranks = [trace(rank, 2, step(0, 100), collective(10, 20), collective(200 + rank, 900)) for rank in (0, 1)]
    assert align(ranks).collectives == 1


def test_two_traces_of_one_rank_are_refused() -> None:
    one = trace(3, 4, step(0, 100), collective(10, 20))
    with pytest.raises(TraceError, match=r"two are of the same rank \(3, 3\)"):
        align([one, one])


def test_a_merged_trace_has_all_ranks_by_the_clock_of_the_first() -> None:
    flow = {"ph": "s", "id": 4, "name": "ac2g", "cat": "ac2g", "pid": 7, "tid": 1, "ts": 12}
    name = {"ph": "M", "name": "process_name", "pid": 7, "ts": 0, "args": {"name": "rank"}}
    order = {"ph": "M", "name": "process_sort_index", "pid": 7, "ts": 0, "args": {"sort_index": 7}}
    first = [step(0, 100), collective(10, 20), flow, name, order]
    traces = [trace(1, 2, *later(first[:3], 500), name, order), trace(0, 2, *first)]
    merged = merged_trace(traces, align(traces))
    events = merged["traceEvents"]
    assert [each["pid"] for each in events] == [0] * 5 + [1000] * 5
    assert [each["ts"] for each in events] == pytest.approx([500, 510, 512, 0, 0] * 2)  # rank 1 is the first one here
    assert [each["id"] for each in events if each["ph"] == "s"] == [1, 2]
    assert [each["args"]["sort_index"] for each in events if each["name"] == "process_sort_index"] == [0, 1000]
    assert merged["baseTimeNanoseconds"] == 5
    clocks = merged["ddpperf"]["clocks"]
    assert [each["rank"] for each in clocks] == [0, 1]
    assert [each["clock_ahead_s"] for each in clocks] == pytest.approx([-500 * US, 0])
    assert [each["uncertainty_s"] for each in clocks] == pytest.approx([10 * US, 0])
