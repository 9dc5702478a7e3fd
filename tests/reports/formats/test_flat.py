"""Formats with a row for each metric: CSV, Bencher's and that of github-action-benchmark."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from pytest_ddpperf.reports.formats.flat import bencher, benchmark_action, comma_separated
from tests.reports.formats.samples import BROKEN, CALLS, HOSTILE, REGRESSED, UNCHANGED
from tests.reports.made import make_document

METRIC = {
    "type": "object",
    "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
    "required": ["value"],
}
# As https://bencher.dev/docs/reference/bencher-metric-format has it.
SCHEMA = {"type": "object", "patternProperties": {".+": {"type": "object", "patternProperties": {".+": METRIC}}}}


def test_gated_metrics_keep_to_the_bencher_format_and_unmeasured_benchmarks_are_omitted() -> None:
    found = json.loads(bencher(make_document(REGRESSED, UNCHANGED, BROKEN)))
    assert len(found) == 2
    jsonschema.validate(found, SCHEMA)


ACTION = "DDPPERF_BENCHMARK_ACTION"  # a folder that has dist/src/extract.js of github-action-benchmark
READ = """
const { extractResult } = require(process.argv[1] + '/dist/src/extract.js');
process.env.GITHUB_REPOSITORY = 'a/b';
extractResult({ tool: process.argv[2], outputFilePath: process.argv[3], ref: undefined, githubToken: undefined })
  .then((found) => console.log(JSON.stringify(found.benches)));
"""


@pytest.mark.skipif(ACTION not in os.environ, reason=f"{ACTION} names no folder of github-action-benchmark")
def test_the_action_reads_the_file(tmp_path: Path) -> None:
    for tool, text in {
        "customSmallerIsBetter": benchmark_action(make_document(REGRESSED), "lower"),
        "customBiggerIsBetter": benchmark_action(make_document(REGRESSED), "higher"),
    }.items():
        file = tmp_path / f"{tool}.json"
        file.write_text(text)
        event = tmp_path / "event.json"
        event.write_text(json.dumps({"head_commit": {"id": "1", "message": HOSTILE}}))
        done = subprocess.run(
            ["node", "-e", READ, os.environ[ACTION], tool, str(file)],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "GITHUB_EVENT_PATH": str(event), "GITHUB_REPOSITORY": "a/b"},
        )
        assert json.loads(done.stdout) == json.loads(text)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_names_come_back_as_they_were() -> None:
    (row,) = rows(comma_separated(make_document(BROKEN)))
    assert (row["test"], row["name"]) == (f"t.py::test_c[{HOSTILE}]", HOSTILE)
    assert (row["benchmark_verdict"], row["metric"], row["value"]) == ("broken", "", "")


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)"])
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


def test_no_text_writes_to_a_terminal() -> None:
    series = replace(CALLS.series, unit="\x1b]0;owned\x07")
    named = replace(BROKEN, test="\t=1", comparisons=(replace(CALLS, series=series),))
    (row,) = rows(comma_separated(make_document(named)))
    assert (row["test"], row["unit"]) == ("\\t=1", "\\x1b]0;owned\\x07")
