"""What a session leaves for other tools: files at its end, and entries for pytest-benchmark."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_ddpperf.baselines.files import located
from pytest_ddpperf.settings import KNOBS

if TYPE_CHECKING:
    from pytest_ddpperf.reports.documents.results import ResultsData
    from pytest_ddpperf.run.session.session import Session

SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file of a job's summary on GitHub


def require_reports(report: tuple[tuple[str, Path], ...], root: Path) -> None:
    """Refuses kinds that do not exist, and files that cannot be written."""
    from pytest_ddpperf.reports.document import ensure_text
    from pytest_ddpperf.reports.formats.kinds import kind_named

    for kind, file in report:
        option = f"{KNOBS['report'].option}={kind}:{file}"
        kind_named(kind, option)
        ensure_text(located(root, file), option)


def outputs(session: Session, root: Path, interrupted: str | None) -> Iterator[Callable[[], None]]:
    """What writes each file that was asked for; ``interrupted``: why tests are missing."""
    settings, ended = session.settings, dt.datetime.now(tz=dt.timezone.utc).isoformat(timespec="seconds")
    document = cache(partial(_document, session, interrupted, ended))
    typed = cache(lambda: _typed(document()))
    if settings.json is not None:
        yield partial(_write_json, document, located(root, settings.json))
    for kind, file in settings.report or ():
        yield partial(_write_report, typed, kind, file, root)
    if settings.plots is not None:
        yield partial(_write_plots, typed, located(root, settings.plots))
    if settings.history is not None:
        yield partial(_record, session, settings.history, ended)


def _document(session: Session, interrupted: str | None = None, ended: str | None = None) -> dict[str, Any]:
    """All results as ``--ddpperf-json`` writes them."""
    from pytest_ddpperf.reports.documents.results import results_document

    return results_document(session.outputs, session.archive.code, date=ended, interrupted=interrupted)


def _record(session: Session, history: Path, ended: str) -> None:
    """Adds the run to the history, if anything was measured."""
    made = session.outputs
    if made.results and session.settings.calibrate is None:
        number = session.archive.record(history, made.results, ended)
        made.recorded = f"this run is number {number} of {history}"


def _write_json(document: Callable[[], dict[str, Any]], file: Path) -> None:
    from pytest_ddpperf.reports.document import write

    write(file, document())


def _write_report(document: Callable[[], ResultsData], kind: str, file: Path, root: Path) -> None:
    """Writes one report; one in Markdown to the summary of the job on GitHub, too."""
    from pytest_ddpperf.reports.document import write_text
    from pytest_ddpperf.reports.formats.kinds import kind_named

    option, file = f"{KNOBS['report'].option}={kind}:{file}", located(root, file)
    text = kind_named(kind, option).render(document())
    summary = os.environ.get(SUMMARY) if kind == "markdown" else None
    if not summary or file.resolve() != Path(summary).resolve():
        write_text(file, text, option)
    if summary:
        write_text(Path(summary), text, SUMMARY, append=True)


def _write_plots(document: Callable[[], ResultsData], folder: Path) -> None:
    from pytest_ddpperf.reports.plots import write_plots

    write_plots(document(), folder, KNOBS["plots"].option)


def _typed(document: dict[str, Any]) -> ResultsData:
    """The results as a report takes them: as they would be read from the file of ``--ddpperf-json``."""
    from pytest_ddpperf.baselines.jsonfile import render
    from pytest_ddpperf.reports.documents.reading import typed
    from pytest_ddpperf.reports.documents.results import ResultsData

    return typed(ResultsData, json.loads(render(document)))


def append_entries(session: Session, others: list[dict[str, Any]]) -> None:
    """Appends our benchmarks to those of pytest-benchmark, with all times where the others have theirs."""
    if session.outputs.results:
        from pytest_ddpperf.reports.formats.pytest_benchmark import entries

        others += entries(_typed(_document(session)), data=any("data" in each["stats"] for each in others))
