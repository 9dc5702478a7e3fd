"""What a session leaves for other tools: reports, properties of tests, entries for pytest-benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from pytest_ddpperf.parsers import reports
from pytest_ddpperf.reports.documents.run_file import read_run
from pytest_ddpperf.reports.formats.kinds import KINDS
from pytest_ddpperf.reports.formats.markdown import MARK

SUITE = """
import pytest

pytestmark = pytest.mark.ddpperf(world_size=2, counts='only', backend="gloo", device="cpu", timeout=30)


def build(ctx):
    import torch.distributed as dist
    import torch

    def step():
        dist.all_reduce(torch.ones(4))
        return 1.0

    return step


def test_step(ddpperf):
    ddpperf.check(build)
"""
TIMED = """
import pytest

pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=2, steps=5, warmup=1, max_time=0.2, backend="gloo", device="cpu", timeout=30
)


def test_step(ddpperf):
    ddpperf.check(lambda ctx: lambda: 1.0)
"""


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests may run in a job of GitHub, and in a worker of xdist, where pytest-benchmark measures nothing."""
    for name in ("GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def suite(inner: pytest.Pytester) -> pytest.Pytester:
    inner.makepyfile(test_suite=SUITE)
    return inner


def test_a_report_of_the_run_equals_the_report_of_its_json_file(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ini file names all of them; a job of GitHub has the page in its summary, behind what is there."""
    summary = suite.path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    lines = "".join(f"\n    {kind}:out/{kind}" for kind in ("json", *KINDS))
    suite.makeini(f"[pytest]\nddpperf_report ={lines.replace('out/json', 'run.json')}\n")
    suite.runpytest().assert_outcomes(passed=1)
    document = read_run(suite.path / "run.json")
    assert document.results[0]["collective_calls"].series.value == 1
    for name, kind in KINDS.items():
        assert (suite.path / "out" / name).read_text() == kind.render(document)
    head, mark, page = summary.read_text().partition(MARK)
    assert (head, mark) == ("before\n", MARK)
    assert MARK not in page
    assert "## ddpperf: PASSED: 1 new" in page
    assert (suite.path / "out" / "markdown").read_text().endswith(page)


def test_pictures_and_junit_have_the_figures_of_the_runs_json_file(inner: pytest.Pytester) -> None:
    inner.makepyfile(test_suite=TIMED, test_other="def test_other(): pass")
    options = ("--ddpperf-report=json:run.json", "--ddpperf-report=plots:pictures", "--junitxml=out.xml")
    inner.runpytest(*options).assert_outcomes(passed=2)
    assert (inner.path / "pictures" / "steps.test_suite.test_step-custom-w2.png").is_file()
    found = properties(inner.path / "out.xml")
    assert found["test_other"] == {}
    (result,) = read_run(inner.path / "run.json").results
    step = result["step_time"].series.value
    assert step is not None
    assert found["test_step"]["ddpperf custom w2 verdict"] == "new"
    assert float(found["test_step"]["ddpperf custom w2 step_time"]) == pytest.approx(step)
    assert "ddpperf custom w2 step_time change" not in found["test_step"]


def test_a_fault_of_one_file_costs_no_other(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(_: object) -> str:
        raise ZeroDivisionError("by a fault of ours")

    monkeypatch.setattr(
        "pytest_ddpperf.reports.formats.kinds.KINDS", {**KINDS, "csv": KINDS["csv"]._replace(render=faulty)}
    )
    suite.makepyfile(test_red="def test_red():\n    assert 'the text of a failure' == 1\n")
    run = suite.runpytest("--ddpperf-report=csv:a.csv", "--ddpperf-report=text:a.txt")
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(
        [
            "*the text of a failure*",
            "WARNING a file of results was not written: ZeroDivisionError: by a fault of ours",
            "phases, communication, *",
        ]
    )
    assert (suite.path / "a.txt").is_file()


def test_kinds_and_files_are_read_from_lines() -> None:
    assert reports("csv:a.csv\n\n markdown:b:c.md ") == (("csv", Path("a.csv")), ("markdown", Path("b:c.md")))
    assert reports(["csv:a.csv"]) == (("csv", Path("a.csv")),)


def properties(file: Path) -> dict[str, dict[str, str]]:
    """By test, what the JUnit file says of it."""
    return {
        case.attrib["name"]: {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
        for case in ET.parse(file).iter("testcase")  # noqa: S314 - of our own run
    }


def test_without_properties_junit_keeps_to_the_schema_of_jenkins(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And without markdown a job of GitHub has no page."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(suite.path / "summary.md"))
    suite.makepyfile(test_red=SUITE.replace("ddpperf.check(build)", "ddpperf.check(build, tolerence=1)"))
    suite.runpytest("--junitxml=out.xml", "--ddpperf-junit-properties=false").assert_outcomes(passed=1, failed=1)
    found = ET.parse(suite.path / "out.xml")  # noqa: S314 - of our own run
    assert not list(found.iter("property"))
    parts = {child.tag for case in found.iter("testcase") for child in case}
    assert parts <= {"skipped", "error", "failure", "system-out", "system-err"}  # that a testcase of it has
    assert not (suite.path / "summary.md").exists()


@pytest.mark.usefixtures("other_plugins")
def test_reportlog_has_verdicts_and_counts(suite: pytest.Pytester) -> None:
    pytest.importorskip("pytest_reportlog", reason="pytest-reportlog is not installed")
    suite.runpytest("--report-log=out.jsonl").assert_outcomes(passed=1)
    reports = [json.loads(line) for line in (suite.path / "out.jsonl").read_text().splitlines()]
    (called,) = (report for report in reports if report.get("when") == "call")
    found = dict(called["user_properties"])
    assert found["ddpperf custom w2 verdict"] == "new"
    assert found["ddpperf custom w2 collective_calls"] == 1


def test_junit_has_the_change_of_a_red_test(suite: pytest.Pytester) -> None:
    suite.runpytest("--ddpperf-save").assert_outcomes(passed=1)
    call = "dist.all_reduce(torch.ones(4))"
    suite.makepyfile(test_suite=SUITE.replace(call, f"{call}; {call}"))
    suite.runpytest("--junitxml=out.xml", "--ddpperf-report=markdown:out.md").assert_outcomes(failed=1)
    found = properties(suite.path / "out.xml")["test_step"]
    assert found["ddpperf custom w2 verdict"] == "regressed"
    assert found["ddpperf custom w2 collective_calls"] == "2.0"
    assert found["ddpperf custom w2 collective_calls change"] == "1.0"
    assert "collective_calls: all_reduce 1 -> 2 calls per step" in (suite.path / "out.md").read_text()


BESIDE = """
def test_theirs(benchmark):
    benchmark.pedantic(sum, ([1, 2],), rounds=2)
"""


@pytest.mark.usefixtures("other_plugins")
def test_pytest_benchmark_saves_our_results_with_its_own(inner: pytest.Pytester) -> None:
    pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")
    inner.makepyfile(test_suite=TIMED, test_beside=BESIDE)
    inner.runpytest("--benchmark-json=out.json").assert_outcomes(passed=2)
    found = {each["fullname"]: each for each in json.loads((inner.path / "out.json").read_text())["benchmarks"]}
    ours = found.pop("test_suite.py::test_step custom w2")
    (theirs,) = found.values()
    assert set(ours["stats"]) == set(theirs["stats"])
    assert ours["stats"]["rounds"] >= 10


@pytest.mark.slow
@pytest.mark.usefixtures("other_plugins")
def test_if_no_ddpperf_test_ran_pytest_benchmark_saves_only_its_own_results(inner: pytest.Pytester) -> None:
    pytest.importorskip("pytest_benchmark", reason="pytest-benchmark is not installed")
    inner.makepyfile(test_beside=BESIDE)
    inner.runpytest("--benchmark-json=out.json").assert_outcomes(passed=1)
    assert len(json.loads((inner.path / "out.json").read_text())["benchmarks"]) == 1
