"""The formats in which results are written: one row each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.parsers import closest, instead
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.formats.flat import bencher, benchmark_action, comma_separated
from pytest_ddpperf.reports.formats.html import html
from pytest_ddpperf.reports.formats.latex import latex
from pytest_ddpperf.reports.formats.markdown import markdown
from pytest_ddpperf.reports.formats.performance_report import performance_report
from pytest_ddpperf.reports.formats.pytest_benchmark import pytest_benchmark


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A file format: a row of ``KINDS``."""

    name: str  # of the option of ``ddpperf report``, and in ``--ddpperf-report=KIND:FILE``
    help: str  # what it is, and for whom
    render: Callable[[Run], str]  # the text of the file


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="html", help="a page for a browser with charts, all in one file", render=html),
        Kind(name="markdown", help="a pull request comment: red benchmarks first, others folded", render=markdown),
        Kind(name="text", help="a report in plain text, with recommendations", render=performance_report),
        Kind(name="csv", help="a table for spreadsheets, with a row for each metric", render=comma_separated),
        Kind(name="latex", help="a table for LaTeX, with the package booktabs", render=latex),
        Kind(name="bencher", help="Bencher's metric format, for its adapter json", render=bencher),
        Kind(
            name="benchmark-action",
            help="customSmallerIsBetter of github-action-benchmark: times, bytes, counts",
            render=partial(benchmark_action, better="lower"),
        ),
        Kind(
            name="benchmark-action-bigger",
            help="customBiggerIsBetter of github-action-benchmark: rates, speedups, efficiencies",
            render=partial(benchmark_action, better="higher"),
        ),
        Kind(
            name="benchmark-json", help="pytest-benchmark's JSON, for pytest-benchmark compare", render=pytest_benchmark
        ),
    )
}


def kind_named(name: str, option: str, others: Iterable[str] = ()) -> Kind:
    """Returns the format with a name; raises SettingError, with ``option`` and known formats, if there is none."""
    if name not in KINDS:
        known = (*others, *KINDS)
        raise SettingError(f"{option}: there is no kind of report {name}; {instead(closest(name, known), known)}")
    return KINDS[name]
