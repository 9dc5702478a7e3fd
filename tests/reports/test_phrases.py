from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Environment
from pytest_ddpperf.records.results import Comparison, Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.phrases import (
    change_text,
    comparison_text,
    environment_text,
    findings,
    first_of,
    short_text,
    tolerance_text,
    values_text,
)
from tests.factories import make_environment


def test_no_change_without_a_baseline(make_comparison: Callable[..., Comparison]) -> None:
    comparison = make_comparison("step_time", 0.0418, Verdict.NEW)
    assert (values_text(comparison), change_text(comparison)) == ("41.8 ms", "")


def test_change_of_a_difference_is_in_its_unit(make_comparison: Callable[..., Comparison]) -> None:
    comparison = make_comparison("scaling_efficiency", 0.84, Verdict.REGRESSED, baseline=0.91, change=-0.07)
    assert (values_text(comparison), change_text(comparison)) == ("0.910 -> 0.840", "-0.070")


@pytest.mark.parametrize(
    ("controlled", "change", "told"),
    [(True, 0.05, True), (True, 0.122, False), (True, 0.12, True), (False, 0.05, False)],
)
def test_a_change_that_is_not_that_of_the_values_says_what_corrected_it(
    make_comparison: Callable[..., Comparison],
    controlled: bool,  # noqa: FBT001 - a parameter
    change: float,
    told: bool,  # noqa: FBT001 - a parameter
) -> None:
    """From 41.8 to 47.3 ms are 13.16 %: 1.1316 is 0.86 % more than 1.122, and 1.03 % more than 1.120."""
    step = make_comparison(
        "step_time", 0.0473, Verdict.REGRESSED, baseline=0.0418, change=change, controlled=controlled
    )
    words = "corrected by the control step"
    assert (f" % ({words}), tolerance" in comparison_text(step)) is told
    assert (f" %, {words})" in short_text(step)) is told


@pytest.mark.parametrize(
    ("verdict", "margin", "expected"),
    [
        (Verdict.UNCHANGED, 0.05, "tolerance 3 %, margin 5 %"),
        (Verdict.INCONCLUSIVE, 0.05, "tolerance 3 %, margin 5 %"),
        (Verdict.REGRESSED, 0.05, "tolerance 3 %"),  # it takes no proof of the contrary
        (Verdict.UNCHANGED, 0.03, "tolerance 3 %"),
        (Verdict.UNCHANGED, None, "tolerance 3 %"),
    ],
)
def test_the_margin_is_told_where_it_counts(
    make_comparison: Callable[..., Comparison], verdict: Verdict, margin: float | None, expected: str
) -> None:
    assert tolerance_text(make_comparison("step_time", 0.1, verdict, margin=margin)) == expected


def test_findings_are_told_once(make_result: Callable[..., Result]) -> None:
    first, second, third = Finding("a", {"share": 0.5}), Finding("a", {"share": 0.7}), Finding("b")
    result = make_result(findings=(first, second), measured={"findings": (Finding("a", {"share": 0.7}), third)})
    assert findings(result) == ("a: share=0.5", "a: share=0.7", "b")
    assert findings(result, without={"a"}) == ("b",)


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
def test_environment_in_a_line(environment: Environment, text: str) -> None:
    assert environment_text(environment) == text


@pytest.mark.parametrize(("number", "last"), [(1, "0"), (10, "9"), (11, "and 1 more"), (25, "and 15 more")])
def test_a_list_is_as_long_as_one_reads(number: int, last: str) -> None:
    lines = first_of([str(i) for i in range(number)])
    assert len(lines) == min(number, 11)
    assert lines[-1] == last
