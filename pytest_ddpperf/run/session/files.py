"""Files that a session writes for other tools at its end, and entries for pytest-benchmark."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.baselines.files import located
from pytest_ddpperf.settings import KNOBS

if TYPE_CHECKING:
    from pytest_ddpperf.reports.documents.entries import Run
    from pytest_ddpperf.run.session.session import Session

SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file of a job's summary on GitHub


def require_reports(report: tuple[tuple[str, Path], ...], root: Path) -> None:
    """Refuses unknown kinds of reports, and files that cannot be written."""
    from pytest_ddpperf.reports.files import ensure_text, ensure_writable
    from pytest_ddpperf.reports.formats.kinds import kind_named
    from pytest_ddpperf.reports.plots import require_plots

    own = {"json": ensure_writable, "plots": require_plots}
    for kind, file in report:
        option = f"{KNOBS['report'].option}={kind}:{file}"
        if kind not in own:
            kind_named(kind, option, own)
        own.get(kind, ensure_text)(located(root, file), option)


def outputs(session: Session, root: Path, interrupted: str | None) -> Iterator[Callable[[], None]]:
    """Yields a function for each requested file, which writes it; ``interrupted``: why tests are missing."""
    settings, ended = session.settings, dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
    document = cache(partial(_document, session, interrupted, ended))
    typed = cache(lambda: _read(document()))
    for kind, file in settings.report or ():
        option, place = f"{KNOBS['report'].option}={kind}:{file}", located(root, file)
        yield partial(_write_report, kind, document, typed, place, option)
    if settings.history is not None:
        yield partial(_record, session, settings.history, ended)


def _document(session: Session, interrupted: str | None = None, ended: str | None = None) -> str:
    from pytest_ddpperf.reports.documents.run_file import run_text

    return run_text(session.outputs, session.archive.code, date=ended, interrupted=interrupted)


def _record(session: Session, history: Path, ended: str) -> None:
    """Adds the run to the history, if anything was measured."""
    made = session.outputs
    if made.results and session.settings.calibrate is None:
        number = session.archive.record(history, made.results, ended)
        made.recorded = f"this run is number {number} of {history}"


def _write_report(kind: str, document: Callable[[], str], typed: Callable[[], Run], file: Path, option: str) -> None:
    """Writes one report; a report in Markdown also goes into the summary of the job on GitHub."""
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


def _read(document: str) -> Run:
    """Returns the run in the form in which reports read it from the JSON file."""
    from pytest_ddpperf.reports.documents.run_file import run_of

    return run_of(document)


def append_entries(session: Session, others: list[dict[str, Any]]) -> None:
    """Appends our benchmarks to those of pytest-benchmark, with all times if the others have all times."""
    if session.outputs.results:
        from pytest_ddpperf.reports.formats.pytest_benchmark import entries

        others += entries(_read(_document(session)), data=any("data" in each["stats"] for each in others))
