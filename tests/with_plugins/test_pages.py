"""pytest-html and pytest-json-report: they show outcomes, texts of failures, what ranks print, and properties."""

from __future__ import annotations

import html
import json
import re

import pytest

from tests.with_plugins.conftest import Run
from tests.with_plugins.suites import COUNTED

TESTS = """

def prints(ctx):
    print("said by", ctx.rank)
    return build_of(1)(ctx)


@pytest.mark.parametrize("expected", [1, 2])
def test_step(ddpperf, expected):
    ddpperf.check(prints)
    ddpperf.expect(collectives={"all_reduce": expected})
"""
RED = "expected 2 all_reduce calls per step, counted 1"


def test_html_has_the_reason_and_the_output_of_ranks(inner: pytest.Pytester, run_with: Run) -> None:
    inner.makepyfile(test_suite=COUNTED + TESTS)
    run = run_with("pytest_html", "--html=out.html", "--self-contained-html")
    run.assert_outcomes(passed=1, failed=1)
    found = re.search(r'data-jsonblob="([^"]*)"', (inner.path / "out.html").read_text())
    assert found is not None
    tests = json.loads(html.unescape(found[1]))["tests"]
    (green,), (red,) = (tests[f"test_suite.py::test_step[{expected}]"] for expected in (1, 2))
    assert (green["result"], red["result"]) == ("Passed", "Failed")
    assert red["log"].startswith(RED)
    assert re.search("custom w2, rank 1 stdout -+\nsaid by 1\n", green["log"])  # in the launch that both have


def test_the_json_report_has_reasons_and_properties(inner: pytest.Pytester, run_with: Run) -> None:
    inner.makepyfile(test_suite=COUNTED + TESTS)
    run = run_with("pytest_jsonreport", "--json-report", "--json-report-file=out.json")
    run.assert_outcomes(passed=1, failed=1)
    green, red = json.loads((inner.path / "out.json").read_text())["tests"]
    assert (green["outcome"], red["outcome"]) == ("passed", "failed")
    assert red["call"]["longrepr"].startswith(RED)
    for each in (green, red):
        properties = {name: value for pair in each["user_properties"] for name, value in pair.items()}
        assert properties["ddpperf custom w2 verdict"] == "new"
        assert properties["ddpperf custom w2 collective_calls"] == 1
