"""The published JSON schemas, made of the documents' types; ``python -m tests.reports.schemas`` writes them again.

Needs msgspec, which is no dependency of the plugin: documents are built without it, by code that mypy checks.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_ddpperf.baselines.jsonfile import render
from pytest_ddpperf.reports.documents.results import ResultsData
from pytest_ddpperf.reports.documents.trend import TrendsData
from pytest_ddpperf.reports.json_report import SCHEMA_FILE as RESULTS_FILE
from pytest_ddpperf.reports.trend import SCHEMA_FILE as TREND_FILE

DOCUMENTS: dict[Path, tuple[type, str]] = {
    RESULTS_FILE: (ResultsData, "Results of a pytest-ddpperf run"),
    TREND_FILE: (TrendsData, "Trends of a pytest-ddpperf history"),
}


def schema_text(document: type, title: str) -> str:
    """The schema of a document as JSON text."""
    parts = msgspec.json.schema(document)["$defs"]
    for part in parts.values():
        del part["title"]
        part["additionalProperties"] = False
    top = parts.pop(document.__name__)
    name = top["properties"]["schema"]["enum"][0]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": name, "title": title}
    return render({**head, **top, "$defs": parts})


def write() -> None:
    """Writes the schema files."""
    for file, (document, title) in DOCUMENTS.items():
        file.write_text(schema_text(document, title), encoding="utf-8")


if __name__ == "__main__":
    write()
