"""pytest-randomly: any order and any seed, also of tests of just ranks."""

from __future__ import annotations

import pytest

from pytest_ddpperf.reports.documents.run_file import read_run
from tests.with_plugins.conftest import Run
from tests.with_plugins.suites import COUNTED

MODULE = "pytest_randomly"
TESTS = """

@pytest.mark.parametrize("calls", [1, 2, 3])
def test_step(ddpperf, calls):
    ddpperf.check(build_of(calls))


@pytest.mark.parametrize("number", [1])
def test_ranks(ddpperf_group, number):
    assert ddpperf_group.run(lambda ctx: ctx.rank).values == (0, 1)
"""


def order(run: pytest.RunResult) -> list[str]:
    """The tests as they ran."""
    return [line.split()[0] for line in run.outlines if " PASSED " in line]


def test_a_random_order_of_tests_changes_no_result(inner: pytest.Pytester, run_with: Run) -> None:
    inner.makepyfile(test_suite=COUNTED + TESTS)
    options = ("-v", "--ddpperf-report=json:run.json")
    first = run_with(MODULE, "-p", "no:randomly", "--ddpperf-save", *options)
    shuffled = run_with(MODULE, "--randomly-seed=1", *options)
    for run in (first, shuffled):
        run.assert_outcomes(passed=4)
    assert {result.verdict for result in read_run(inner.path / "run.json").results} == {"unchanged"}
    assert sorted(order(first)) == sorted(order(shuffled))
    assert order(first) != order(shuffled)
