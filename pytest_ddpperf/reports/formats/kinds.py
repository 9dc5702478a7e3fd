"""The file formats of reports, in the table ``KINDS``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.parsers import closest, instead
from pytest_ddpperf.reports.documents.entries import Run
from pytest_ddpperf.reports.formats.flat import bencher, benchmark_action, comma_separated
from pytest_ddpperf.reports.formats.html import html
from pytest_ddpperf.reports.formats.latex import latex
from pytest_ddpperf.reports.formats.markdown import markdown
from pytest_ddpperf.reports.formats.performance_report import performance_report
from pytest_ddpperf.reports.formats.pytest_benchmark import pytest_benchmark


class Kind(NamedTuple):
    """A file format: a row of ``KINDS``."""

    help: str  # what it is, and for whom
    render: Callable[[Run], str]  # the text of the file


KINDS: Mapping[str, Kind] = {
    "html": Kind("a page for a browser with charts, all in one file", html),
    "markdown": Kind("a pull request comment: red benchmarks first, others folded", markdown),
    "text": Kind("a report in plain text, with recommendations", performance_report),
    "csv": Kind("a table for spreadsheets, with a row for each metric", comma_separated),
    "latex": Kind("a table for LaTeX, with the package booktabs", latex),
    "bencher": Kind("Bencher's metric format, for its adapter json", bencher),
    "benchmark-action": Kind(
        "customSmallerIsBetter of github-action-benchmark: times, bytes, counts",
        partial(benchmark_action, better="lower"),
    ),
    "benchmark-action-bigger": Kind(
        "customBiggerIsBetter of github-action-benchmark: rates, speedups, efficiencies",
        partial(benchmark_action, better="higher"),
    ),
    "benchmark-json": Kind("pytest-benchmark's JSON, for pytest-benchmark compare", pytest_benchmark),
}
"""The formats by name: of the option of ``ddpperf report``, and in ``--ddpperf-report=KIND:FILE``."""


def kind_named(name: str, option: str, others: Iterable[str] = ()) -> Kind:
    """Returns the format ``name``; raises SettingError, which lists all formats and ``others``, for an unknown name."""
    if name not in KINDS:
        known = (*others, *KINDS)
        raise SettingError(f"{option}: there is no kind of report {name}; {instead(closest(name, known), known)}")
    return KINDS[name]
