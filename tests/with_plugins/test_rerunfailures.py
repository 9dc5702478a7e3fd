"""pytest-rerunfailures: what fails before a verdict is tried again, and a verdict stands."""

from __future__ import annotations

import json
import re

import pytest

from pytest_ddpperf.reports.documents.run_file import read_run
from pytest_ddpperf.reports.phrases import findings
from tests.with_plugins.conftest import Run
from tests.with_plugins.suites import COUNTED, STEP

MODULE = "pytest_rerunfailures"
CALLS_OF_ATTEMPT = """

calls_of_attempt = [2, 1, 1]

def test_step(ddpperf):
    ddpperf.check(build_of(calls_of_attempt.pop(0)))
"""
EXPECTS = """
    ddpperf.expect(collectives={"all_reduce": 1})
"""
MEASURED = """

calls_of_attempt = [2, 1]

def measured(ddpperf):
    ddpperf.check(build_of(calls_of_attempt.pop(0)))
    ddpperf.expect(collectives={"all_reduce": 1})

"""
SUBTESTS = """

calls_of_attempt = [2, 1, 1]

def test_step(ddpperf, subtests):
    with subtests.test():
        ddpperf.check(build_of(calls_of_attempt.pop(0)))
"""
STANDS = "not measured again: a verdict is final*"


@pytest.mark.parametrize(
    ("options", "mark"),
    [(["--reruns=2"], ""), pytest.param([], "@pytest.mark.flaky(reruns=2)\n", marks=pytest.mark.slow)],
    ids=["option", "marker"],
)
def test_a_red_benchmark_stays_red_although_a_rerun_would_be_green(
    inner: pytest.Pytester, run_with: Run, options: list[str], mark: str
) -> None:
    inner.makepyfile(test_suite=COUNTED + STEP)
    run_with(MODULE, "--ddpperf-save").assert_outcomes(passed=1)
    inner.makepyfile(test_suite=COUNTED + CALLS_OF_ATTEMPT.replace("def test", f"{mark}def test"))
    run = run_with(MODULE, *options, "--ddpperf-report=json:run.json", "--junitxml=out.xml")
    assert (run.parseoutcomes()["failed"], run.parseoutcomes()["rerun"]) == (1, 2)
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    run.stdout.fnmatch_lines(["Cause      all_reduce 1 -> 2 calls*", STANDS])
    (result,) = read_run(inner.path / "run.json").results
    assert result.verdict == "regressed"
    assert not any("attempt" in text for text in findings(result))
    verdicts = re.findall(r'name="ddpperf custom w2 verdict" value="(\w+)"', (inner.path / "out.xml").read_text())
    assert verdicts == ["regressed"] * 3  # a test case for each attempt


@pytest.mark.parametrize(("attempts", "reruns"), [("[2, 1, 1]", 1), ("[None, 2, 1]", 2)], ids=["first", "later"])
def test_a_failed_expectation_fails_in_every_rerun(
    inner: pytest.Pytester, run_with: Run, attempts: str, reruns: int
) -> None:
    inner.makepyfile(test_suite=COUNTED + CALLS_OF_ATTEMPT.replace("[2, 1, 1]", attempts) + EXPECTS)
    run = run_with(MODULE, f"--reruns={reruns}")
    assert run.parseoutcomes() == {"failed": 1, "rerun": reruns}
    run.stdout.fnmatch_lines(["expected 1 all_reduce call per step, counted 2", STANDS])


@pytest.mark.parametrize(
    "test",
    [
        """
def test_step(ddpperf):
    try:
        measured(ddpperf)
    except Exception as error:
        raise AssertionError("the benchmark of the model") from error
""",
        """
class Several(AssertionError):
    def __init__(self, *exceptions):
        self.exceptions = exceptions

def test_step(ddpperf):
    try:
        measured(ddpperf)
    except Exception as error:
        group = Several(error)
    else:
        return
    raise group
""",
        """
import unittest

class Tests(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def given(self, ddpperf):
        self.ddpperf = ddpperf

    def test_step(self):
        measured(self.ddpperf)
""",
    ],
    ids=["cause", "group", "unittest"],
)
def test_a_verdict_stays_red_in_reruns_however_it_is_raised(inner: pytest.Pytester, run_with: Run, test: str) -> None:
    inner.makepyfile(test_suite=COUNTED + MEASURED + test)
    run = run_with(MODULE, "--reruns=1")
    assert run.parseoutcomes() == {"failed": 1, "rerun": 1}
    run.stdout.fnmatch_lines([STANDS])


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 8 has no subtests")
def test_a_red_part_of_a_test_stays_red_in_reruns_too(inner: pytest.Pytester, run_with: Run) -> None:
    inner.makepyfile(test_suite=COUNTED + STEP)
    run_with(MODULE, "--ddpperf-save").assert_outcomes(passed=1)
    inner.makepyfile(test_suite=COUNTED + SUBTESTS)
    run = run_with(MODULE, "--reruns=1")
    assert run.ret == pytest.ExitCode.TESTS_FAILED
    run.stdout.fnmatch_lines([STANDS])


def test_a_rank_that_fails_is_tried_again_and_the_result_says_so(inner: pytest.Pytester, run_with: Run) -> None:
    inner.makepyfile(test_suite=COUNTED + CALLS_OF_ATTEMPT.replace("[2, 1, 1]", "[None, 1]"))
    run = run_with(MODULE, "--reruns=2", "--ddpperf-report=json:run.json", "-rR")
    assert run.parseoutcomes() == {"passed": 1, "rerun": 1}
    results = json.loads((inner.path / "run.json").read_text())["results"]
    assert [result["verdict"] for result in results] == ["new"]
    assert "attempt 2 of the test: measurements of earlier attempts are omitted" in results[0]["findings"]


@pytest.mark.slow
def test_a_budget_has_one_pass_so_that_failed_tests_are_tried_again(inner: pytest.Pytester, run_with: Run) -> None:
    tried = CALLS_OF_ATTEMPT.replace("[2, 1, 1]", "[None, 1]")
    timed = "\n\ndef test_timed(ddpperf):\n    ddpperf.check(lambda ctx: lambda: 1.0, counts='on', steps=5)\n"
    inner.makepyfile(test_suite=COUNTED + tried + timed)
    run = run_with(MODULE, "--reruns=1", "--ddpperf-budget=10s")
    assert run.parseoutcomes() == {"passed": 2, "rerun": 1}
