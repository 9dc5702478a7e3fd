"""pytest-benchmark: its tests run beside ours, and its options take ours for the benchmarks that they are."""

from __future__ import annotations

import pytest

from pytest_ddpperf.reports.documents.run_file import read_run
from tests.with_plugins.suites import COUNTED, STEP

pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")

BESIDE = """

def test_both(ddpperf, benchmark):
    ddpperf.check(build_of(1))
    assert benchmark(sum, [1, 2]) == 3


def test_theirs(benchmark):
    assert benchmark(sum, [1, 2]) == 3


@pytest.mark.skip(reason="not today")
def test_off(ddpperf):
    ddpperf.check(build_of(1))


def test_plain():
    pass


def test_ranks(ddpperf_group):
    assert ddpperf_group.run(lambda ctx: ctx.rank).values == (0, 1)
"""
TIMED = """
import pytest

pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=2, steps=5, warmup=1, max_time=0.2, backend="gloo", device="cpu", timeout=30
)


def test_timed(ddpperf):
    measured = ddpperf.check(lambda ctx: lambda: 1.0)
    assert measured["step_time"].value > 0
"""


@pytest.fixture
def suite(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # there pytest-benchmark measures nothing
    inner.makepyfile(test_suite=COUNTED + STEP + BESIDE)
    return inner


def outcomes(run: pytest.RunResult, outcome: str) -> set[str]:
    """The names of the tests with this outcome."""
    return {line.split()[0].rpartition("::")[2] for line in run.outlines if "::" in line and f" {outcome} " in line}


@pytest.mark.parametrize(
    ("options", "passed"),
    [
        pytest.param([], {"test_step", "test_both", "test_theirs", "test_plain", "test_ranks"}, marks=pytest.mark.slow),
        (["--benchmark-only"], {"test_step", "test_both", "test_theirs"}),
        (["--benchmark-skip"], {"test_plain", "test_ranks"}),
        pytest.param(
            ["--benchmark-only", "--benchmark-skip"], {"test_step", "test_both", "test_theirs"}, marks=pytest.mark.slow
        ),
    ],
    ids=["all", "only", "skip", "only and skip"],
)
def test_options_of_pytest_benchmark_select_ddpperf_tests(
    suite: pytest.Pytester, options: list[str], passed: set[str]
) -> None:
    run = suite.runpytest("-v", "--benchmark-max-time=0.01", *options, "--ddpperf-report=json:run.json")
    assert outcomes(run, "PASSED") == passed
    assert (
        outcomes(run, "SKIPPED")
        == {"test_off", "test_step", "test_both", "test_theirs", "test_plain", "test_ranks"} - passed
    )
    ours = {result.test.rpartition("::")[2] for result in read_run(suite.path / "run.json").results}
    assert ours == passed & {"test_step", "test_both"}


@pytest.mark.parametrize(
    ("options", "timed"),
    [
        (["--benchmark-disable"], 0),
        (["--benchmark-disable", "--benchmark-enable"], 1),
        pytest.param(["--benchmark-disable", "--ddpperf-counts=on"], 1, marks=pytest.mark.slow),
        pytest.param(["--benchmark-disable", "--ddpperf-max-time=1"], 1, marks=pytest.mark.slow),
    ],
    ids=["disabled", "enabled again", "timed all the same", "given time"],
)
def test_if_benchmarks_are_disabled_ddpperf_tests_only_count(
    suite: pytest.Pytester, options: list[str], timed: int
) -> None:
    suite.makepyfile(test_suite=TIMED)
    run = suite.runpytest(*options, "--ddpperf-report=json:run.json")
    run.assert_outcomes(passed=timed, skipped=1 - timed)  # it asks for a time
    (result,) = read_run(suite.path / "run.json").results
    assert ("step_time" in result.measurement) == timed
    assert "collective_calls" in result.measurement
    assert ("benchmarks are counted and not timed" in run.stdout.str()) != timed


def test_disabled_benchmarks_may_be_red(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_suite=COUNTED + STEP)
    suite.runpytest("--benchmark-disable", "--ddpperf-save").assert_outcomes(passed=1)
    suite.makepyfile(test_suite=COUNTED + STEP.replace("build_of(1)", "build_of(2)"))
    suite.runpytest("--benchmark-disable").assert_outcomes(failed=1)
