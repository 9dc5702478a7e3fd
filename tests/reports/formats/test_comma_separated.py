from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from pytest_ddpperf.reports.formats.flat import comma_separated
from tests.reports.formats.samples import BROKEN, HOSTILE, REGRESSED
from tests.reports.made import make_document


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_names_come_back_as_they_were() -> None:
    (row,) = rows(comma_separated(make_document(BROKEN)))
    assert (row["test"], row["name"]) == (f"t.py::test_c[{HOSTILE}]", HOSTILE)
    assert (row["benchmark_verdict"], row["metric"], row["value"]) == ("broken", "", "")


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\t=1"])
def test_a_name_is_no_formula_of_a_spreadsheet(name: str) -> None:
    named = replace(BROKEN, test=name, measurement=replace(BROKEN.measurement, name=name))
    (row,) = rows(comma_separated(make_document(named)))
    assert (row["test"], row["name"]) == (f"'{name}", f"'{name}")


def test_numbers_come_back_as_they_were() -> None:
    document = make_document(REGRESSED)
    for row in rows(comma_separated(document)):
        metric = document.results[0][row["metric"]]
        assert float(row["value"]) == metric.series.value
        assert (float(row["change"]), float(row["baseline"])) == (metric.change, metric.baseline)
