"""A report in plain text, with recommendations."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.diagnosis import CAUSES
from pytest_ddpperf.reports.documents.judged import results_of
from pytest_ddpperf.reports.documents.parts import DiagnosisData
from pytest_ddpperf.reports.documents.results import ResultData, ResultsData
from pytest_ddpperf.reports.formats.words import facts_line, reasons
from pytest_ddpperf.reports.lines import INDENT, printable, wrapped
from pytest_ddpperf.reports.overall import headline
from pytest_ddpperf.reports.phrases import findings
from pytest_ddpperf.reports.predictions import advice_table, predictions_table
from pytest_ddpperf.reports.summary import benchmark_table, worst_first
from pytest_ddpperf.reports.table import render

_TITLE = "Performance report"


def performance_report(document: ResultsData) -> str:
    """All benchmarks in a table; then each with its verdict, its bottleneck and what would make its step faster.

    Steps that were predicted and ways to train follow.
    """
    results = results_of(document)
    data = {id(result): each for result, each in zip(results, document.results, strict=True)}
    ordered = worst_first(results)
    ended = [f"the run ended before all its tests had run: {document.interrupted}"] if document.interrupted else []
    head = [_TITLE, "=" * len(_TITLE), *wrapped([facts_line(document)] if results else [], None), *wrapped(ended, None)]
    blocks = ["\n".join(head), headline(results)]
    if ordered:
        blocks.append(render(benchmark_table(ordered)))
    blocks += ["\n".join(_benchmark(result, data[id(result)])) for result in ordered]
    if document.predictions:
        blocks.append(render(predictions_table([(one.test, one, one.gain) for one in document.predictions])))
    blocks += [f"{printable(advice.test)}\n{render(advice_table(advice))}" for advice in document.advice]
    return "\n\n".join(blocks) + "\n"


def _benchmark(result: Result, data: ResultData) -> Sequence[str]:
    """What is known of one benchmark, a line each."""
    name = printable(f"{result.test} {result.name}")
    parts = {
        "": reasons(result),
        "bound by": [] if data.diagnosis is None else [data.diagnosis.text],
        "causes": []
        if data.diagnosis is None
        else [f"{CAUSES[c.bottleneck]}: {c.text}" for c in data.diagnosis.causes],
        "recommendations": [] if data.diagnosis is None else _advice(data.diagnosis),
        "remarks": [] if result.verdict is Verdict.BROKEN else list(findings(result)),
    }
    lines = [f"{name}: {result.verdict.value}", "-" * (len(name) + 2 + len(result.verdict.value))]
    for title, told in parts.items():
        indent = INDENT if title else ""
        lines += [f"{title}:"] * bool(title and told) + [indent + printable(line) for line in told]
    return lines


def _advice(diagnosis: DiagnosisData) -> list[str]:
    """The changes that may pay, the largest gain first; that none is known, where that is so."""
    told = [f"{number}. {advice.text}" for number, advice in enumerate(diagnosis.advice, 1)]
    return told or ["none: no change is known that would make its step faster"]
