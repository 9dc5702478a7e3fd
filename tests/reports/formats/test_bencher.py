from __future__ import annotations

import json

import jsonschema

from pytest_ddpperf.reports.formats.flat import bencher
from tests.reports.formats.samples import BROKEN, REGRESSED, UNCHANGED
from tests.reports.made import make_document

METRIC = {
    "type": "object",
    "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
    "required": ["value"],
}
# As https://bencher.dev/docs/reference/bencher-metric-format has it.
SCHEMA = {"type": "object", "patternProperties": {".+": {"type": "object", "patternProperties": {".+": METRIC}}}}


def test_gated_metrics_keep_to_the_format_and_what_was_not_measured_is_left_out() -> None:
    found = json.loads(bencher(make_document(REGRESSED, UNCHANGED, BROKEN)))
    assert len(found) == 2
    jsonschema.validate(found, SCHEMA)
