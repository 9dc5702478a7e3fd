"""The status with which pytest ends: a script can tell what became worse from what could not be measured."""

from __future__ import annotations

import pytest

from pytest_ddpperf.errors import NOT_MEASURED

SUITE = """
import pytest

pytestmark = pytest.mark.ddpperf(world_size=2, device="cpu", backend="gloo", timeout=30, counts='only')


def build(ctx):
    return lambda: 1.0


def boom(ctx):
    raise ValueError("boom")


def wrong(ctx):
    assert ctx.rank == 7


def test_measured(ddpperf):
    ddpperf.check(build)


def test_broken(ddpperf):
    ddpperf.check(boom)


def test_misspelt(ddpperf):
    ddpperf.check(build, tolerence=0.1)


def test_worse(ddpperf):
    ddpperf.check(build)
    ddpperf.expect(collectives={"all_reduce": 1})


def test_ranks(ddpperf_group):
    ddpperf_group.run(wrong)


def test_assertion():
    assert 1 == 2


def test_asserts_later(ddpperf):
    ddpperf.check(build)
    assert 1 == 2
"""


@pytest.mark.parametrize(
    ("tests", "status"),
    [("broken or measured", NOT_MEASURED), ("broken or worse", 1), ("broken or assertion", 1), ("ranks", 1)],
)
def test_the_exit_status_distinguishes_regressions_from_failed_measurements(
    inner: pytest.Pytester, tests: str, status: int
) -> None:
    inner.makepyfile(test_suite=SUITE)
    assert inner.runpytest("-q", *(f"test_suite.py::test_{test}" for test in tests.split(" or "))).ret == status


def test_a_baseline_whose_commit_cannot_be_had_is_refused_before_measuring(inner: pytest.Pytester) -> None:
    """Its times could show gross slowdowns alone, and a baseline was required."""
    short = "launches=2, steps=2, warmup=1, max_time=0.1"
    inner.makepyfile(test_suite=SUITE.replace("counts='only'", short))
    test = "test_suite.py::test_measured"
    assert inner.runpytest("-q", test, "--ddpperf-save").ret == 0
    run = inner.runpytest("-q", test, "--ddpperf-require-baseline")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    told = f"--ddpperf-require-baseline: {test}: only gross slowdowns could fail: * is in no git repository: *"
    run.stdout.fnmatch_lines(["no tests ran in *", f"*{told}"])


def test_a_run_that_another_plugin_repeats_has_the_status_of_its_last_attempt(inner: pytest.Pytester) -> None:
    inner.makeconftest(
        """
def pytest_runtest_protocol(item, nextitem):  # as pytest-rerunfailures does it
    from _pytest.runner import runtestprotocol

    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    runtestprotocol(item, nextitem=nextitem, log=False)
    item._initrequest()
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""
    )
    inner.makepyfile(
        test_suite=SUITE
        + """
attempts = []


def test_first(ddpperf):
    attempts.append(1)
    ddpperf.check(boom if len(attempts) == 1 else build)
    assert 1 == 2
"""
    )
    assert inner.runpytest("-q", "test_suite.py::test_first").ret == 1
