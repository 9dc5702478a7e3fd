"""Kernels, copies and waits among a profiler's events, as Kineto writes them."""

from __future__ import annotations

import pytest
import torch

from pytest_ddpperf.instruments.counting.device_work import STEP, Recorded, work_in
from pytest_ddpperf.instruments.counting.steps import counts_of, per_step
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.training.seen import not_counted

KERNEL = Recorded("kernel", "ampere_sgemm_128x64_tn")


def test_kernels_and_copies_are_counted_without_the_work_of_the_host() -> None:
    events = [
        ("cpu_op", "aten::mm"),
        ("cuda_runtime", "cudaLaunchKernel"),
        (
            "kernel",
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, T<char*, 1>>(int)",
        ),
        ("kernel", "void at::native::vectorized_elementwise_kernel<2, at::native::AddFunctor<float>>(int, float)"),
        ("kernel", "void at::native::(anonymous namespace)::layer_norm_kernel<float, float>(int, float, float*)"),
        ("kernel", "void at::native::elementwise_kernel<128, 2, (anonymous namespace)::Cast<float> >(int)"),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)"),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"),
        ("gpu_memset", "Memset (Device)"),
        ("gpu_user_annotation", "Optimizer.step#AdamW.step"),
    ]
    assert work_in([Recorded(*event) for event in events]) == {
        "kernel_launches": {
            "at::native::vectorized_elementwise_kernel": 2.0,
            "at::native::layer_norm_kernel": 1.0,
            "at::native::elementwise_kernel": 1.0,
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL": 1.0,
        },
        "device_copies": {"Memcpy HtoD": 2.0, "Memset": 1.0},
        "device_synchronisations": {},
    }


@pytest.mark.parametrize("runtime", ["cuda_runtime", "cpu_op"], ids=["told", "torch before 2.12"])
def test_the_steps_own_waits_are_counted_by_their_calls(runtime: str) -> None:
    """From 100 to 200 the host went through the step; the device was at it until 230."""
    events = [
        Recorded(runtime, "cudaDeviceSynchronize", 90, 95),
        Recorded("user_annotation", STEP, 100, 200),
        Recorded("gpu_user_annotation", STEP, 110, 230),
        Recorded(runtime, "cudaStreamSynchronize", 100, 120),
        Recorded(runtime, "cudaStreamSynchronize", 130, 140),
        Recorded(runtime, "cudaEventSynchronize", 150, 160),
        Recorded(runtime, "cudaDeviceSynchronize", 170, 199),
        Recorded(runtime, "cudaStreamWaitEvent", 180, 181),  # a stream waits there, and not the host
        Recorded(runtime, "cudaDeviceSynchronize", 210, 230),  # ours
        Recorded(runtime, "cudaDeviceSynchronize", 240, 241),  # the profiler's
        KERNEL,
    ]
    assert work_in(events)["device_synchronisations"] == {
        "cudaStreamSynchronize": 2.0,
        "cudaEventSynchronize": 1.0,
        "cudaDeviceSynchronize": 1.0,
    }


@pytest.mark.parametrize(
    ("called", "counted"),
    [
        ("hipStreamSynchronize", "hipStreamSynchronize"),
        ("hipMemcpyWithStream", "hipMemcpyWithStream"),
        ("cudaStreamSynchronize_v3020", "cudaStreamSynchronize"),
        ("cudaStreamSynchronize_ptsz", "cudaStreamSynchronize"),
        ("cudaMemcpy", "cudaMemcpy"),
        ("cudaFree", "cudaFree"),
        ("cudaHostAlloc", "cudaHostAlloc"),
        ("cudaMallocHost", "cudaMallocHost"),
        ("cudaMemcpyAsync", None),  # the host goes on
        ("cudaMalloc", None),
    ],
)
def test_calls_that_return_when_the_device_is_done_are_waits(called: str, counted: str | None) -> None:
    events = [Recorded("user_annotation", STEP, 100, 200), Recorded("cuda_runtime", called, 150, 160), KERNEL]
    assert work_in(events)["device_synchronisations"] == ({} if counted is None else {counted: 1.0})


def test_without_a_kernel_nothing_is_known_and_without_the_name_of_any_call_no_wait() -> None:
    """As where CUPTI is missing: the host's calls may be seen all the same, and a zero would be false."""
    assert work_in([Recorded("cpu_op", "aten::mm"), Recorded("cuda_runtime", "cudaLaunchKernel")]) == {}
    events = [Recorded("user_annotation", STEP, 100, 200), Recorded("cpu_op", "aten::mm", 110, 120), KERNEL]
    assert work_in(events).keys() == {"kernel_launches", "device_copies"}


def test_a_metric_that_one_step_or_period_lacks_is_omitted() -> None:
    seen = {"device_copies": {"HtoD": 1.0}, "kernel_launches": {"gemm": 2.0}}
    unseen = {"device_copies": {"HtoD": 1.0}}
    assert per_step([seen, unseen]) == per_step([unseen, seen]) == unseen
    whole: list[dict[str, dict[str, float]]] = [{"ddp_buckets": {}}]
    for profiled in ([seen, unseen], [unseen, seen]):
        assert "kernel_launches" not in counts_of(whole, profiled, [{}], unusual=False).totals
    assert counts_of(whole, [seen, seen], [{}], unusual=False).totals["kernel_launches"] == 2.0


def test_counts_that_a_gpu_lacks_are_reported() -> None:
    blind = Counts(totals={"operators": 1.0}, details={"operators": {"aten.mm": 1.0}}, unstable={})
    all_three = ("kernel_launches", "device_copies", "device_synchronisations")
    assert not_counted(blind, torch.device("cuda", 0)) == [Finding("no_device_counts", {"counts": all_three})]
    assert not_counted(blind, torch.device("cpu")) == []
    seen = Counts(totals=dict.fromkeys(all_three, 1.0), details={}, unstable={})
    assert not_counted(seen, torch.device("cuda", 0)) == []
