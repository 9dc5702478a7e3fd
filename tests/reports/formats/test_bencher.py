from __future__ import annotations

import json

import jsonschema

from pytest_ddpperf.records.results import Result
from pytest_ddpperf.reports.formats.flat import bencher
from tests.reports.formats.samples import MakeDocument

METRIC = {
    "type": "object",
    "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
    "required": ["value"],
}
# As https://bencher.dev/docs/reference/bencher-metric-format has it.
SCHEMA = {"type": "object", "patternProperties": {".+": {"type": "object", "patternProperties": {".+": METRIC}}}}


def test_gated_metrics_with_their_intervals(make_document: MakeDocument, regressed: Result, unchanged: Result) -> None:
    found = json.loads(bencher(make_document(regressed, unchanged)))
    assert found == {
        "perf_tests/test_strategies.py::test_step[bucketed] bucketed w2": {
            "collective_calls": {"value": 8.0},
            "step_time": {"value": 0.0473, "lower_value": 0.0468, "upper_value": 0.0478},
            "throughput": {"value": 2000.0},
        },
        "t.py::test_b bucketed w2": {"step_time": {"value": 0.03, "lower_value": 0.0299, "upper_value": 0.0301}},
    }
    jsonschema.validate(found, SCHEMA)


def test_what_was_not_measured_is_left_out(make_document: MakeDocument, broken: Result) -> None:
    assert json.loads(bencher(make_document(broken))) == {}
