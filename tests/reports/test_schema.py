"""The published schemas are made of the types that the documents are built with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.documents.kinds import VerdictWord
from tests.reports.schemas import DOCUMENTS, schema_text


@pytest.mark.parametrize("file", DOCUMENTS, ids=lambda file: file.name)
def test_the_published_schema_is_made_of_the_types(file: Path) -> None:
    made = schema_text(*DOCUMENTS[file])
    again = "python -m tests.reports.schemas writes the file again"
    assert file.read_text(encoding="utf-8") == made, again


def test_the_schema_has_every_verdict() -> None:
    assert get_args(get_args(VerdictWord)[0]) == tuple(verdict.value for verdict in Verdict)


def test_documents_are_built_and_files_read_without_msgspec() -> None:
    """Users need it not: only whoever makes the schemas does."""
    modules = "pytest_ddpperf.reports.json_report, pytest_ddpperf.reports.trend, pytest_ddpperf.baselines.store"
    code = f"import {modules}, sys; print('msgspec' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
