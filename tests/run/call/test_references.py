"""Which commit a stored baseline is measured beside, or why none is, in real repositories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.against.git import code_of, commit_of
from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.baselines.store import Store
from pytest_ddpperf.metrics.scaling import with_efficiency
from pytest_ddpperf.metrics.table import counted_series
from pytest_ddpperf.records.counts import Counts
from pytest_ddpperf.records.measurement import Measurement, Plan
from pytest_ddpperf.records.results import BaselineRecord, PairedRevision, StoredBaseline
from pytest_ddpperf.reports.progress import LiveLine
from pytest_ddpperf.run.call.references import PairedReferences, Unpaired, side_of_baselines
from pytest_ddpperf.run.session.session import Session
from pytest_ddpperf.settings import Settings
from tests.factories import (
    git,
    make_baseline_record,
    make_counts,
    make_environment,
    make_launch,
    make_measurement,
    make_series,
    make_variant,
)

TEST = "test_it.py::test_same"
COUNTS = make_counts({}, flops=8.0)
RECORD = make_baseline_record(
    name="custom",
    strategy="custom",
    environment=make_environment(),
    plan=Plan(warmup=1, steps=4),
    series=(make_series("step_time", 0.0418),),
)
FAST, SLOW = "steps = 1\n", "steps = 9\n"


def committed(root: Path, message: str, **files: str) -> str:
    """Commits all that has changed, these Python files among it; gives the commit."""
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    git(root, "add", ".")
    git(root, "commit", "-q", "--allow-empty", "-m", message)
    return git(root, "rev-parse", "HEAD")


def repository(root: Path) -> Path:
    """A repository whose only commit has the fast code and its test."""
    root.mkdir(exist_ok=True)
    git(root, "init", "-q", "-b", "main")
    committed(root, "the code", training=FAST, test_it="")
    return root


def saved(root: Path, **fields: Any) -> BaselineRecord:
    """The baseline of what is in the work tree, stored as a session stores it."""
    head = git(root, "rev-parse", "HEAD")
    dirty = git(root, "status", "--porcelain", "--untracked-files=no") != ""
    record = replace(RECORD, **{"commit": head, "dirty": dirty, "code": code_of(root), **fields})
    Store(root / "baselines").save(TEST, [record])
    return record


def side(root: Path, *records: BaselineRecord | None, **settings: Any) -> str | Unpaired:
    """The commit to pair with, or why there is none."""
    asked = Settings(**settings)
    stored = [StoredBaseline(record=record, origin="") for record in records]
    found = side_of_baselines(TEST, stored, asked, Session(asked, root, LiveLine(None, None)))
    return found if isinstance(found, Unpaired) else str(found.revision.commit)


def git_that_also(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> Path:
    """Has git run a command of the shell first; gives the file in the folder that it may write to."""
    (folder / "bin").mkdir()
    (folder / "bin" / "git").write_text(f'#!/bin/sh\n{command}\nexec {shutil.which("git")} "$@"\n')
    (folder / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    return folder / "asked"


def of_ranks(ranks: int, seconds: float, counts: Counts | None = None) -> Measurement:
    """A point of a curve, from three launches."""
    made = tuple(make_launch(*((seconds,) * 4,) * ranks, round=number) for number in range(3))
    environment = make_environment(world_size=ranks)
    return make_measurement(name=f"weak w{ranks}", environment=environment, launches=made, counts=counts)


def pairs(
    candidates: Sequence[Measurement], references: Sequence[Measurement], new: Collection[int], **scaling: Any
) -> dict[int, set[str]]:
    """By number of ranks, the quotients that the commit of the baselines has; no baseline has the ``new`` points."""
    stored = tuple(
        StoredBaseline(record=None, origin="")
        if one.world_size in new
        else StoredBaseline(record=RECORD, origin="", counted=replace(RECORD, counts=COUNTS))
        for one in candidates
    )
    beside = PairedReferences(
        revision=Revision("3f2a1c0", "3f2a1c0", Path("/project")),
        variants=tuple(make_variant(one.name, environment=one.environment) for one in candidates),
        derive=partial(with_efficiency, mode="weak", base_size=1, **scaling),
        lacking={one.key: "" for one in candidates if one.world_size in new},
        baselines=stored,
    )
    others = [one for one in references if one.world_size not in new]
    known = [variant.counts for variant in beside.both_sides if variant.of_reference]
    others = [replace(one, counts=counts) for one, counts in zip(others, known, strict=True)]
    found = [
        (one, getattr(each, "pair", None))
        for one, each in zip(candidates, beside.of([*candidates, *others]), strict=True)
    ]
    return {
        one.world_size: {series.metric for series in pair.record.series}
        for one, pair in found
        if isinstance(pair, PairedRevision) and pair.record is not None
    }


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ((), {1: set(), 2: {"scaling_efficiency", "speedup"}, 4: {"scaling_efficiency", "speedup"}}),
        ((4,), {1: set(), 2: {"scaling_efficiency", "speedup"}}),
        ((1,), {2: set(), 4: set()}),  # nothing to relate them to
    ],
)
def test_a_new_benchmark_leaves_the_others_their_quotients(
    new: tuple[int, ...], expected: Mapping[int, set[str]]
) -> None:
    curve = [of_ranks(1, 1.0), of_ranks(2, 1.1), of_ranks(4, 1.2)]
    assert pairs(curve, curve, new) == expected


def test_a_model_that_grows_is_compared_by_the_counts_of_its_baseline() -> None:
    """The baseline's commit is not counted again."""
    curve = [of_ranks(1, 1.0, COUNTS), of_ranks(2, 1.1, COUNTS)]
    uncounted = [replace(one, counts=None) for one in curve]
    assert pairs(curve, uncounted, (), grows=True) == {1: set(), 2: {"scaling_efficiency", "speedup"}}


def lacking(reason: str) -> Unpaired:
    """That the commit cannot be had."""
    return Unpaired(reason, lacking=True)


UNCHANGED = Unpaired("this checkout is the commit of the baseline, so nothing of this repository has changed")


def test_times_are_compared_with_the_commit_that_the_baseline_names(tmp_path: Path) -> None:
    """That of another benchmark of the test, which has no baseline, too; and not while nothing has changed."""
    record = saved(repository(tmp_path))
    assert side(tmp_path, record) == UNCHANGED
    (tmp_path / "training.py").write_text(SLOW)
    assert side(tmp_path, record) == record.commit, "somebody edits it"
    committed(tmp_path, "slower")
    assert side(tmp_path, record) == record.commit
    assert side(tmp_path, None, record) == record.commit


def test_a_baseline_of_uncommitted_code_is_of_the_commit_that_both_came_with(tmp_path: Path) -> None:
    """Also if its file was moved since, or has new counts beside the old times."""
    repository(tmp_path)
    (tmp_path / "training.py").write_text("steps = 2\n")
    (tmp_path / "new.py").write_text("")
    record = saved(tmp_path)
    assert record.dirty
    both = committed(tmp_path, "the code and its baseline")
    committed(tmp_path, "slower", training=SLOW)
    assert side(tmp_path, record) == both
    again = replace(record, counts=COUNTS)
    Store(tmp_path / "baselines").save(TEST, [again])
    committed(tmp_path, "counted again")
    assert side(tmp_path, again) == both
    git(tmp_path, "mv", "baselines", "kept")
    committed(tmp_path, "moved")
    assert side(tmp_path, again, baseline_dir=Path("kept")) == both


def test_a_baseline_of_uncommitted_code_that_was_edited_before_the_commit_has_none(tmp_path: Path) -> None:
    repository(tmp_path)
    (tmp_path / "training.py").write_text("steps = 2\n")
    record = saved(tmp_path)
    committed(tmp_path, "the code, edited, and the baseline", another="")
    committed(tmp_path, "the newest", training="steps = 3\n")
    assert side(tmp_path, record) == lacking(
        "the baseline was saved with uncommitted changes, and no commit has the code that was measured: commit the "
        "code, then save again"
    )


def test_a_baseline_that_was_saved_outside_of_git_says_so(tmp_path: Path) -> None:
    repository(tmp_path)
    assert side(tmp_path, saved(tmp_path, commit=None, code=None)) == lacking(
        "the baseline has no commit: save it again inside a git repository"
    )


def test_a_commit_without_the_test_does_not_serve(tmp_path: Path) -> None:
    """The test was new and not committed yet: what git does not track is no change of a checkout."""
    repository(tmp_path)
    git(tmp_path, "rm", "-q", "test_it.py")
    head = committed(tmp_path, "no test")
    (tmp_path / "test_it.py").write_text("")
    record = saved(tmp_path)
    assert (record.commit, record.dirty) == (head, False)
    assert side(tmp_path, record) == lacking(
        f"{head[:7]}, the commit of the baseline, lacks the test: commit the test, then save the baseline again"
    )
    with_test = committed(tmp_path, "the test and its baseline")
    committed(tmp_path, "slower", training=SLOW)
    assert side(tmp_path, record) == with_test


@pytest.fixture
def feature(tmp_path: Path) -> tuple[Path, BaselineRecord]:
    """A work tree on a branch that is pushed: new code, then a commit with its baseline alone; and the baseline."""
    git(tmp_path, "init", "-q", "--bare", "-b", "main", "remote")
    work = repository(tmp_path / "work")
    git(work, "remote", "add", "origin", f"file://{tmp_path}/remote")
    git(work, "checkout", "-q", "-b", "feature")
    committed(work, "the new code", training="steps = 2\n")
    record = saved(work)
    committed(work, "the baseline")
    git(work, "push", "-q", "origin", "main", "feature")
    return work, record


def fresh_clone(work: Path) -> Path:
    """A clone of the remote when the branch is deleted there, whose main branch got slower in the end."""
    committed(work, "slower", training=SLOW)
    git(work, "push", "-q", "--force", "origin", "main")
    git(work, "push", "-q", "origin", "--delete", "feature")
    git(work.parent, "clone", "-q", f"file://{work.parent}/remote", "clone")
    return work.parent / "clone"


def squash(work: Path) -> None:
    """Brings the branch to main as one commit, which is still to be made."""
    git(work, "checkout", "-q", "main")
    git(work, "merge", "-q", "--squash", "feature")


def gone(record: BaselineRecord, other: str) -> Unpaired:
    """That the commit of a baseline is gone, and the commit that added the baseline has other code."""
    assert record.commit is not None
    return lacking(
        f"{record.commit[:7]}, the commit of the baseline, is gone after a squash or a rebase, and commit {other[:7]}, "
        "which added the baseline, has other code: save the baseline again on the main branch, or compare "
        "with --ddpperf-against"
    )


def test_the_squash_of_a_branch_serves_if_it_has_the_code_that_was_measured(
    feature: tuple[Path, BaselineRecord],
) -> None:
    work, record = feature
    squash(work)
    squashed = committed(work, "squashed")
    clone = fresh_clone(work)
    assert commit_of(clone, str(record.commit)) is None
    assert side(clone, record) == squashed


def test_the_squash_of_a_branch_with_other_code_never_serves(feature: tuple[Path, BaselineRecord]) -> None:
    """Both sides would run the slow code, and agree."""
    work, record = feature
    squash(work)
    squashed = committed(work, "squashed", training=SLOW)
    assert side(fresh_clone(work), record) == gone(record, squashed)


def test_a_rebased_branch_serves_on_top_of_the_same_code(feature: tuple[Path, BaselineRecord]) -> None:
    """Its baseline is in a commit of its own, which has the code of the one before."""
    work, record = feature
    git(work, "checkout", "-q", "main")
    (work / "README.md").write_text("words\n")
    committed(work, "meanwhile")
    git(work, "cherry-pick", "main..feature")
    rebased = git(work, "rev-parse", "HEAD")
    assert side(fresh_clone(work), record) == rebased


def test_a_commit_that_is_gone_without_a_digest_is_replaced_by_none(feature: tuple[Path, BaselineRecord]) -> None:
    work, record = feature
    squash(work)
    committed(work, "squashed")
    assert side(fresh_clone(work), replace(record, code=None)) == lacking(
        f"{str(record.commit)[:7]}, the commit of the baseline, is gone after a squash or a rebase: save the baseline "
        "again on the main branch, or compare with --ddpperf-against"
    )


@pytest.fixture
def shallow(tmp_path: Path) -> tuple[Path, BaselineRecord]:
    """A clone of the newest commit, which is slower than the baseline that it has; and the baseline."""
    origin = repository(tmp_path / "origin")
    record = saved(origin)
    committed(origin, "the baseline")
    committed(origin, "slower", training=SLOW)
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", "clone")
    return tmp_path / "clone", record


def test_a_shallow_clone_names_the_commit_and_the_cure_and_fetches_nothing(
    shallow: tuple[Path, BaselineRecord],
) -> None:
    """Its oldest commit seems to have added all that it has."""
    clone, record = shallow
    assert side(clone, record) == lacking(
        f"{str(record.commit)[:7]}, the commit of the baseline, is not in this clone, which is shallow: "
        "run git fetch --unshallow (in CI: fetch-depth: 0), or give --ddpperf-recheck=fetch"
    )
    assert side(clone, replace(record, dirty=True)) == lacking(
        "the baseline was saved with uncommitted changes, and no commit has the code that was measured: "
        "this is a shallow clone: fetch the rest with git fetch --unshallow (in CI: fetch-depth: 0)"
    )
    assert commit_of(clone, str(record.commit)) is None


def test_the_commit_is_fetched_if_that_is_asked_for(shallow: tuple[Path, BaselineRecord]) -> None:
    """From the first remote that has it."""
    clone, record = shallow
    git(clone, "remote", "add", "broken", f"file://{clone.parent}/nowhere")
    assert side(clone, record, recheck="fetch") == record.commit
    assert side(clone, record) == record.commit, "it is there from now on"


def test_a_commit_that_no_remote_has_is_asked_for_once(
    shallow: tuple[Path, BaselineRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not again for each test of a session."""
    clone, record = shallow
    asked = git_that_also(tmp_path, monkeypatch, f'case "$*" in *" fetch "*) echo >> {tmp_path}/asked ;; esac')
    settings = Settings(recheck="fetch")
    session = Session(settings, clone, LiveLine(None, None))
    stored = StoredBaseline(record=replace(record, commit="b" * 40), origin="")
    for _ in range(3):
        found = side_of_baselines(TEST, [stored], settings, session)
        assert isinstance(found, Unpaired)
        assert found.reason.startswith("bbbbbbb, the commit of the baseline, is not in this clone, which is shallow")
    assert asked.read_text() == "\n"


def test_a_shallow_clone_of_the_code_that_was_measured_has_nothing_that_changed(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    record = saved(origin)
    committed(origin, "the baseline")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", "clone")
    assert side(tmp_path / "clone", record) == UNCHANGED


def test_baselines_of_several_commits_are_to_be_saved_together(tmp_path: Path) -> None:
    repository(tmp_path)
    one, other = saved(tmp_path), replace(RECORD, commit=committed(tmp_path, "another", training="steps = 2\n"))
    committed(tmp_path, "slower", training=SLOW)
    assert side(tmp_path, one, other) == lacking(
        "the baselines of this test are of several commits: save all of them in one run"
    )


def test_without_a_repository_the_folder_of_another_checkout_helps(tmp_path: Path) -> None:
    (tmp_path / "baselines").mkdir()
    assert side(tmp_path, replace(RECORD, commit="b" * 40)) == lacking(
        f"{tmp_path} is in no git repository: keep the baselines in a git repository, committed with the "
        "code, or compare with --ddpperf-against=FOLDER"
    )


def test_without_git_no_commit_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = saved(repository(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert side(tmp_path, record) == lacking("git is not installed: install git")


def test_baselines_that_lie_in_no_repository_have_the_commit_that_they_name(tmp_path: Path) -> None:
    root, folder = repository(tmp_path / "project"), tmp_path / "apart"
    record = saved(root)
    Store(folder).save(TEST, [record])
    committed(root, "slower", training=SLOW)
    assert side(root, record, baseline_dir=folder) == record.commit
    assert side(root, replace(record, commit="b" * 40), baseline_dir=folder) == lacking(
        "bbbbbbb, the commit of the baseline, is gone after a squash or a rebase: save the baseline again on the main "
        "branch, or compare with --ddpperf-against"
    )
    assert side(root, replace(record, dirty=True), baseline_dir=folder) == lacking(
        f"{folder} is in no git repository: keep the baselines in a git repository, committed with the "
        "code, or compare with --ddpperf-against=FOLDER"
    )


def test_baselines_in_a_separate_repository_are_not_mistaken_for_the_code(tmp_path: Path) -> None:
    root, folder = repository(tmp_path / "project"), tmp_path / "apart"
    record = saved(root)
    Store(folder).save(TEST, [record])
    git(folder, "init", "-q")
    committed(folder, "baselines")
    found = side(root, replace(record, dirty=True), baseline_dir=folder)
    assert isinstance(found, Unpaired)
    assert found.reason.startswith("the baseline was saved with uncommitted changes, and no commit has the code")


def test_if_git_fails_to_search_a_named_commit_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = saved(repository(tmp_path))
    committed(tmp_path, "slower", training=SLOW)
    git_that_also(tmp_path, monkeypatch, 'case "$*" in *" log "*) echo fatal: bad object >&2; exit 128 ;; esac')
    assert side(tmp_path, replace(record, dirty=True)) == lacking(
        "git cannot find the baselines' commit: bad object; commit all changes, then save the baselines again"
    )
    assert side(tmp_path, record) == record.commit


DIFFERING = StoredBaseline(record=RECORD, origin="", differs=("torch 2.11 -> 2.13",))
COUNTED = StoredBaseline(record=replace(RECORD, series=counted_series(COUNTS)), origin="")


@pytest.mark.parametrize(
    ("stored", "settings", "reason"),
    [
        pytest.param(StoredBaseline(record=None, origin=""), {}, "", id="none"),
        pytest.param(DIFFERING, {}, "", id="of another torch"),
        pytest.param(COUNTED, {}, "", id="counts alone"),
        pytest.param(StoredBaseline(record=RECORD, origin=""), {"save": "default"}, "", id="that is renewed"),
        pytest.param(StoredBaseline(record=RECORD, origin=""), {"counts": "only"}, "", id="and no times now"),
        pytest.param(StoredBaseline(record=RECORD, origin=""), {"quick": True}, "--ddpperf-quick", id="a quick run"),
        pytest.param(
            StoredBaseline(record=RECORD, origin=""), {"recheck": "false"}, "--ddpperf-recheck=false", id="not wanted"
        ),
    ],
)
def test_a_baseline_that_judges_no_times_here_needs_no_commit(
    tmp_path: Path, stored: StoredBaseline, settings: dict[str, Any], reason: str
) -> None:
    asked = Settings(**settings)
    session = Session(asked, tmp_path, LiveLine(None, None))
    assert side_of_baselines(TEST, [stored], asked, session) == Unpaired(reason)
