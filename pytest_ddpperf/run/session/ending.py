"""The end of a session: its files for other tools, its summary, its missing benchmarks, and its exit status."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.errors import NOT_MEASURED, HistoryError, SettingError, in_a_line
from pytest_ddpperf.run.session.configuration import FILES
from pytest_ddpperf.settings import KNOBS
from pytest_ddpperf.units import format_count

if TYPE_CHECKING:
    import pytest

    from pytest_ddpperf.reports.documents.entries import Run
    from pytest_ddpperf.run.session.session import Session

SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file of a job's summary on GitHub
_PASSED, _FAILED, _NO_TESTS, _WARNED = 0, 1, 5, 6  # exit statuses of pytest
_COMPLETE = (_PASSED, _FAILED, _NO_TESTS, _WARNED, NOT_MEASURED)  # with which all tests have run


def end(session: pytest.Session, ours: Session, exitstatus: int) -> None:
    """Writes the requested files; without a terminal reporter, writes the last lines of the summary to stderr."""
    made = ours.outputs
    if made.results:
        from pytest_ddpperf.stats.intervals import change_of_suite

        made.common_change = change_of_suite(made.results)
    # Without any result, too: an earlier run's file must not pass for this one's.
    ended = session.shouldfail or session.shouldstop or "interrupted" * (exitstatus not in _COMPLETE)
    made.interrupted = str(ended) or None
    if any(getattr(ours.settings, name) is not None for name in FILES):
        for output in outputs(ours, session.config.rootpath):
            _write(session, ours, output)
    _write(session, ours, lambda: made.added.extend(ours.extensions.reports(made.results)))
    made.complaints += ours.leases.remarks
    shown = session.config.pluginmanager.has_plugin("terminalreporter")
    if not (shown and made.silent and ours.budget.complaint is None):
        finish(ours)
    if not shown:
        from pytest_ddpperf.reports.summary import last_lines

        _write(session, ours, lambda: sys.stderr.writelines(f"{line}\n" for line in last_lines(made)))


def _write(session: pytest.Session, ours: Session, write: Callable[[], object]) -> None:
    """Writes a file of results; a failure fails the run, and the summary names it."""
    capture = session.config.pluginmanager.get_plugin("capturemanager")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    try:
        # If the file is standard output, pytest must not take the text for a test's output.
        with contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled():
            if reporter is not None:
                reporter.ensure_newline()
            write()
    except Exception as error:  # noqa: BLE001  a fault of one file must not cost the report of the tests
        known = isinstance(error, (SettingError, HistoryError))
        told = str(error) if known else f"a file of results was not written: {in_a_line(error)}"
        ours.outputs.complaints.append(told)
        _spoil(session)


def finish(ours: Session) -> None:
    """Adds warnings to the run's outputs: on the budget, launchers, unreadable files and unused ``--ddpperf-allow``."""
    made, reference = ours.outputs, ours.sides.reference
    if made.results and ours.settings.allow:
        from pytest_ddpperf.records.acceptance import belongs

        made.complaints += [
            f"{KNOBS['allow'].option}='{node} {name}': no benchmark that ran belongs to {node}; remove it, or give the "
            "node ID that pytest prints"
            for node, name in ours.settings.allow
            if not any(belongs(result.test, node) for result in made.results)
        ]
    made.complaints += [*ours.sides.remarks, *ours.archive.complaints, *filter(None, [ours.budget.complaint])]
    code = None if reference is None else ours.archive.code
    if reference is not None and code is not None:
        from pytest_ddpperf.reports.phrases import commit_text

        same = reference.revision.folder is None and reference.revision.commit == code.commit and not code.dirty
        made.here = commit_text(code.commit, dirty=code.dirty) + ", the same commit as the reference" * same


def tell_left_out(session: pytest.Session, ours: Session, number: int) -> None:
    """Fails the run and reports that ``number`` benchmarks did not run, because pytest-xdist's workers disturb them."""
    ours.outputs.complaints.append(
        f"{format_count(number, 'benchmark')} did not run, because benchmarks disturb each other in the workers of "
        "pytest-xdist; run them with -n 0"
    )
    _spoil(session)


def set_status(session: pytest.Session, unmeasured: int) -> None:
    """Sets the exit status ``NOT_MEASURED`` if benchmarks without a measurement are the only failures."""
    if session.exitstatus == _FAILED and unmeasured and unmeasured == session.testsfailed:
        session.exitstatus = NOT_MEASURED


def _spoil(session: pytest.Session) -> None:
    """Fails a run that has passed so far, because a file was not written or tests did not run."""
    if session.exitstatus in {_PASSED, _NO_TESTS}:
        session.exitstatus = NOT_MEASURED


def outputs(session: Session, root: Path) -> Iterator[Callable[[], None]]:
    """Yields a function for each requested file, which writes it."""
    from pytest_ddpperf.baselines.files import located
    from pytest_ddpperf.reports.documents.run_file import run_of

    settings, ended = session.settings, dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
    document = cache(partial(_document, session, ended))
    typed = cache(lambda: run_of(document()))
    for kind, file in settings.report or ():
        option, place = f"{KNOBS['report'].option}={kind}:{file}", located(root, file)
        yield partial(_write_report, kind, document, typed, place, option)
    if settings.history is not None:
        yield partial(_record, session, settings.history, ended)


def _document(session: Session, ended: str | None = None) -> str:
    from pytest_ddpperf.reports.documents.run_file import run_text

    return run_text(session.outputs, session.archive.code, date=ended)


def _record(session: Session, history: Path, ended: str) -> None:
    made = session.outputs
    if made.results and session.settings.calibrate is None:
        number = session.archive.record(history, made.results, ended)
        made.recorded = f"this run is number {number} of {history}"


def _write_report(kind: str, document: Callable[[], str], typed: Callable[[], Run], file: Path, option: str) -> None:
    """Writes one report of a ``kind``; on GitHub, a Markdown report is also added to the job's summary."""
    from pytest_ddpperf.reports.files import write_text

    if kind == "json":
        write_text(file, document(), option)
        return
    if kind == "plots":
        from pytest_ddpperf.reports.plots import write_plots

        write_plots(typed(), file, option)
        return
    from pytest_ddpperf.reports.formats.kinds import kind_named

    text = kind_named(kind, option).render(typed())
    summary = os.environ.get(SUMMARY) if kind == "markdown" else None
    if not summary or file.resolve() != Path(summary).resolve():
        write_text(file, text, option)
    if summary:
        write_text(Path(summary), text, SUMMARY, append=True)


def append_entries(session: Session, others: list[dict[str, Any]]) -> None:
    """Appends this plugin's benchmarks to pytest-benchmark's ``others``; with raw times if ``others`` has raw times."""
    if session.outputs.results:
        from pytest_ddpperf.reports.documents.run_file import run_of
        from pytest_ddpperf.reports.formats.pytest_benchmark import entries

        others += entries(run_of(_document(session)), data=any("data" in each["stats"] for each in others))
