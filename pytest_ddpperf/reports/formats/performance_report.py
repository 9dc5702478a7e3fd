"""A report in plain text, with recommendations."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports import phrases, remarks, summary
from pytest_ddpperf.reports.calls import advice_table, predictions_table
from pytest_ddpperf.reports.diagnosis import advice_text, cause_text, diagnosis_text
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.findings import CAUSES
from pytest_ddpperf.reports.lines import INDENT, printable
from pytest_ddpperf.reports.table import render

_TITLE = "Performance report"


def performance_report(run: Run) -> str:
    """Returns a table of all benchmarks, then each one's verdict, its bottleneck, and advice to make its step faster.

    Tables of predicted steps and of advice on strategies follow.
    """
    ordered = summary.worst_first(run.results)
    facts = [remarks.facts_line(run)] if ordered else []
    head = [_TITLE, "=" * len(_TITLE), *map(printable, facts)]
    blocks = ["\n".join(head), "\n".join(map(printable, (remarks.headline(run), *remarks.run_lines(run))))]
    if ordered:
        blocks.append(render(summary.benchmark_table(ordered)))
    blocks += ["\n".join(_benchmark(result)) for result in ordered]
    if run.predictions:
        blocks.append(render(predictions_table(run.predictions)))
    blocks += [f"{printable(advice.test)}\n{render(advice_table(advice))}" for advice in run.advice]
    return "\n\n".join(blocks) + "\n"


def _benchmark(result: Result) -> Sequence[str]:
    name, found = printable(f"{result.test} {result.name}"), result.step.diagnosis
    advice = [] if found is None else [f"{number}. {advice_text(each)}" for number, each in enumerate(found.advice, 1)]
    unknown = [] if found is None else ["none: the plugin knows no change that would make the step faster"]
    parts = {
        "": remarks.reasons(result),
        "bound by": [] if found is None else [diagnosis_text(found)],
        "causes": [] if found is None else [f"{CAUSES[c.bottleneck]}: {cause_text(c)}" for c in found.causes],
        "recommendations": advice or unknown,
        "notes": [] if result.verdict is Verdict.BROKEN else list(phrases.findings(result)),
    }
    lines = [f"{name}: {result.verdict.value}", "-" * (len(name) + 2 + len(result.verdict.value))]
    for title, told in parts.items():
        indent = INDENT if title else ""
        lines += [f"{title}:"] * bool(title and told) + [indent + printable(line) for line in told]
    return lines
