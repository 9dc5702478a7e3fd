from __future__ import annotations

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.documents.parts import AdviceData, DiagnosisData
from pytest_ddpperf.reports.documents.results import ResultData, ResultsData
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
        "1 of 2 benchmarks regressed",
        "",
        f"{MACHINE}, 2 ranks",
        "benchmark                    step time  throughput                change  at most     counts  verdict",
        "                          ms [95 % CI]   samples/s           % [95 % CI]        %",
        "-------------------  -----------------  ----------  --------------------  -------  ---------  ---------",
        "test_step[bucketed]  47.3 [46.8, 47.8]        2000  +13.2 [+11.9, +14.6]        -  1 changed  regressed",
        "test_b bucketed      30.0 [29.9, 30.1]           -   +0.1 [-0.2, +0.4]       +0.4          -  unchanged",
        "",
        "perf_tests/test_strategies.py::test_step[bucketed] bucketed: regressed",
        "----------------------------------------------------------------------",
        "collective_calls regressed, counted: all_reduce 2 -> 8 calls per step (+6)",
        f"step_time regressed: 41.8 ms -> 47.3 ms, {CHANGE}, tolerance 3 %, could have seen 2.1 %",
        "remarks:",
        "  only 1 of 8 launches ran alone",
        "",
        "t.py::test_b bucketed: unchanged",
        "--------------------------------",
        "step_time unchanged: 30.0 ms -> 30.0 ms, +0.1 % [95 % CI -0.2 .. +0.4], tolerance 3 %, at most +0.4 %",
    ]


def diagnosed(document: ResultsData, *advice: AdviceData) -> ResultsData:
    """The document, its first benchmark with a diagnosis."""
    diagnosis = DiagnosisData(bottleneck="data", text="data-bound: 60 % of the step", advice=advice)
    first, *others = document.results
    return ResultsData(
        **{**vars(document), "results": [ResultData(**{**vars(first), "diagnosis": diagnosis}), *others]}
    )


def test_what_would_make_a_step_faster_is_recommended(make_document: MakeDocument, unchanged: Result) -> None:
    advice = [
        AdviceData(text="load with workers=4 (saves at most 60 %)"),
        AdviceData(text="use a batch twice as large"),
    ]
    assert performance_report(diagnosed(make_document(unchanged), *advice)).splitlines()[-6:] == [
        "step_time unchanged: 30.0 ms -> 30.0 ms, +0.1 % [95 % CI -0.2 .. +0.4], tolerance 3 %, at most +0.4 %",
        "bound by:",
        "  data-bound: 60 % of the step",
        "recommendations:",
        "  1. load with workers=4 (saves at most 60 %)",
        "  2. use a batch twice as large",
    ]


def test_without_advice_none_is_made_up(make_document: MakeDocument, unchanged: Result) -> None:
    report = performance_report(diagnosed(make_document(unchanged)))
    assert report.endswith("recommendations:\n  none: no change is known that would make its step faster\n")


def test_without_a_benchmark_the_report_says_so(make_document: MakeDocument) -> None:
    assert performance_report(make_document()) == "Performance report\n==================\n\nno benchmark was judged\n"


def test_a_broken_benchmark_says_why_once(make_document: MakeDocument, broken: Result) -> None:
    text = performance_report(make_document(broken))
    assert text.count("rank 1 raised") == 1
    assert "\\n" in text
