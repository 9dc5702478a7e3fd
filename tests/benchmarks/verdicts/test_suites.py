"""What runs of the example suite change in their clone: on a copy of the suite, whose tests are not run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.quality.project import ROOT, RunError, environ_of
from benchmarks.verdicts.cells import PLANTED, Suite
from benchmarks.verdicts.suites import SLOWER_MODULE, SUITE, commit, plant, planted_by, touch
from pytest_ddpperf.against.git import git

TRAVELLING = """\
import pathlib, sys, cloudpickle
from perf_tests import test_language_model as tests
file = pathlib.Path("model")
if not file.exists():
    file.write_bytes(cloudpickle.dumps(tests.language_model(tests.SMALL, 8).model))
print([hook.share for hook in cloudpickle.loads(file.read_bytes())()._forward_pre_hooks.values()])
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / SUITE, tmp_path / SUITE, ignore=shutil.ignore_patterns("__pycache__"))
    git(tmp_path, "init", "-q")
    commit(tmp_path, "suite")
    return tmp_path


def test_work_is_planted_in_the_last_commit_alone_and_what_both_sides_share_is_in_the_one_before(project: Path) -> None:
    plant(project, 0.1)
    assert git(project, "diff", "--numstat", "HEAD~1") == f"1\t1\t{SUITE}/planted.py"
    assert git(project, "diff", "--name-only", "HEAD~2", "HEAD~1").splitlines() == [
        f"{SUITE}/planted.py",
        f"{SUITE}/{SLOWER_MODULE}",
    ]
    for revision, share in (("HEAD", "0.1"), ("HEAD~1", "0.0")):
        assert f"\nSHARE = {share}  #" in git(project, "show", f"{revision}:{SUITE}/planted.py")


@pytest.mark.slow
def test_a_model_that_is_sent_to_the_other_commit_has_that_commit_s_work(project: Path) -> None:
    plant(project, 0.1)
    shares = []
    for revision in ("HEAD", "HEAD~1"):
        git(project, "checkout", "-q", revision)
        shares.append(printed(project, "-c", TRAVELLING).strip())
    assert shares == ["[0.1]", "[0.0]"]


def printed(project: Path, *arguments: str) -> str:
    command, environ = [sys.executable, "-B", *arguments], environ_of((project, ROOT))
    return subprocess.run(command, cwd=project, env=environ, check=True, capture_output=True, text=True).stdout


def test_the_planted_tests_are_those_of_one_module(project: Path) -> None:
    options = ["-q", "--collect-only", "-p", "no:cacheprovider"]
    collecting = printed(project, "-m", "pytest", *options, f"{SUITE}/{SLOWER_MODULE}")
    collected = [line for line in collecting.splitlines() if "::" in line]
    assert {line.partition("::")[2] for line in collected} == {*PLANTED}
    assert planted_by(Suite("5min", slower=0.1)) == PLANTED
    assert planted_by(Suite("5min")) == ()


def test_a_suite_of_other_tests_cannot_be_planted_in(project: Path) -> None:
    (project / SUITE / SLOWER_MODULE).write_text("", encoding="utf-8")
    with pytest.raises(RunError, match=r"test_language_model\.py has no line 'from \.language_model import"):
        plant(project, 0.1)


def test_another_commit_has_a_comment_more_in_each_module(project: Path) -> None:
    touch(project)
    modules = sorted((project / SUITE).glob("*.py"))
    assert git(project, "diff", "--numstat", "HEAD~1").splitlines() == [
        f"1\t0\t{SUITE}/{module.name}" for module in modules
    ]
    assert all(module.read_text(encoding="utf-8").endswith("\n# touched\n") for module in modules)
