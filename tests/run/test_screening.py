"""A suite with a budget: every test is prepared, then screened, and tells nothing of these runs."""

from __future__ import annotations

import json

import pytest

SUITE = """
import warnings
from pathlib import Path
import pytest

def build(ctx):
    return lambda: 1.0


@pytest.fixture(scope="session", autouse=True)
def once():
    note("session")


def note(*words):
    with open("notes", "a") as file:
        print(*words, file=file)


@pytest.fixture
def launches(monkeypatch):
    from pytest_ddpperf.run.benchmark_launches import BenchmarkLaunches
    launch = BenchmarkLaunches.launch
    def noted(self, variant, function, *args, **how):
        note("launch", function.name)
        return launch(self, variant, function, *args, **how)
    monkeypatch.setattr(BenchmarkLaunches, "launch", noted)


pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=2, steps=5, warmup=1, verify=False, counted=False, backend="gloo", device="cpu", timeout=30
)


def test_before():
    note("before")


def test_first(ddpperf, record_property, launches):
    note("first")
    print("printed")
    warnings.warn("warned")
    record_property("number", 1)
    measured = ddpperf.check(build)
    note("measured", len(measured.launches))
    assert Path("notes").read_text().count("first") > 1, "what earlier runs raise is forgotten"


def test_second(ddpperf, launches):
    ddpperf.check(build)


def test_fails(ddpperf, launches):
    note("fails")
    ddpperf.check(lambda ctx: lambda: 1 / 0)
"""
SUSPECTED = """
import pytest

@pytest.fixture(scope="session", autouse=True)
def suspected():
    from pytest_ddpperf.run.pool import Pool
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "is_suspect", lambda _, test: test.endswith("::test_suspect"))
        patch.setattr(Pool, "lacks", True)
        yield
"""
HEARS = """
def pytest_ddpperf_verdict(result):
    with open("notes", "a") as file:
        print("verdict", result.test.partition("::")[2], result.verdict.value, file=file)
"""


def test_each_test_runs_three_times_and_its_launches_are_made_once(inner: pytest.Pytester) -> None:
    inner.makepyfile(SUITE)
    inner.makeconftest(HEARS)
    run = inner.runpytest("--ddpperf-budget=20s", "-v", "-Wdefault", "--junitxml=junit.xml", "-ojunit_family=xunit1")
    run.assert_outcomes(passed=3, failed=1, warnings=1)
    run.stdout.re_match_lines([r".*test_before PASSED", r".*test_first PASSED", r".*test_fails FAILED"])
    notes = (inner.path / "notes").read_text().split("\n")
    second = notes.index("before")
    words = [line.split()[0] for line in notes if line]
    assert [words.count(word) for word in ("session", "before", "first", "fails", "verdict")] == [1, 1, 3, 3, 3]
    first, last = notes[:second], notes[second:]
    launched = [line for line in first if line.startswith("launch")]
    prepared = ["launch prepare_launch"] * 2  # what two tests have in common is prepared once
    assert launched[:2] == prepared, "all are prepared before any is screened"
    assert set(launched[2:]) == {"launch run_launch"}
    assert "launch prepare_launch" not in last
    assert "measured 2" in first
    assert [line for line in last if line.startswith("verdict")] == [
        "verdict test_first new",
        "verdict test_second new",
        "verdict test_fails broken",
    ]
    assert (inner.path / "junit.xml").read_text().count('name="number"') == 1
    run.stdout.no_fnmatch_line("*ddpperf errors*")


@pytest.mark.parametrize(
    "arguments", [["--ddpperf-save"], ["--ddpperf-counted-only"], ["-k", "first"], ["--setup-only"]]
)
def test_one_pass_does_where_there_is_nothing_to_deal(inner: pytest.Pytester, arguments: list[str]) -> None:
    inner.makepyfile(
        """
import pytest

@pytest.fixture(autouse=True)
def noted(request):
    with open("notes", "a") as file:
        print(request.node.name, file=file)

def test_first(ddpperf): pass

def test_second(ddpperf): pass
"""
    )
    inner.runpytest("--ddpperf-budget=4s", *arguments)
    names = (inner.path / "notes").read_text().split()
    assert len(names) == len(set(names))


def test_the_first_failure_ends_the_session_at_its_turn(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_it(ddpperf, number):
    with open("notes", "a") as file:
        print(number, file=file)
    assert number != 1
"""
    )
    inner.runpytest("--ddpperf-budget=4s", "-x").assert_outcomes(passed=1, failed=1)
    assert (inner.path / "notes").read_text().split() == ["0", "1", "2", "0", "1", "2", "0", "1"]


def test_a_scaling_has_its_efficiency_in_both_runs_and_a_test_with_subtests_runs_once(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        """
import pytest

pytestmark = pytest.mark.ddpperf(launches=2, steps=5, warmup=1, verify=False, counted=False, timeout=30)

def note(*words):
    with open("notes", "a") as file:
        print(*words, file=file)

@pytest.fixture
def subtests(): pass

def build(ctx):
    return lambda: 1.0

def test_scales(ddpperf):
    curve = ddpperf.scaling(build, world_sizes=[1, 2], mode="weak")
    note(curve.efficiency(2) > 0, curve.speedup(2) > 0)

def test_once(ddpperf, subtests):
    note("once")

def test_thrice(ddpperf):
    note("thrice")
"""
    )
    inner.runpytest("--ddpperf-budget=4s").assert_outcomes(passed=3)
    notes = (inner.path / "notes").read_text().split("\n")
    assert sorted(filter(None, notes)) == ["True True", "True True", "once", "thrice", "thrice", "thrice"]


def test_the_first_test_of_a_session_may_be_its_only_suspect(inner: pytest.Pytester) -> None:
    """Then it follows itself: what is of one test is made anew for each run, and what is of the session once."""
    inner.makeconftest(
        SUSPECTED
        + """

@pytest.fixture(scope="session", autouse=True)
def last():
    yield
    note("end of session")

def note(*words):
    with open("notes", "a") as file:
        print(*words, file=file)

@pytest.fixture(autouse=True)
def noted(request):
    note(request.node.name)
    yield
    note("end")
"""
    )
    inner.makepyfile("def test_suspect(ddpperf): pass\ndef test_other(ddpperf): pass")
    inner.runpytest("--ddpperf-budget=10s").assert_outcomes(passed=2)
    suspect, other = ["test_suspect", "end"], ["test_other", "end"]
    notes = (inner.path / "notes").read_text().splitlines()
    assert notes == [*suspect, *other, *suspect, *other, *suspect, *suspect, *other, "end of session"]


def test_one_test_that_can_be_screened_follows_itself(inner: pytest.Pytester) -> None:
    inner.makepyfile(
        """
import pytest

@pytest.fixture
def subtests(): pass

def test_screened(ddpperf): pass

def test_once(ddpperf, subtests): pass
"""
    )
    inner.runpytest("--ddpperf-budget=10s").assert_outcomes(passed=2)


def test_what_is_torn_down_for_a_suspect_prints_and_warns_once(inner: pytest.Pytester) -> None:
    """Tests that another plugin orders anew may need a fixture of a module before and after the suspect of another."""
    inner.makeconftest(
        SUSPECTED
        + """
import warnings

def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: ["test_first", "test_suspect", "test_last"].index(item.name))

@pytest.fixture(scope="module", autouse=True)
def of_module(request):
    yield
    print("printed by", request.node.name)
    warnings.warn("warned by " + request.node.name)

"""
    )
    inner.makepyfile(test_1="def test_first(ddpperf): pass\ndef test_last(ddpperf): pass")
    inner.makepyfile(test_2="def test_suspect(ddpperf): pass")
    run = inner.runpytest("--ddpperf-budget=10s", "-Wdefault")
    run.assert_outcomes(passed=3, warnings=3)
    run.stdout.no_fnmatch_line("printed by*")


def test_suspects_are_confirmed_in_a_pass_of_their_own(inner: pytest.Pytester) -> None:
    """What was torn down for the first test is set up again for the suspect, and what it does not need is torn down."""
    inner.makeconftest(
        SUSPECTED
        + """

def note(*words):
    with open("notes", "a") as file:
        print(*words, file=file)

@pytest.fixture(scope="module", autouse=True)
def of_module(request):
    note("begin", request.node.name)
    yield
    note("end", request.node.name)
    raise RuntimeError("told once")

@pytest.fixture(autouse=True)
def noted(request):
    note(request.node.name)

"""
    )
    inner.makepyfile(test_1="def test_plain(): pass", test_2="def test_first(ddpperf): pass")
    inner.makepyfile(test_3="def test_suspect(ddpperf): pass\ndef test_last(ddpperf): pass")
    run = inner.runpytest("--ddpperf-budget=10s")
    run.assert_outcomes(passed=4, errors=3)
    notes = (inner.path / "notes").read_text().splitlines()
    once = ["begin test_2.py", "test_first", "end test_2.py", "begin test_3.py", "test_suspect", "test_last"]
    silent = [*once, "end test_3.py"]
    last = ["begin test_1.py", "test_plain", "end test_1.py", *once, "end test_3.py"]
    assert notes == [*silent, *silent, "begin test_3.py", "test_suspect", "end test_3.py", *last]


@pytest.mark.slow
def test_a_comparison_and_a_search_for_a_batch_size_share_a_budget(inner: pytest.Pytester) -> None:
    """Of the search no launch is made twice; the comparison tells a verdict for each of its ways."""
    inner.makepyfile(
        """
import pytest, torch
from pytest_ddpperf import Workload

pytestmark = pytest.mark.ddpperf(world_size=1, launches=2, steps=5, warmup=1, verify=False, counted=False, timeout=60)

def of_size(size):
    with open("notes", "a") as file:
        print("size", size, file=file)
    return Workload(
        model=lambda: torch.nn.Linear(8, 2),
        batch=lambda: (torch.randn(size, 8), torch.randint(2, (size,))),
        loss=torch.nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        samples_per_step=size,
    )

def test_compares(ddpperf):
    compared = ddpperf.compare(of_size(4), strategies=["naive", "flat"])
    assert compared.speedup("flat") > 0

def test_searches(ddpperf):
    assert ddpperf.find_batch_size(of_size, limit=4, memory_limit="8GiB").size == 4
"""
    )
    run = inner.runpytest("--ddpperf-budget=20s", "--ddpperf-json=results.json")
    run.assert_outcomes(passed=2)
    run.stdout.no_fnmatch_line("*ddpperf errors*")
    found = json.loads((inner.path / "results.json").read_text())
    assert [(each["name"], each["verdict"]) for each in found["results"]] == [("naive", "new"), ("flat", "new")]
    assert [search["size"] for search in found["batch_sizes"]] == [4]
    sizes = [line for line in (inner.path / "notes").read_text().splitlines() if line != "size 4"]
    assert len(sizes) == len(set(sizes)), "a later pass searches no more"
