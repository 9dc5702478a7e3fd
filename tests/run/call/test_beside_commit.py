"""Whole runs beside a stored baseline: its commit is measured in the same rounds, or its times say little.

No time has to be lucky: the machine of the baseline's file is 20 times as slow, and the slower code six times as slow.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.baselines.store import Store
from pytest_ddpperf.records.measurement import Series
from tests.factories import git
from tests.run.conftest import SetLoad

CODE = """
from pathlib import Path

import torch
import torch.distributed as dist


def steps(products, calls=1):
    def build(ctx):
        matrix, product = torch.ones(256, 256), torch.empty(256, 256)

        def step():
            for _ in range(products):
                torch.mm(matrix, matrix, out=product)
            for _ in range(calls):
                dist.all_reduce(torch.ones(4))
            return 1.0

        return step

    return build


def same(ctx):
    return steps(10)(ctx)


def slower(ctx):
    return steps(2)(ctx)


def fragile(ctx):
    assert not Path("newer_package").exists(), "this package is too new"
    return steps(2)(ctx)
"""
CHANGED = CODE.replace("steps(2)(ctx)", "steps(12, calls=3)(ctx)", 1).replace("    assert not", "    Path and not")
SUITE = """
import pytest
import training

pytestmark = pytest.mark.ddpperf(
    world_size=2, launches=2, steps=20, warmup=1, max_time=2, tolerance=0.5, backend="gloo", device="cpu", verify=False
)


def test_same(ddpperf):
    ddpperf.check(training.same, counts='off')


def test_slower(ddpperf):
    ddpperf.check(training.slower)


def test_fragile(ddpperf):
    ddpperf.check(training.fragile, counts='off')


def test_local(ddpperf):
    ddpperf.check(lambda ctx: training.same(ctx), counts='off')
"""


def on_a_slow_machine(series: Series) -> Series:
    if series.unit != "s":
        return series
    return replace(series, samples=tuple(20 * each for each in series.samples), value=20 * series.value)


@pytest.fixture
def project(inner: pytest.Pytester, set_load: SetLoad) -> pytest.Pytester:
    """A project whose baselines are of its last commit but one, saved on a busy and slow machine."""
    root = inner.path
    git(root, "init", "-q")
    (root / "training.py").write_text(CODE)
    (root / "test_it.py").write_text(SUITE)
    (root / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (root / ".gitignore").write_text("__pycache__\nresults.json\nnewer_package\n")
    commit(root, "the code")
    set_load(0.5)
    inner.runpytest("-q", "--ddpperf-save").assert_outcomes(passed=4)
    set_load(0.0)
    store = Store(root / "baselines")
    for content in map(store.read, store.files()):
        assert all(record.busy and not record.dirty and record.code is not None for record in content.records)
        slow = [replace(each, series=tuple(map(on_a_slow_machine, each.series))) for each in content.records]
        store.save(content.test, slow)
    commit(root, "the baselines")
    (root / "training.py").write_text(CHANGED)
    (root / "test_it.py").write_text(f"{SUITE}\n")
    (root / "newer_package").touch()
    return inner


def commit(root: Path, message: str) -> None:
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", message)


def results(root: Path) -> dict[str, dict[str, Any]]:
    found = json.loads((root / "results.json").read_text())["results"]
    return {result["test"].partition("::")[2]: result for result in found}


@pytest.mark.slow
def test_times_of_both_commits_are_compared_and_counts_with_the_stored_ones(project: pytest.Pytester) -> None:
    """Beside the stored times alone nothing would be slower: they are 20 times as long."""
    root, saved = project.path, git(project.path, "rev-parse", "--short=7", "HEAD~1")
    run = project.runpytest("--ddpperf-report=json:results.json")
    run.assert_outcomes(passed=3, failed=1)
    found = results(root)
    same, slower = found["test_same"], found["test_slower"]
    assert same["verdict"] in {"unchanged", "ok", "inconclusive", "improved"}
    assert same["metrics"]["step_time"]["change"] > -0.7, "the change is that of the code, not that of the machine"
    assert slower["verdict"] == "regressed"
    for result in (same, slower):
        assert (result["paired_with"]["revision"], result["unpaired"]) == (saved, "")
        assert result["paired_with"]["modules"]["training"]["there"].endswith("/checkout/training.py")
        assert result["metrics"]["step_time"]["paired"]
    judged = {name: (metric["verdict"], metric.get("paired", False)) for name, metric in slower["metrics"].items()}
    assert (judged["step_time"], judged["collective_calls"]) == (("regressed", True), ("regressed", False))
    assert slower["metrics"]["collective_calls"]["baseline"] == 1
    # The commit's own step does not run; of the local one both sides would run this checkout's.
    fragile, local = found["test_fragile"], found["test_local"]
    for result, words in (
        (fragile, "cannot run this test: *this package is too new*"),
        (local, "*move it to the top of the file"),
    ):
        assert result["verdict"] == "inconclusive", "the baseline was saved on a busy machine"
        assert result["paired_with"] is None
        assert not result["metrics"]["step_time"].get("paired")
        run.stdout.fnmatch_lines([f"*{words}*"])
    assert "this package is too new" in fragile["unpaired"]
    assert local["unpaired"].startswith("test_local.<locals>.<lambda> (test_it.py:")
    assert len(git(root, "worktree", "list").splitlines()) == 1
    run = project.runpytest("-q", "-k", "fragile", "--ddpperf-require-baseline")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stdout.fnmatch_lines(
        [f"*test_fragile: only gross slowdowns could fail: {saved}, the * cannot run this test: *"]
    )
