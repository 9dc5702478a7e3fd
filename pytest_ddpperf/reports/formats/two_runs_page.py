"""The page of two runs beside each other."""

from __future__ import annotations

from pytest_ddpperf.baselines.document import read_as, replaced
from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.documents.results import MetricData, ResultData, ResultsData
from pytest_ddpperf.reports.formats.html import html
from pytest_ddpperf.reports.phrases import findings
from pytest_ddpperf.reports.two_runs import judged, key_of, two_runs


def two_runs_page(before: ResultsData, after: ResultsData) -> str:
    """The page of the second run, judged as if the first run had stored its baselines, with a table of both."""
    table, results = two_runs(before, after), {key_of(result): result for result in judged(before, after)}
    both = [_judged(data, results[key_of(data)]) for data in after.results if key_of(data) in results]
    title = "ddpperf: " + table.title.replace("->", "\u2192")  # an arrow that no line is broken in
    return html(replaced(after, results=both), title=title, compared=table)


def _judged(data: ResultData, result: Result) -> ResultData:
    """The benchmark of the second run with what is said of it compared with the first."""
    metrics = {each.series.metric: read_as(MetricData, MetricData.filled_from(each)) for each in result.comparisons}
    told = {"verdict": result.verdict.value, "failure": result.failure, "findings": list(findings(result))}
    return replaced(data, **told, metrics=metrics, origin=result.origin, against=None, paired_with=None, baseline=None)
