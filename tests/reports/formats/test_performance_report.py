from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from pytest_ddpperf.records.diagnosis import Advice, Cause, Diagnosis
from pytest_ddpperf.records.predictions import Gain
from pytest_ddpperf.records.results import Result, StepAnalysis
from pytest_ddpperf.reports.documents.entries import (
    CandidateEntry,
    PredictionEntry,
    Run,
    StepEntry,
    StrategyAdviceEntry,
)
from pytest_ddpperf.reports.formats.performance_report import performance_report
from tests.reports.formats.samples import MakeDocument

MACHINE = "cpu AMD EPYC, 2 cores, 1 thread per rank, gloo, torch 2.13"
KEY = "cpu-amd-epyc-2c-t1-gloo-w2-torch2.13"
CHANGE = "+13.2 % [95 % CI +11.9 .. +14.6]"


def test_red_first_then_what_is_known_of_each(
    make_document: MakeDocument, regressed: Result, unchanged: Result
) -> None:
    assert performance_report(make_document(unchanged, regressed)).splitlines() == [
        "Performance report",
        "==================",
        f"commit 3f2a1c0+changes of main; 2026-01-12T10:00:00+00:00; {MACHINE}; compared with {KEY}",
        "",
        "PASSED: 1 regressed (does not fail), 1 passed | against the baseline of 3f2a1c0",
        "",
        f"{MACHINE}, 2 ranks",
        "benchmark                          change  at most          step time  throughput     counts  verdict",
        "                              % [95 % CI]        %       ms [95 % CI]   samples/s",
        "-------------------  --------------------  -------  -----------------  ----------  ---------  ---------",
        "test_step[bucketed]  +13.2 [+11.9, +14.6]        -  47.3 [46.8, 47.8]        2000  1 changed  regressed",
        "test_b bucketed       +0.1 [-0.2, +0.4]       +0.4  30.0 [29.9, 30.1]           -          -  unchanged",
        "",
        "perf_tests/test_strategies.py::test_step[bucketed] bucketed: regressed",
        "----------------------------------------------------------------------",
        "collective_calls: all_reduce 2 -> 8 calls per step (+6)",
        f"step_time: 41.8 ms -> 47.3 ms, {CHANGE}",
        "notes:",
        "  only 1 of 8 launches ran alone",
        "",
        "t.py::test_b bucketed: unchanged",
        "--------------------------------",
        "step_time: 30.0 ms -> 30.0 ms, +0.1 % [95 % CI -0.2 .. +0.4], at most +0.4 %",
    ]


def diagnosed(document: Run, *advice: Advice) -> Run:
    """The document, its first benchmark with a diagnosis."""
    causes = (Cause(bottleneck="data", seconds=0.06, share=0.6), Cause(bottleneck="unclear", seconds=0.04, share=0.4))
    diagnosis = Diagnosis(bottleneck="data", step=0.1, causes=causes, advice=advice)
    first, *others = document.results
    results = (replace(first, step=StepAnalysis(diagnosis=diagnosis)), *others)
    return msgspec.structs.replace(document, results=results)


def test_what_would_make_a_step_faster_is_recommended(make_document: MakeDocument, unchanged: Result) -> None:
    advice = [
        Advice(code="loader_workers", bottleneck="data", gain=0.6, facts={"workers": 4}),
        Advice(code="larger_batch", bottleneck="overhead", gain=None, facts={"times": 2}),
    ]
    assert performance_report(diagnosed(make_document(unchanged), *advice)).splitlines()[-9:] == [
        "step_time: 30.0 ms -> 30.0 ms, +0.1 % [95 % CI -0.2 .. +0.4], at most +0.4 %",
        "bound by:",
        "  data-bound: 60 % of the step (60.0 ms); load with workers=4 (saves at most 60 %)",
        "causes:",
        "  waiting for data: 60 % of the step (60.0 ms)",
        "  an unknown cause: 40 % of the step (40.0 ms)",
        "recommendations:",
        "  1. load with workers=4 (saves at most 60 %)",
        "  2. use a batch 2 times as large",
    ]


def test_without_advice_none_is_made_up(make_document: MakeDocument, unchanged: Result) -> None:
    report = performance_report(diagnosed(make_document(unchanged)))
    assert report.endswith("recommendations:\n  none: the plugin knows no change that would make the step faster\n")


def test_without_a_benchmark_the_report_says_so(make_document: MakeDocument) -> None:
    assert performance_report(make_document()) == "Performance report\n==================\n\nno benchmark was judged\n"


def test_a_broken_benchmark_says_why_once(make_document: MakeDocument, broken: Result) -> None:
    text = performance_report(make_document(broken))
    assert text.count("rank 1 raised") == 1
    assert "\\n" in text


STEP: dict[str, Any] = {
    "world_size": 64,
    "network": "pcie-ethernet100",
    "accelerator": "h100",
    "seconds": 0.04,
    "low": 0.03,
    "high": 0.05,
    "samples": 64.0,
    "lost": 0.25,
    "computing": 0.03,
    "communication": 0.02,
    "exposed": 0.01,
    "efficiency": 0.75,
    "efficiency_low": 0.6,
    "efficiency_high": 0.9,
}


def test_what_was_predicted_and_advised_follows(make_document: MakeDocument, unchanged: Result) -> None:
    gain = Gain(value=0.2, low=0.1, high=0.3)
    predictions = [
        PredictionEntry(test="t.py::test_p", name="ddp", gain=None, **STEP),
        PredictionEntry(test="t.py::test_p", name="flat", gain=gain, **{**STEP, "seconds": 0.032}),
    ]
    same: dict[str, Any] = {"strategy": "", "batch_size": None, "measured": None}
    candidates = [
        CandidateEntry(
            name="fsdp2", memory=2**30, fits=True, reason="", prediction=StepEntry(**STEP), standing="best", **same
        ),
        CandidateEntry(
            name="ddp",
            memory=2**36,
            fits=False,
            reason="its tensors take 64 GiB of 32 GiB",
            prediction=None,
            standing="does not fit",
            **same,
        ),
    ]
    advice = [StrategyAdviceEntry(test="t.py::test_a", world_size=64, memory=2**35, candidates=tuple(candidates))]
    document = msgspec.structs.replace(make_document(unchanged), predictions=predictions, advice=advice)
    report = performance_report(document).splitlines()
    begin = report.index("steps that were predicted, not measured: pcie-ethernet100, computing of h100")
    assert [" ".join(line.split()) for line in report[begin + 4 : begin + 6]] == [
        "test_p ddp 64 40.0 [30.0, 50.0] 25 75 [60, 90] -",
        "test_p flat 64 32.0 [30.0, 50.0] 31.2 75 [60, 90] +20.0 [+10.0, +30.0]",
    ]
    assert "others used 25 % of the cores while computing was timed: a quiet machine is faster" in report
    begin = report.index("t.py::test_a")
    assert report[begin + 1] == "ways to train on 64 ranks, pcie-ethernet100, computing of h100"
    assert [line.split()[0] + " " + line.split("  ")[-1].strip() for line in report[begin + 5 : begin + 7]] == [
        "fsdp2 best",
        "ddp does not fit: its tensors take 64 GiB of 32 GiB",
    ]
