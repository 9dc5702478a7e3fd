"""Kernels and copies among a profiler's events, as Kineto writes them."""

from __future__ import annotations

import pytest

from pytest_ddpperf.instruments.counting.kernels import work_in


def test_kernels_and_copies_are_told_from_what_the_host_did() -> None:
    events = [
        ("cpu_op", "aten::mm"),
        ("cuda_runtime", "cudaLaunchKernel"),
        (
            "kernel",
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, T<char*, 1>>(int)",
        ),
        ("kernel", "void at::native::vectorized_elementwise_kernel<2, at::native::AddFunctor<float>>(int, float)"),
        ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
        ("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)"),
        ("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)"),
        ("gpu_memset", "Memset (Device)"),
        ("gpu_user_annotation", "Optimizer.step#AdamW.step"),
    ]
    assert work_in(events) == {
        "kernel_launches": {
            "at::native::vectorized_elementwise_kernel": 2.0,
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL": 1.0,
        },
        "device_copies": {"Memcpy HtoD": 2.0, "Memset": 1.0},
    }


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>(int, float, float*)",
            "at::native::vectorized_layer_norm_kernel",
        ),
        (
            "void at::native::elementwise_kernel<128, 2, (anonymous namespace)::Cast<float> >(int)",
            "at::native::elementwise_kernel",
        ),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
    ],
)
def test_a_kernel_keeps_its_own_name(name: str, short: str) -> None:
    assert work_in([("kernel", name)])["kernel_launches"] == {short: 1.0}


def test_a_step_without_device_has_none() -> None:
    assert work_in([("cpu_op", "aten::mm")]) == {"kernel_launches": {}, "device_copies": {}}
