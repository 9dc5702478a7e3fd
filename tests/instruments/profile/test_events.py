"""Classes of a profile's events, and spans of time."""

from __future__ import annotations

import pytest

from pytest_ddpperf.instruments.profile.events import (
    STEP,
    ProfilerEvent,
    Span,
    class_of,
    kind_of,
    length,
    steps_of,
    union,
    within,
)
from pytest_ddpperf.records.phases import Collective, ProfiledStep


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


def test_a_window_cuts_off_the_time_outside() -> None:
    assert within([(0, 3), (4, 5), (8, 12), (20, 30)], (2, 10)) == [(2, 3), (4, 5), (8, 10)]


@pytest.mark.parametrize(
    ("name", "activity", "expected"),
    [
        ("gloo:all_reduce", "user_annotation", "communication"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "kernel", "communication"),
        ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", "kernel", "communication"),
        (
            "void (anonymous namespace)::oneRankReduce<FuncPreMulSum<float> >(void*, void*, unsigned long)",
            "kernel",
            "communication",
        ),
        ("void at::native::vectorized_elementwise_kernel<4>", "kernel", "computation"),
        ("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", "memory"),
        ("Memset (Device)", "gpu_memset", "memory"),
        ("aten::addmm", "cpu_op", "computation"),
        ("c10d::allreduce_", "cpu_op", None),
        ("_c10d_functional::wait_tensor", "cpu_op", None),
        ("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op", None),
        ("AddmmBackward0", "cpu_op", None),  # it may run hooks, which wait
        ("nccl:all_reduce", "gpu_user_annotation", None),  # the kernel says when
        ("cudaLaunchKernel", "cuda_runtime", None),
    ],
)
def test_each_event_has_its_class(name: str, activity: str, expected: str | None) -> None:
    assert class_of(ProfilerEvent(name=name, activity=activity, start=0, end=1)) == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gloo:all_gather", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "all_reduce"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("ncclSymDevKernel_AllReduce_AGxLL_R_sum_f32(ncclSymDevArgs)", "all_reduce"),
        ("ncclSymkDevKernel_ReduceScatter_LL_sum_f16(ncclSymkDevWorkArgs)", "reduce_scatter"),
        ("void (anonymous namespace)::oneRankReduce<FuncPreMulSum<float> >(void*, void*)", "reduce"),
        ("ncclDevKernel_Novel", "novel"),
    ],
)
def test_collectives_of_both_backends_have_one_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_a_profiled_step_on_the_cpu_has_busy_computed_and_overlapped_time() -> None:
    """Step from 10 to 30. Sent 14 to 18 and 16 to 24: busy 10. Computed 10 to 15, 17 to 20: 8, overlap 4."""
    events = [
        ProfilerEvent(name=STEP, activity="user_annotation", start=10, end=30),
        ProfilerEvent(name="gloo:all_reduce", activity="user_annotation", start=16, end=24, nbytes=8.0),
        ProfilerEvent(name="gloo:all_reduce", activity="user_annotation", start=14, end=18, nbytes=4.0),
        ProfilerEvent(name="c10d::allreduce_", activity="cpu_op", start=13, end=29),
        ProfilerEvent(name="aten::linear", activity="cpu_op", start=10, end=15),
        ProfilerEvent(name="aten::addmm", activity="cpu_op", start=11, end=14),
        ProfilerEvent(name="aten::mul", activity="cpu_op", start=17, end=20),
        ProfilerEvent(name="aten::mul", activity="cpu_op", start=1, end=2),
    ]
    collectives = (
        Collective(kind="all_reduce", seconds=4, nbytes=4.0),
        Collective(kind="all_reduce", seconds=8, nbytes=8.0),
    )
    assert steps_of(events, device="cpu") == (
        ProfiledStep(seconds=20, busy=10, computed=8, overlapped=4, collectives=collectives),
    )


def test_on_cuda_kernels_count_and_operators_do_not() -> None:
    """Sent 4 to 8, kernels 0 to 5 and copies, which are neither; the operators on the host only launch them."""
    events = [
        ProfilerEvent(name=STEP, activity="user_annotation", start=0, end=10),
        ProfilerEvent(name=STEP, activity="gpu_user_annotation", start=1, end=9),
        ProfilerEvent(name="ncclDevKernel_AllReduce_Sum_f32_RING_LL", activity="kernel", start=4, end=8),
        ProfilerEvent(name="nccl:all_reduce", activity="gpu_user_annotation", start=3, end=9),
        ProfilerEvent(name="sgemm", activity="kernel", start=0, end=5),
        ProfilerEvent(name="Memcpy DtoD", activity="gpu_memcpy", start=5, end=7),
        ProfilerEvent(name="aten::addmm", activity="cpu_op", start=0, end=8),
    ]
    assert steps_of(events, device="cuda") == (
        ProfiledStep(
            seconds=10,
            busy=4,
            computed=5,
            overlapped=1,
            collectives=(Collective(kind="all_reduce", seconds=4, nbytes=None),),
        ),
    )


def test_notes_of_copies_and_kernels_are_believed_before_their_names() -> None:
    """Copy engines send 4 to 6 for a collective, another copy does not; NCCL sends a gather as point-to-point."""
    events = [
        ProfilerEvent(name=STEP, activity="user_annotation", start=0, end=10),
        ProfilerEvent(name="sgemm", activity="kernel", start=0, end=5),
        ProfilerEvent(name="Memcpy PtoP", activity="gpu_memcpy", start=4, end=6, kind="all_gather", ranks=2),
        ProfilerEvent(name="ncclDevKernel_SendRecv", activity="kernel", start=7, end=8, nbytes=64.0, kind="gather"),
        ProfilerEvent(name="Memcpy DtoD", activity="gpu_memcpy", start=8, end=9),
    ]
    (step,) = steps_of(events, device="cuda")
    assert (step.busy, step.computed, step.overlapped) == (3, 5, 1)
    assert step.collectives == (
        Collective(kind="all_gather", seconds=2, nbytes=None, ranks=2),
        Collective(kind="gather", seconds=1, nbytes=64.0),
    )


def test_an_event_that_began_before_a_step_is_split_between_the_two_steps() -> None:
    events = [
        ProfilerEvent(name=STEP, activity="user_annotation", start=10, end=20),
        ProfilerEvent(name=STEP, activity="user_annotation", start=0, end=10),
        ProfilerEvent(name="gloo:broadcast", activity="user_annotation", start=8, end=13),
    ]
    first, second = steps_of(events, device="cpu")
    assert (first.busy, [collective.seconds for collective in first.collectives]) == (2, [5])
    assert (second.busy, second.collectives) == (3, ())
