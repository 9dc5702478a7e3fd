from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pytest_ddpperf.baselines.checkout import checkout, commit, commit_date


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    (tmp_path / "code.py").write_text("old\n")
    for words in (("init", "-q", "-b", "trunk"), ("add", "code.py"), (*who, "commit", "-q", "-m", "first")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_a_clean_work_tree(repository: Path) -> None:
    found = checkout(repository)
    assert found is not None
    assert (found.branch, found.dirty) == ("trunk", False)
    assert len(found.commit) == 40
    assert commit(repository) == found.commit


def test_changed_code_is_dirty_and_new_files_are_not(repository: Path) -> None:
    (repository / "baseline.json").write_text("{}")
    found = checkout(repository)
    assert found is not None
    assert not found.dirty

    (repository / "code.py").write_text("new\n")
    found = checkout(repository)
    assert found is not None
    assert found.dirty


def test_what_is_set_apart_does_not_count(repository: Path) -> None:
    """Baselines that were saved are no change of the code; below a folder of the project, too."""
    project = repository / "project"
    (project / "perf *").mkdir(parents=True)
    (project / "perf *" / "a.json").write_text("{}")
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, "commit", "-q", "-m", "second"], cwd=repository, check=True)
    (project / "perf *" / "a.json").write_text("{ }")
    apart = [checkout(project, place) for place in (project / "perf *", project / "other", repository.parent / "x")]
    assert [found.dirty for found in apart if found is not None] == [False, True, True]

    (repository / "code.py").write_text("new\n")
    found = checkout(project, project / "perf *")
    assert found is not None
    assert found.dirty


def test_a_detached_head_has_no_branch(repository: Path) -> None:
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=repository, check=True)
    found = checkout(repository)
    assert found is not None
    assert found.branch is None


def test_no_commit_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit(tmp_path) is None
    assert commit_date(tmp_path) is None
    assert checkout(tmp_path) is None
    assert commit(tmp_path / "missing") is None


def test_no_commit_without_git(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(repository) is None


def test_the_date_of_a_commit_is_in_utc(repository: Path) -> None:
    when = {**os.environ, "GIT_COMMITTER_DATE": "2026-01-12T01:30:00+02:00"}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, "commit", "-q", "--allow-empty", "-m", "second"], cwd=repository, check=True, env=when)
    assert commit_date(repository) == "2026-01-11T23:30:00+00:00"
