"""What a stored baseline leaves open is settled side by side with its commit.

No time has to be lucky: the machine of the baseline's file is twice as fast, and the slower code six times as slow.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.baselines.store import Store
from pytest_ddpperf.errors import DdpperfError, LaunchError, ReferenceFailed, ReferenceStopped, SameCode
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.finding import Finding
from pytest_ddpperf.records.measurement import Plan, Series
from pytest_ddpperf.records.results import BaselineRecord, Comparison, Result, StoredBaseline
from pytest_ddpperf.records.verdict import Verdict
from pytest_ddpperf.reports.failure import failure_text
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.run.session import Session
from pytest_ddpperf.run.settling import not_settled, side_of_baselines, stopped_by, why_unsettled
from pytest_ddpperf.settings import Settings
from tests.factories import git, make_environment, make_measurement, make_series

CODE = """
import torch

def steps(products):
    def build(ctx):
        matrix, product = torch.ones(256, 256), torch.empty(256, 256)

        def step():
            for _ in range(products):
                torch.mm(matrix, matrix, out=product)
            return 1.0

        return step

    return build

def same(ctx):
    return steps(10)(ctx)

def slower(ctx):
    return steps(2)(ctx)
"""
SUITE = """
import pytest
import training

pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=2, warmup=1, max_time=4, backend="gloo", device="cpu", counted=False
)

def test_same(ddpperf):
    ddpperf.check(training.same)

def test_slower(ddpperf):
    ddpperf.check(training.slower)

def test_local(ddpperf):
    ddpperf.check(lambda ctx: training.same(ctx))
"""


TEST = "test_it.py::test_same"
RECORD = BaselineRecord(
    name="custom",
    strategy="custom",
    mode=None,
    environment=make_environment(),
    plan=Plan(warmup=1, steps=4),
    series=(make_series("step_time", 1.0),),
    commit="a" * 40,
    date="2026-01-12",
    steps=({},),
)


def on_a_machine_twice_as_fast(series: Series) -> Series:
    if series.unit != "s":
        return series
    return replace(series, samples=tuple(sample / 2 for sample in series.samples), value=series.value / 2)


def project(root: Path) -> str:
    """A project whose baseline was saved with uncommitted code, and committed with that; gives the commit."""
    git(root, "init", "-q")
    (root / "training.py").write_text(CODE)
    (root / "test_it.py").write_text(SUITE)
    (root / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (root / ".gitignore").write_text("__pycache__\nresults.json\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "before")
    (root / "training.py").write_text(CODE + "\nsaved = True\n")
    return git(root, "rev-parse", "--short=7", "HEAD")


def results(root: Path) -> dict[str, dict[str, Any]]:
    found = json.loads((root / "results.json").read_text())["results"]
    return {result["test"].partition("::")[2]: result for result in found}


def slower_than_its_baseline(pytester: pytest.Pytester) -> str:
    """A project with the baselines of a machine twice as fast, and slower code; gives the commit of the baselines."""
    root = pytester.path
    before = project(root)
    pytester.runpytest_subprocess("-q", "--ddpperf-save").assert_outcomes(passed=3)
    store = Store(root / "baselines")
    for file in store.files():
        content = store.read(file)
        records = [
            replace(record, series=tuple(map(on_a_machine_twice_as_fast, record.series))) for record in content.records
        ]
        store.save(content.test, records)
    assert all(record.dirty for file in store.files() for record in store.read(file).records)
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "the code and its baseline")
    saved = git(root, "rev-parse", "--short=7", "HEAD")
    assert saved != before
    (root / "training.py").write_text(CODE.replace("steps(2)", "steps(12)"))
    (root / "test_it.py").write_text(SUITE + "\n")
    return saved


@pytest.mark.slow
def test_a_budget_settles_in_the_second_pass_what_its_screening_suspects(pytester: pytest.Pytester) -> None:
    saved = slower_than_its_baseline(pytester)
    pytester.runpytest_subprocess("-q", "--ddpperf-budget=60s", "--ddpperf-json=results.json")
    found = results(pytester.path)
    assert (found["test_slower"]["verdict"], found["test_slower"]["settled"]["revision"]) == ("regressed", saved)
    assert found["test_same"]["verdict"] != "regressed"
    assert found["test_same"]["settled"]["revision"] == saved
    assert len(git(pytester.path, "worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_a_slower_machine_is_no_regression_and_slower_code_is_one(pytester: pytest.Pytester) -> None:
    root, saved = pytester.path, slower_than_its_baseline(pytester)

    run = pytester.runpytest_subprocess("-q", "--ddpperf-json=results.json")

    found = results(root)
    assert found["test_same"]["verdict"] in {"unchanged", "ok", "improved", "inconclusive"}
    assert found["test_same"]["settled"]["revision"] == saved
    step = found["test_same"]["metrics"]["step_time"]
    assert abs(step["change"]) < 0.5, "the change is that of the code, not that of the machine"
    assert found["test_slower"]["verdict"] == "regressed"
    assert found["test_slower"]["settled"]["launches"] >= 2
    assert found["test_slower"]["settled"]["modules"]["training"]["there"].endswith("/checkout/training.py")
    # Both sides would run the test file's own lambda as it is now, and nobody knows what it was.
    assert found["test_local"]["settled"] is None
    beside = f"settled side by side with {saved}, the commit of the baseline, in * rounds; beside the stored times "
    run.stdout.fnmatch_lines([f"*{beside}step_time looked +*"])
    run.stdout.fnmatch_lines(["*not settled side by side with the commit of the baseline: test_local.*"])
    (finding,) = (text for text in found["test_local"]["findings"] if text.startswith("not settled"))
    assert finding.endswith("; move it to the top of its module")
    assert len(git(root, "worktree", "list").splitlines()) == 1


def repository(root: Path) -> tuple[str, str]:
    """A repository whose baseline file was committed with the code that it is of; gives both commits."""
    root.mkdir(exist_ok=True)
    git(root, "init", "-q")
    (root / "training.py").write_text("old\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "before")
    (root / "test_it.py").write_text("")
    Store(root / "baselines").save(TEST, [RECORD])
    (root / "training.py").write_text("new\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "the code and its baseline")
    return git(root, "rev-parse", "HEAD~1"), git(root, "rev-parse", "HEAD")


def side(root: Path, *records: BaselineRecord | None, **settings: Any) -> str | None:
    """The commit to settle by, or why there is none."""
    asked = Settings(**settings)
    found = side_of_baselines(
        TEST,
        [StoredBaseline(record=record, origin="") for record in records],
        asked,
        Session(asked, root, LiveLine(None, None)),
    )
    if found is None:
        return None
    return str(found.facts["reason"]) if isinstance(found, Finding) else found.revision.commit


def test_the_commit_of_a_baseline_is_the_one_that_has_its_code(tmp_path: Path) -> None:
    """The test, too: what git does not track is no change of a checkout."""
    before, after = repository(tmp_path)
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "the newest")

    assert side(tmp_path, replace(RECORD, commit=after)) == after
    assert side(tmp_path, None, replace(RECORD, commit=after)) == after
    assert side(tmp_path, replace(RECORD, commit=after, dirty=True)) == after, "both were committed together"
    assert side(tmp_path, replace(RECORD, commit=before)) == after, "the older one has no such test"
    assert side(tmp_path, replace(RECORD, commit="b" * 40)) == after, "the branch that it was saved on is gone"


def test_a_baseline_that_was_counted_again_keeps_the_commit_of_its_times(tmp_path: Path) -> None:
    _, after = repository(tmp_path)
    again = replace(RECORD, dirty=True, counts=Counts(totals={"flops": 8.0}, details={}, unstable={}))
    Store(tmp_path / "baselines").save(TEST, [again])
    (tmp_path / "training.py").write_text("newest\n")
    git(tmp_path, "commit", "-q", "-a", "-m", "counted again")
    assert side(tmp_path, again) == after


def test_a_baseline_that_was_moved_keeps_its_commit(tmp_path: Path) -> None:
    _, after = repository(tmp_path)
    git(tmp_path, "mv", "baselines", "kept")
    (tmp_path / "training.py").write_text("newest\n")
    git(tmp_path, "commit", "-q", "-a", "-m", "moved")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "the newest")
    assert side(tmp_path, replace(RECORD, dirty=True), baseline_dir=Path("kept")) == after


def test_the_commit_of_a_baseline_in_a_shallow_clone_is_unknown(tmp_path: Path) -> None:
    """Its oldest commit stands for all before it, so everything seems to have come with that."""
    repository(tmp_path / "origin")
    git(tmp_path / "origin", "commit", "-q", "--allow-empty", "-m", "the newest")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{tmp_path}/origin", "clone")
    reason = "this is a shallow clone: fetch the rest with git fetch --unshallow (in CI: fetch-depth: 0)"
    assert side(tmp_path / "clone", replace(RECORD, dirty=True)) == reason


def test_a_baseline_that_was_committed_alone_has_no_commit_of_its_code(tmp_path: Path) -> None:
    repository(tmp_path)
    alone = replace(RECORD, dirty=True, series=(make_series("step_time", 0.123456789),))
    Store(tmp_path / "baselines").save(TEST, [alone])
    git(tmp_path, "commit", "-q", "-a", "-m", "a baseline")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "the newest")
    reason = "it was committed apart from the code that it is of; commit both together"
    assert side(tmp_path, alone) == reason


def test_this_very_commit_is_not_measured_beside_itself(tmp_path: Path) -> None:
    _, after = repository(tmp_path)
    cure = "run it again, or see --ddpperf-against-python for packages"
    same = f"this checkout is that commit: only packages, data or the machine can have changed; {cure}"
    assert side(tmp_path, replace(RECORD, commit=after)) == same
    (tmp_path / "training.py").write_text("changed\n")
    assert side(tmp_path, replace(RECORD, commit=after)) == after


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dirty": True}, "it was saved with uncommitted changes; commit these and the baseline together"),
        ({"commit": None}, "it names no commit; save it in a git repository"),
        ({}, "this clone has no commit with its test and its code; commit the test and the baseline together"),
    ],
)
def test_a_baseline_that_is_not_committed_says_how_to_get_a_commit(
    tmp_path: Path, fields: dict[str, Any], reason: str
) -> None:
    repository(tmp_path)
    assert side(tmp_path, replace(RECORD, series=(make_series("step_time", 0.25),), **fields)) == reason


def test_baselines_of_several_commits_are_to_be_saved_together(tmp_path: Path) -> None:
    before, after = repository(tmp_path)
    git(tmp_path, "checkout", "-q", before)
    (tmp_path / "test_it.py").write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "another branch")
    other = git(tmp_path, "rev-parse", "HEAD")
    reason = "the baselines of this test are of several commits; save them together"
    assert side(tmp_path, replace(RECORD, commit=after), replace(RECORD, commit=other)) == reason


def test_without_a_repository_nothing_is_settled(tmp_path: Path) -> None:
    (tmp_path / "baselines").mkdir()
    folder = tmp_path / "baselines"
    reason = f"{folder} is in no git repository: keep the baselines in one, committed with the code"
    assert side(tmp_path, RECORD) == reason


def test_without_git_nothing_is_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert side(tmp_path, RECORD) == "git is not installed: install it"


def test_where_git_fails_to_search_a_named_commit_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, after = repository(tmp_path)
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "the newest")
    real = shutil.which("git")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(
        f'#!/bin/sh\ncase "$*" in *" log "*) echo fatal: bad object >&2; exit 128 ;; esac\nexec {real} "$@"\n'
    )
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    reason = (
        "git cannot tell its commit: bad object; a baseline that is saved without uncommitted changes names its own"
    )
    assert side(tmp_path, replace(RECORD, dirty=True)) == reason
    assert side(tmp_path, replace(RECORD, commit=after)) == after


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (LaunchError("git has no such file; fetch it\nmore"), "git has no such file; fetch it"),
        (SameCode("both sides run it; install it"), "both sides run it; install it"),
        (
            ReferenceFailed("rank 0 of 2 raised ImportError", benchmark=("ddp", 2)),
            "rank 0 of 2 raised ImportError; where its commit has to be built first, see --ddpperf-against-setup",
        ),
        (ReferenceStopped("rank 0 of 2 was killed"), "rank 0 of 2 was killed; run it again"),
    ],
)
def test_what_stops_both_sides_is_told_with_its_cure(error: DdpperfError, reason: str) -> None:
    assert stopped_by(error) == not_settled(reason)


def test_both_sides_that_would_run_one_file_are_told_the_cure_alone() -> None:
    error = ReferenceFailed("both would run this checkout's; move it", benchmark=("ddp", 2))
    error.__cause__ = SameCode(str(error))
    assert stopped_by(error) == not_settled("both would run this checkout's; move it")


@pytest.mark.parametrize("settings", [{"settle": False}, {"save": "default"}, {"counted_only": True}])
def test_nothing_is_settled_where_nobody_wants_it(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert side(tmp_path, RECORD, **settings) is None


@pytest.mark.parametrize(
    "stored", [StoredBaseline(record=None, origin=""), StoredBaseline(record=RECORD, origin="", differs=("torch",))]
)
def test_a_baseline_that_judges_no_times_is_not_settled(tmp_path: Path, stored: StoredBaseline) -> None:
    assert side_of_baselines(TEST, [stored], Settings(), Session(Settings(), tmp_path, LiveLine(None, None))) is None


def judged(calls: Verdict, step: Verdict, loss: Verdict = Verdict.UNCHANGED) -> Result:
    """A result with these verdicts on a count, on the step time and on the loss."""
    verdicts = {"collective_calls": calls, "step_time": step, "final_loss": loss}
    series = {metric: make_series(metric, 2.0) for metric in verdicts}
    series["collective_calls"] = replace(series["collective_calls"], scale="exact", family="counted")
    return Result(
        test=TEST,
        measurement=make_measurement(),
        comparisons=tuple(
            Comparison(series=series[metric], tolerance=0.03, verdict=verdict, gated=True, baseline=1.0)
            for metric, verdict in verdicts.items()
        ),
        verdict=max(verdicts.values(), key=lambda verdict: verdict.severity),
        reference=StoredBaseline(record=RECORD, origin=""),
    )


SHALLOW = not_settled("this is a shallow clone")
OF_COUNTS = "not settled side by side with the commit of the baseline: counts are exact, so the stored ones judge them"


def test_a_red_by_counts_alone_says_why_it_is_not_settled(tmp_path: Path) -> None:
    """Whether its commit is at hand or not."""
    _, after = repository(tmp_path)
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "the newest")
    session = Session(Settings(), tmp_path, LiveLine(None, None))
    stored = StoredBaseline(record=replace(RECORD, commit=after), origin="")
    at_hand = side_of_baselines(TEST, [stored], Settings(), session)
    assert not isinstance(at_hand, Finding)
    red = judged(Verdict.REGRESSED, Verdict.OK)
    for side in (at_hand, SHALLOW):
        assert OF_COUNTS in failure_text(replace(red, findings=why_unsettled(red, side)), accept="")
    assert why_unsettled(red, None) == (), "nobody wants to settle, or there is no time to judge"
    assert why_unsettled(judged(Verdict.UNCHANGED, Verdict.REGRESSED), at_hand) == ()


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (judged(Verdict.REGRESSED, Verdict.INCONCLUSIVE), (SHALLOW,)),
        (judged(Verdict.UNCHANGED, Verdict.REGRESSED), (SHALLOW,)),
        (judged(Verdict.REGRESSED, Verdict.OK, Verdict.REGRESSED), (SHALLOW,)),
        (judged(Verdict.UNCHANGED, Verdict.OK), ()),
    ],
)
def test_times_that_are_open_say_why_nothing_settles_them(result: Result, reason: tuple[Finding, ...]) -> None:
    assert why_unsettled(result, SHALLOW) == reason
