"""pytest-cov: it sees the pytest process; where it is told to trace ranks, times say so."""

from __future__ import annotations

import re

import pytest

from pytest_ddpperf.reports.documents.run_file import read_run
from pytest_ddpperf.reports.phrases import findings
from tests.factories import without_plugins
from tests.with_plugins.conftest import Run
from tests.with_plugins.suites import COUNTED, STEP

MODULE = "pytest_cov"
TIMED = """

@pytest.mark.ddpperf(launches=2, steps=5, warmup=1, max_time=0.2, counts='on')
def test_timed(ddpperf):
    ddpperf.check(build_of(1))
"""


def missed(run: pytest.RunResult) -> int:
    """The statements of the suite that did not run, as the report says."""
    (line,) = (line for line in run.outlines if re.match(r"test_suite\.py +\d", line))
    return int(line.split()[2])


def test_ranks_are_not_traced(inner: pytest.Pytester, run_with: Run) -> None:
    inner.makepyfile(test_suite=COUNTED + TIMED)
    run = run_with(MODULE, "--cov=.", "--ddpperf-report=json:run.json")
    run.assert_outcomes(passed=1)
    assert missed(run) == 7  # the body of build, which runs on ranks
    (result,) = read_run(inner.path / "run.json").results
    assert not any("traced" in text for text in findings(result))


@pytest.mark.slow  # what starts ranks is started anew
def test_if_coverage_traces_ranks_their_times_say_so(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(MODULE)
    pytester.makepyfile(test_suite=COUNTED + STEP + TIMED)
    (pytester.path / ".coveragerc").write_text("[run]\nparallel = true\npatch =\n    subprocess\n    _exit\n")
    monkeypatch.setenv("PYTEST_ADDOPTS", without_plugins(MODULE))
    pytester.runpytest_subprocess("--ddpperf-save", "-k", "step").assert_outcomes(passed=1)
    run = pytester.runpytest_subprocess("--cov=.", "--ddpperf-report=json:run.json")
    run.assert_outcomes(passed=2)
    assert missed(run) == 0
    results = read_run(pytester.path / "run.json").results
    told = [any("coverage traced the Python code" in text for text in findings(result)) for result in results]
    assert told == [False, True]
    assert results[0].verdict == "unchanged"  # what is counted is the same
