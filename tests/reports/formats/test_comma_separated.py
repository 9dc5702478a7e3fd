from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.formats.flat import comma_separated
from tests.reports.formats.samples import CODE, HOSTILE, MakeDocument


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_each_metric_has_a_row(make_document: MakeDocument, regressed: Result, unchanged: Result) -> None:
    found = rows(comma_separated(make_document(regressed, unchanged)))
    assert [(row["test"], row["metric"]) for row in found] == [
        ("perf_tests/test_strategies.py::test_step[bucketed]", "collective_calls"),
        ("perf_tests/test_strategies.py::test_step[bucketed]", "step_time"),
        ("perf_tests/test_strategies.py::test_step[bucketed]", "throughput"),
        ("t.py::test_b", "step_time"),
    ]
    assert found[1] == {
        "test": "perf_tests/test_strategies.py::test_step[bucketed]",
        "name": "bucketed",
        "strategy": "bucketed",
        "mode": "",
        "world_size": "2",
        "launches": "8",
        "commit": CODE.commit,
        "date": "2026-01-12T10:00:00+00:00",
        "benchmark_verdict": "regressed",
        "metric": "step_time",
        "unit": "s",
        "better": "lower",
        "scale": "ratio",
        "gated": "true",
        "value": "0.0473",
        "low": "0.0468",
        "high": "0.0478",
        "baseline": "0.0418",
        "change": "0.132",
        "change_low": "0.119",
        "change_high": "0.146",
        "tolerance": "0.03",
        "mde": "0.021",
        "verdict": "regressed",
        "note": "",
    }


def test_names_come_back_as_they_were(make_document: MakeDocument, broken: Result) -> None:
    (row,) = rows(comma_separated(make_document(broken)))
    assert (row["test"], row["name"]) == (f"t.py::test_c[{HOSTILE}]", HOSTILE)
    assert (row["benchmark_verdict"], row["metric"], row["value"]) == ("broken", "", "")


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "\t=1"])
def test_a_name_is_no_formula_of_a_spreadsheet(make_document: MakeDocument, broken: Result, name: str) -> None:
    named = replace(broken, test=name, measurement=replace(broken.measurement, name=name))
    (row,) = rows(comma_separated(make_document(named)))
    assert (row["test"], row["name"]) == (f"'{name}", f"'{name}")


def test_numbers_come_back_as_they_were(make_document: MakeDocument, regressed: Result) -> None:
    document = make_document(regressed)
    for row in rows(comma_separated(document)):
        metric = document.results[0][row["metric"]]
        assert float(row["value"]) == metric.series.value
        assert (float(row["change"]), float(row["baseline"])) == (metric.change, metric.baseline)


def test_without_a_benchmark_only_names_of_columns_are_left(make_document: MakeDocument) -> None:
    assert rows(comma_separated(make_document())) == []
