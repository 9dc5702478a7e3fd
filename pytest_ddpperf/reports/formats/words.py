"""What reports for people say of results that were read again."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.judged import results_of
from pytest_ddpperf.reports.documents.results import ResultsData
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.phrases import (
    change_line,
    commit_text,
    decisive,
    environment_text,
    every_finding,
    find,
    findings,
)
from pytest_ddpperf.reports.remarks import remark_of, told_once


def reasons(result: Result) -> list[str]:
    """Returns why a benchmark is red, a line for each metric; of one that could not be measured its remarks.

    Of one that is not red it is what became of its step time.
    """
    if result.failure and result.verdict is not Verdict.BROKEN:
        return result.failure.splitlines()
    if not result.red:
        return [change_line(step) for step in (find(result, "step_time"),) if step is not None]
    return list(map(change_line, decisive(result, {Verdict.REGRESSED}))) or list(findings(result))


def remarks(results: Sequence[Result]) -> list[str]:
    """All remarks on benchmarks, each once, behind the names of those that it concerns."""
    named = zip(names_of(results), results, strict=True)
    return told_once(((name, remark_of(each)) for name, one in named for each in every_finding(one)), len(results))


def facts_line(document: ResultsData) -> str:
    """The code, the day, the machines and what benchmarks are compared with, in one line."""
    results = results_of(document)
    branch = f" of {document.branch}" if document.branch else ""
    commit = f"commit {commit_text(document.commit, dirty=document.dirty)}{branch}" if document.commit else ""
    machines = dict.fromkeys(environment_text(result.measurement.environment) for result in results)
    against = [origin for origin in dict.fromkeys(result.origin for result in results) if origin]
    compared = f"compared with {'; '.join(against)}" if against else ""
    return "; ".join(filter(None, (commit, document.date, *machines, compared)))
