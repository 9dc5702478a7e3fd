"""Each feature has a test: ``features.txt`` names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = [line for line in (TESTS / "features.txt").read_text().splitlines() if line and not line.startswith("#")]
TEST = re.compile(r"([\w/]+\.py)::(test_\w+)")


def names(row: str) -> list[tuple[str, str]]:
    return TEST.findall(row.rpartition(" | ")[2])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rpartition(" | ")[0])
def test_a_feature_has_tests_and_a_struck_one_a_reason(row: str) -> None:
    feature, _, held = row.rpartition(" | ")
    if feature.startswith("~~"):
        assert feature.endswith("~~")
        assert len(held.split()) > 5
    else:
        assert [f"{file}::{test}" for file, test in names(row)] == held.split() != []
    for file, test in names(row):
        assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.MULTILINE), f"there is no {file}::{test}"
