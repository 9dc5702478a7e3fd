"""What a session leaves for other tools: files at its end, and entries for pytest-benchmark."""

from __future__ import annotations

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
    from pytest_ddpperf.run.session import Session

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
    settings, document = session.settings, cache(partial(_typed, session, interrupted))
    if settings.json is not None:
        yield partial(_write_json, session, located(root, settings.json), interrupted)
    for kind, file in settings.report or ():
        yield partial(_write_report, document, kind, file, root)
    if settings.plots is not None:
        yield partial(_write_plots, document, located(root, settings.plots))
    if settings.history is not None:
        yield session.record


def _write_json(session: Session, file: Path, interrupted: str | None) -> None:
    from pytest_ddpperf.reports.document import write

    write(file, session.document(interrupted))


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


def _typed(session: Session, interrupted: str | None = None) -> ResultsData:
    """The results as a report takes them: as they would be read from the file of ``--ddpperf-json``."""
    from pytest_ddpperf.baselines.jsonfile import render
    from pytest_ddpperf.reports.documents.reading import typed
    from pytest_ddpperf.reports.documents.results import ResultsData

    return typed(ResultsData, json.loads(render(session.document(interrupted))))


def append_entries(session: Session, others: list[dict[str, Any]]) -> None:
    """Appends our benchmarks to those of pytest-benchmark, with all times where the others have theirs."""
    if session.results:
        from pytest_ddpperf.reports.formats.pytest_benchmark import entries

        others += entries(_typed(session), data=any("data" in each["stats"] for each in others))
