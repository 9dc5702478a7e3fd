"""The list of benchmarks is whole, and the page of evidence names files that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "benchmarks" / "README.md").read_text()
EVIDENCE = (ROOT / "docs" / "evidence.md").read_text()
RESULTS = {path.name for path in (ROOT / "benchmarks" / "results").iterdir()} - {"verdicts_real.jsonl"}  # not committed
FILE = re.compile(r"`(\w+\.(?:txt|json|json\.gz|npz))`")


def test_each_script_has_a_line() -> None:
    scripts = {path.name for path in (ROOT / "benchmarks").glob("*.py")}
    named = set(re.findall(r"`(\w+\.py)`", README))
    assert scripts == named


def test_each_file_of_results_has_a_script_that_prints_it() -> None:
    assert set(FILE.findall(README)) == RESULTS
    assert len(RESULTS) <= 25


def test_each_row_of_evidence_names_a_file_that_is_there() -> None:
    rows = [line for line in EVIDENCE.splitlines() if line.startswith("| ") and not line.startswith("| claim")]
    for row in rows:
        named = FILE.findall(row)
        assert named, row
        assert set(named) <= RESULTS, row


def test_evidence_is_one_page() -> None:
    assert len(EVIDENCE.split()) <= 500
