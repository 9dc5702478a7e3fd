from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.phrases import change_text, environment_text, every_finding, findings, first_of, values_text
from tests.factories import make_environment, make_interval
from tests.reports.made import make_comparison, make_result


def test_a_change_of_a_difference_is_in_its_unit_and_there_is_none_without_a_baseline() -> None:
    comparison = make_comparison("step_time", 0.0418, Verdict.NEW)
    assert (values_text(comparison), change_text(comparison)) == ("41.8 ms", "")
    comparison = make_comparison("scaling_efficiency", 0.84, Verdict.REGRESSED, baseline=0.91, change=-0.07)
    assert (values_text(comparison), change_text(comparison)) == ("0.910 -> 0.840", "-0.070")


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (-0.5, 0.499, "+5.0 % [95 % CI -50.0 .. +49.9]"),
        (-0.5, 0.501, "+5.0 % (noisy)"),
        (0.0, 1.99, "+5.0 % [95 % CI +0.0 .. +199.0]"),
        (-1.2, 3.0, "+5.0 % (noisy)"),  # of what has no logarithm
    ],
)
def test_an_interval_of_more_than_a_factor_of_three_says_nothing(low: float, high: float, told: str) -> None:
    """From half the time to 1.5 times it is a factor of three."""
    interval = make_interval(low, high)
    step = make_comparison("step_time", 0.042, Verdict.OK, baseline=0.04, change=0.05, change_interval=interval)
    assert change_text(step) == told


def test_equal_findings_are_listed_once() -> None:
    first, second, third = Finding("a", {"share": 0.5}), Finding("a", {"share": 0.7}), Finding("b")
    result = make_result(findings=(first, second), measured={"findings": (Finding("a", {"share": 0.7}), third)})
    assert findings(result) == ("a: share=0.5", "a: share=0.7", "b")
    assert every_finding(result, without={"a"}) == (third,)


CPU = make_environment(cpu_model="AMD EPYC", cores=2)
GPU = replace(CPU, device="cuda", device_model="NVIDIA H200", device_count=8, nodes=2, backend="nccl", cuda="13.0")


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        (CPU, "cpu AMD EPYC, 2 cores, 1 thread per rank, gloo, torch 2.13"),
        (GPU, "cuda 8 x NVIDIA H200, AMD EPYC, 2 cores, 1 thread per rank, 2 nodes, nccl, torch 2.13, CUDA 13.0"),
        (replace(CPU, cuda="13.0"), "cpu AMD EPYC, 2 cores, 1 thread per rank, gloo, torch 2.13, CUDA 13.0"),
        (
            replace(GPU, device_model="AMD Instinct MI300X", nodes=1, cuda="6.4"),
            "cuda 8 x AMD Instinct MI300X, AMD EPYC, 2 cores, 1 thread per rank, nccl, torch 2.13, ROCm 6.4",
        ),
        (
            replace(CPU, cuda="6.4", recorded={"torch": "2.13.0+rocm6.4"}),
            "cpu AMD EPYC, 2 cores, 1 thread per rank, gloo, torch 2.13, ROCm 6.4",
        ),
    ],
)
def test_the_environment_is_described_in_one_line(environment: Environment, text: str) -> None:
    assert environment_text(environment) == text


@pytest.mark.parametrize(("number", "last"), [(10, "9"), (11, "and 1 more")])
def test_a_long_list_is_shortened(number: int, last: str) -> None:
    lines = first_of([str(i) for i in range(number)])
    assert len(lines) == min(number, 11)
    assert lines[-1] == last
