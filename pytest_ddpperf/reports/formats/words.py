"""What reports for people say of results that were read again."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.judged import results_of
from pytest_ddpperf.reports.documents.results import ResultsData
from pytest_ddpperf.reports.lines import whom
from pytest_ddpperf.reports.names import names_of
from pytest_ddpperf.reports.phrases import (
    commit_text,
    comparison_text,
    decisive,
    environment_text,
    find,
    findings,
    names_by_remark,
    note_text,
    seen_in,
)
from pytest_ddpperf.units import format_count

_UNTOLD = (Verdict.INCONCLUSIVE, Verdict.INCOMPATIBLE, Verdict.DOES_NOT_FIT, Verdict.NEW)  # what nobody knows


def headline(results: Sequence[Result]) -> str:
    """What became worse, in a few words, and what nobody knows: ``1 of 3 benchmarks regressed``."""
    if not results:
        return "no benchmark was judged"
    verdicts = [result.verdict for result in results]
    worse, broken = verdicts.count(Verdict.REGRESSED), verdicts.count(Verdict.BROKEN)
    told = [f"{worse or 'none'} of {format_count(len(results), 'benchmark')} regressed"]
    others = {"broken": broken, **{verdict.value.replace("_", " "): verdicts.count(verdict) for verdict in _UNTOLD}}
    if any(result.failure and result.verdict not in {Verdict.REGRESSED, Verdict.BROKEN} for result in results):
        failed = sum(bool(result.failure) for result in results)
        told = [f"{failed} of {format_count(len(results), 'benchmark')} failed", f"{worse or 'none'} regressed"]
    return ", ".join([*told, *(f"{number} {word}" for word, number in others.items() if number)])


def reasons(result: Result) -> list[str]:
    """Why a benchmark is red, a line for each metric; of one that could not be measured its remarks.

    Of one that is not red it is what became of its step time.
    """
    if result.failure and result.verdict is not Verdict.BROKEN:
        return result.failure.splitlines()
    if not result.red:
        return [comparison_text(step) for step in (find(result, "step_time"),) if step is not None]
    worse = decisive(result, {Verdict.REGRESSED})
    lines = ["; ".join(filter(None, (comparison_text(metric, seen_in(metric)), note_text(metric)))) for metric in worse]
    return lines or list(findings(result))


def remarks(results: Sequence[Result]) -> list[str]:
    """All remarks on benchmarks, each once, behind the names of those that it concerns."""
    named = zip(names_of(results), results, strict=True)
    told = names_by_remark((name, finding) for name, result in named for finding in findings(result))
    return [f"{whom(tuple(dict.fromkeys(names)), len(results))}: {remark}" for remark, names in told.items()]


def facts_line(document: ResultsData) -> str:
    """The code, the day, the machines and what benchmarks are compared with, in one line."""
    results = results_of(document)
    branch = f" of {document.branch}" if document.branch else ""
    commit = f"commit {commit_text(document.commit, dirty=document.dirty)}{branch}" if document.commit else ""
    machines = dict.fromkeys(environment_text(result.measurement.environment) for result in results)
    against = [origin for origin in dict.fromkeys(result.origin for result in results) if origin]
    compared = f"compared with {'; '.join(against)}" if against else ""
    return "; ".join(filter(None, (commit, document.date, *machines, compared)))
