"""A trace becomes the time of a step by what it was spent on, with numbers worked by hand."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from pytest_ddpperf.analysis.traces.difference import usage
from pytest_ddpperf.analysis.traces.reading import group_profile, in_steps, rank_in_name, read_trace, times_of
from pytest_ddpperf.errors import TraceError
from tests.analysis.traces.made_traces import collective, document, event, step, trace

US = 1e-6


def test_compute_communication_overlap_and_idle_of_a_step() -> None:
    found = trace(
        1,
        2,
        step(0, 100, "warmup_step"),
        event("aten::mm", 0, 100),
        step(100, 200),
        event("aten::mm", 110, 130),
        event("aten::relu", 130, 140),
        collective(120, 160),  # 20 of 40 beside computation
        step(200, 280),
        event("aten::mm", 210, 220),
        step(280, 300, "last_step"),
    )
    times = times_of(found)
    assert (times.rank, times.steps, found.device) == (1, 2, "cpu")
    assert times.step == pytest.approx(90 * US)
    assert times.computed == pytest.approx((30 + 10) / 2 * US)
    assert times.communicated == pytest.approx(40 / 2 * US)
    assert times.overlapped == pytest.approx(20 / 2 * US)
    assert times.idle == pytest.approx((50 + 70) / 2 * US)  # 100 - 30 - 40 + 20, and 80 - 10
    assert times.overlap == pytest.approx(0.5)
    assert found.steps[0].collectives[0].nbytes == 40


def test_on_a_gpu_kernels_compute_and_collectives_have_torchs_notes() -> None:
    note = {"Collective name": "_allgather_base", "In msg nelems": 100, "dtype": "BFloat16", "Group size": 2}
    found = trace(
        0,
        2,
        step(0, 100),
        event("aten::mm", 0, 90),  # which only launches
        event("gemm", 10, 50, "kernel"),
        event("ncclDevKernel_AllGather_RING_LL(x)", 30, 70, "kernel", tid=9, **note),
        event("Memcpy HtoD", 80, 90, "gpu_memcpy"),
    )
    times = times_of(found)
    assert found.device == "cuda"
    assert (times.computed, times.communicated, times.overlapped) == pytest.approx((40 * US, 40 * US, 20 * US))
    (sent,) = found.steps[0].collectives
    assert (sent.kind, sent.nbytes, sent.ranks) == ("all_gather", 200, 2)


def test_a_range_of_the_user_with_our_name_is_no_step() -> None:
    found = trace(0, 1, step(0, 100), step(20, 40), event("aten::mm", 0, 10))
    assert list(found.marks) == [pytest.approx((0, 100 * US))]


@pytest.mark.parametrize(
    ("events", "marks"),
    [
        ([step(10, 30, "ProfilerStep#3"), step(30, 60, "ProfilerStep#4")], [(10 * US, 30 * US), (30 * US, 60 * US)]),
        ([step(10, 30, "train")], [(5 * US, 65 * US)]),
    ],
)
def test_steps_are_found_in_traces_of_other_tools(
    events: list[dict[str, Any]], marks: list[tuple[float, float]]
) -> None:
    found = trace(0, 1, *events, event("aten::mm", 5, 65))
    assert [pytest.approx(mark) for mark in marks] == list(found.marks)


def test_the_rank_that_comes_last_and_the_time_that_the_others_wait_are_found() -> None:
    ranks = [
        trace(rank, 2, step(0, 100), event("aten::mm", 0, 10), collective(10 + 30 * rank, 60), collective(70, 80, 99))
        for rank in (1, 0)
    ]
    profile = group_profile(ranks)
    assert profile is not None
    assert profile.slowest == (1, 0.5)  # of a tie the first one is named
    assert profile.transfer == pytest.approx((20 + 10) * US)
    assert profile.wait == pytest.approx(15 * US)


def test_a_group_with_a_missing_rank_has_no_profile() -> None:
    one = trace(0, 2, step(0, 100), collective(10, 60))
    assert group_profile([one]) is None
    assert group_profile([one, trace(1, 2, step(0, 50), step(50, 100), collective(10, 60))]) is None


def test_smaller_groups_are_recognised_by_torchs_list_of_process_groups() -> None:
    groups = [{"pg_size": 4, "ranks": [0, 1, 2, 3]}, {"pg_size": 2, "ranks": [0, 1]}]
    assert trace(0, 4, event("aten::mm", 0, 1), pg_config=groups).subgroups
    assert not trace(0, 4, event("aten::mm", 0, 1), pg_config=groups[:1]).subgroups


def test_the_rank_comes_from_the_file_name_if_the_trace_does_not_have_it() -> None:
    whole = document(0, 2, event("aten::mm", 0, 1))
    del whole["distributedInfo"]
    assert read_trace(whole, "some/test_step.w2_rank_12_trace.json.gz").rank == 12
    assert rank_in_name("test_step.w2_merged_trace.json") is None


@pytest.mark.parametrize("content", [{"traceEvents": {}}, 3])
def test_a_file_that_is_not_a_trace_is_refused_by_name(content: object) -> None:
    with pytest.raises(TraceError, match=r"^notes\.json is not a Chrome trace"):
        read_trace(content, "notes.json")


@pytest.mark.parametrize(
    "strange",
    [
        {"ph": "X", "name": "aten::mm", "ts": 10**4000, "dur": 1},
        {"ph": "i", "name": "mark", "ts": 10**4000},
        {"ph": "X", "name": "aten::mm", "ts": 0, "dur": math.nan},
        {"ph": "X", "name": "gloo:all_reduce", "ts": 0, "dur": 1, "args": ["no object"]},
        {"ph": "X", "name": "gloo:all_reduce", "ts": 0, "dur": 1, "args": {"Input type": [[]], "Input Dims": [[1]]}},
        {**event("ncclDevKernel_AllReduce", 0, 1, "kernel"), "args": {"Collective name": "x", "Group size": "["}},
    ],
    ids=["huge", "huge mark", "NaN", "no object", "no type", "no note"],
)
def test_an_event_that_torch_would_not_write_is_refused(strange: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match=r"^odd\.json is not a Chrome trace of torch.profiler: an event cannot be"):
        read_trace({"traceEvents": [event("aten::mm", 0, 1), strange]}, "odd.json")


def test_an_event_that_has_not_ended_is_omitted() -> None:
    found = trace(0, 2, event("aten::mm", 5, 4), event("aten::add", 0, 1))
    assert [each.name for each in found.events] == ["aten::add"]


@pytest.mark.parametrize("told", [{"rank": -1}, {"world_size": 10**22}])
def test_an_impossible_rank_is_refused(told: dict[str, int]) -> None:
    with pytest.raises(TraceError, match=r"^odd\.json is not a trace of a rank: "):
        read_trace({"distributedInfo": told, "traceEvents": [event("aten::mm", 0, 1)]}, "odd.json")


def test_a_trace_in_which_nothing_ran_is_refused() -> None:
    strange = [{"ph": "X", "name": "no time"}, {"ph": "M", "name": "process_name"}, "text", None]
    with pytest.raises(TraceError, match=r"^empty\.json has no events with a duration"):
        read_trace({"traceEvents": strange}, "empty.json")


def test_a_trace_in_which_nothing_takes_time_is_refused_and_a_step_without_time_is_none() -> None:
    empty = event("aten::mm", 1, 1)
    with pytest.raises(TraceError, match=r"^empty\.json has no events with a duration"):
        read_trace({"traceEvents": [empty]}, "empty.json")
    for name in ("step", "ProfilerStep#1"):
        assert times_of(trace(0, 1, empty, event("aten::add", 1, 5), step(1, 1, name))).step == pytest.approx(4 * US)


def test_a_trace_of_many_steps_is_read_in_seconds() -> None:
    """If each step looked at each event, these 10,000 steps would take minutes."""
    events = [event("aten::mm", 10 * i, 10 * i + 5) for i in range(20_000)]
    events += [collective(20 * i + 2, 20 * i + 8) for i in range(10_000)]
    marks = [step(20 * i, 20 * i + 19, f"ProfilerStep#{i}") for i in range(10_000)]
    found = trace(0, 1, *events, *marks)
    started = time.process_time()
    times, used = times_of(found), usage([found])
    assert time.process_time() - started < 20
    assert times.steps == 10_000
    assert (times.computed, times.overlapped) == pytest.approx((10 * US, 3 * US))
    assert {use.calls for use in used.values()} == {1.0, 2.0}
    inside = [in_steps(found, each) for each in found.events if each.name == "aten::mm"]
    assert inside == [i // 2 for i in range(20_000)]
    (outside,) = trace(0, 1, event("aten::mm", 39, 40)).events
    assert in_steps(found, outside) is None
