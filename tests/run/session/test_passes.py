"""A suite with a budget: each test runs at its turn, and what is open then runs once more at the end."""

from __future__ import annotations

import json

import pytest

from tests.run.conftest import SetLoad

SUITE = """
import pytest

pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=2, steps=5, warmup=1, verify=False, counts='off', backend="gloo", device="cpu", timeout=30
)

def build(ctx):
    return lambda: 1.0

def note(*words):
    with open("notes", "a") as file:
        print(*words, file=file)

def test_first(ddpperf, record_property, capsys):
    note("first")
    print("printed once")
    record_property("number", 1)
    note("launches", len(ddpperf.check(build).launches))

def test_plain():
    note("plain")

def test_second(ddpperf):
    note("second")
    ddpperf.check(build)

def test_fails(ddpperf):
    note("fails")
    ddpperf.check(lambda ctx: lambda: 1 / 0)
"""
OPEN = """
import pytest

@pytest.fixture(scope="session", autouse=True)
def opened():
    from pytest_ddpperf.run.budget import allocation, session_budget
    asked = []
    def request(results, look):
        if "test_first" not in results[0].test:
            return None
        return allocation.TimeRequest(priority=allocation.Priority.SEE, wanted=WANTED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session_budget, "request_of", request)
        yield

def pytest_ddpperf_verdict(result):
    with open("notes", "a") as file:
        print("verdict", result.test.partition("::")[2], result.verdict.value, file=file)
"""
HEARD = """
def pytest_ddpperf_measured(test, attempt):
    with open("notes", "a") as file:
        print("measured", test.partition("::")[2], attempt, file=file)
"""


def test_an_open_test_runs_twice_is_reported_once_and_its_launches_count_in_both_runs(inner: pytest.Pytester) -> None:
    """Hooks hear of each of its calls once, also of that which is decided before another one leaves the test open."""
    inner.makepyfile(SUITE.replace("    note(", '    ddpperf.check(build, name="decided")\n    note(', 1))
    opened = OPEN.replace("in results[0].test", 'in results[0].test or results[0].name == "decided"')
    inner.makeconftest(opened.replace("WANTED", "6.0") + HEARD)
    run = inner.runpytest(
        "--ddpperf-budget=30s",
        "-v",
        "--junitxml=junit.xml",
        "-ojunit_family=xunit1",
        "--ddpperf-report=json:results.json",
    )
    run.assert_outcomes(passed=3, failed=1)
    notes = (inner.path / "notes").read_text().splitlines()
    heard = [line for line in notes if line.startswith(("measured", "verdict"))]
    of_first = ["measured test_first 1", "verdict test_first new"] * 2
    assert heard == ["measured test_second 1", "verdict test_second new", "verdict test_fails broken", *of_first]
    first, again = (int(line.split()[1]) for line in notes if line.startswith("launches"))
    assert 2 <= first <= again
    ran = [line for line in notes if line not in heard and not line.startswith("launches")]
    assert ran == ["first", "plain", "second", "fails", "first"]
    run.stdout.re_match_lines([r".*test_plain PASSED", r".*test_fails FAILED", r".*test_first PASSED"])
    assert (inner.path / "junit.xml").read_text().count('name="number"') == 1
    results = json.loads((inner.path / "results.json").read_text())["results"]
    assert sorted(each["test"].partition("::")[2] for each in results) == [
        *("test_fails", "test_first", "test_first", "test_second")
    ]
    run.stdout.no_fnmatch_line("WARNING --ddpperf*")


def test_an_open_test_that_gets_no_time_is_reported_as_its_only_run_left_it(inner: pytest.Pytester) -> None:
    inner.makepyfile(SUITE)
    inner.makeconftest(OPEN.replace("SEE", "PROVE").replace("WANTED", "1e9"))
    inner.runpytest("--ddpperf-budget=20s", "-k", "test_first or test_second").assert_outcomes(passed=2, deselected=2)
    notes = (inner.path / "notes").read_text().splitlines()
    assert notes.count("first") == 1
    assert notes[-1] == "verdict test_first new"


def test_a_first_failure_ends_the_session_with_the_deferred_reports(inner: pytest.Pytester) -> None:
    inner.makepyfile(SUITE)
    inner.makeconftest(OPEN.replace("WANTED", "6.0"))
    run = inner.runpytest("--ddpperf-budget=20s", "-x", "-k", "test_first or test_fails")
    run.assert_outcomes(passed=1, failed=1, deselected=2)
    assert (inner.path / "notes").read_text().splitlines().count("first") == 1


def test_one_pass_does_if_there_is_nothing_to_share(inner: pytest.Pytester) -> None:
    inner.makepyfile(SUITE)
    inner.makeconftest(OPEN.replace("WANTED", "6.0"))
    inner.runpytest("--ddpperf-budget=20s", "--ddpperf-counts=only", "-k", "test_first").assert_outcomes(
        passed=1, deselected=3
    )
    assert (inner.path / "notes").read_text().splitlines().count("first") == 1


def test_tests_that_begin_after_the_budget_are_skipped_and_a_warning_counts_them(inner: pytest.Pytester) -> None:
    inner.makepyfile(SUITE)
    run = inner.runpytest("--ddpperf-budget=0.001s", "-rs", "-k", "test_first or test_second")
    run.assert_outcomes(skipped=2, deselected=2)
    run.stdout.fnmatch_lines(
        [
            "*--ddpperf-budget=0.001s left 2 ddpperf calls no time to count or to time steps; at least 1s would do*",
            "SKIPPED*--ddpperf-budget=0.001s left this call no time to count or to time steps*",
        ]
    )


@pytest.mark.slow
def test_a_test_with_subtests_runs_once(inner: pytest.Pytester) -> None:
    inner.makepyfile(SUITE.replace("record_property, capsys", "record_property, subtests"))
    inner.makeconftest(OPEN.replace("WANTED", "6.0") + "\n\n@pytest.fixture\ndef subtests(): pass\n")
    inner.runpytest("--ddpperf-budget=20s").assert_outcomes(passed=3, failed=1)
    assert (inner.path / "notes").read_text().splitlines().count("first") == 1


def test_a_target_that_an_open_test_misses_fails_it_though_it_gets_no_more_time(
    inner: pytest.Pytester,
    set_load: SetLoad,  # none, or the target would be open
) -> None:
    slow = "lambda ctx: lambda: __import__('time').sleep(0.01)"
    missed = f"    ddpperf.expect(ddpperf.check({slow}, launches=3), step_time=1e-6)\n"
    inner.makepyfile(SUITE.replace('    note("launches", len(ddpperf.check(build).launches))\n', missed))
    inner.makeconftest(OPEN.replace("SEE", "PROVE").replace("WANTED", "1e9"))
    run = inner.runpytest("--ddpperf-budget=60s", "-v", "-k", "test_first")
    run.stdout.re_match_lines_random([r".*test_first FAILED", r".*target missed: step_time: .*"])
