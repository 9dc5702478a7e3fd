from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from itertools import chain
from pathlib import Path

import pytest

from pytest_ddpperf.against.git import Checkout, checkout
from tests.factories import git

module = importlib.import_module("pytest_ddpperf.against.git")  # its package has a function of that name
SIGNER = """#!/bin/sh
case "$*" in
*--verify*) echo "gpg: Good signature" >&2; echo "[GNUPG:] GOODSIG 0" ;;
*) cat >/dev/null; echo "[GNUPG:] SIG_CREATED " >&2
   printf -- "-----BEGIN PGP SIGNATURE-----\\n\\nAA==\\n-----END PGP SIGNATURE-----\\n" ;;
esac
"""


def found(path: Path, apart_from: Path | None = None) -> Checkout:
    state = checkout(path, apart_from)
    assert state is not None
    return state


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_") or name in {*chain(*module._CI_JOBS)}]:
        monkeypatch.delenv(name)
    root = tmp_path / "repository"
    root.mkdir()
    (root / "code.py").write_text("old\n")
    for words in (("init", "-q", "-b", "trunk"), ("add", "code.py"), ("commit", "-q", "-m", "first")):
        git(root, *words)
    return root


def test_a_clean_work_tree(repository: Path) -> None:
    state = found(repository)
    assert (state.branch, state.dirty) == ("trunk", False)
    assert len(state.commit) == 40


def test_changed_code_is_dirty_and_new_files_are_not(repository: Path) -> None:
    (repository / "baseline.json").write_text("{}")
    assert not found(repository).dirty
    (repository / "code.py").write_text("new\n")
    assert found(repository).dirty


def test_what_is_set_apart_does_not_count(repository: Path) -> None:
    """Baselines that were saved are no change of the code; below a folder of the project, too."""
    project = repository / "project"
    (project / "perf *").mkdir(parents=True)
    (project / "perf *" / "a.json").write_text("{}")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "second")
    (project / "perf *" / "a.json").write_text("{ }")
    places = (project / "perf *", project / "other", repository.parent / "x")
    assert [found(project, place).dirty for place in places] == [False, True, True]

    (repository / "code.py").write_text("new\n")
    assert found(project, project / "perf *").dirty


def test_a_hook_of_git_does_not_lead_astray(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one, git takes the folder that it is run in for the whole work tree."""
    project = repository / "project"
    project.mkdir()
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    assert not found(project).dirty


def test_a_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    assert found(repository).branch is None


@pytest.mark.parametrize(
    ("commit", "environ", "branch"),
    [
        ("GITHUB_SHA", {"GITHUB_HEAD_REF": "main", "GITHUB_REF_NAME": "12/merge"}, "12/merge"),
        ("GITHUB_SHA", {"GITHUB_REF_NAME": "main"}, "main"),
        ("CI_COMMIT_SHA", {"CI_COMMIT_BRANCH": "main"}, "main"),
        ("CI_COMMIT_SHA", {"CI_MERGE_REQUEST_REF_PATH": "refs/merge-requests/1/head"}, "refs/merge-requests/1/head"),
        ("GIT_COMMIT", {"BRANCH_NAME": "PR-12"}, "PR-12"),
        ("BUILD_SOURCEVERSION", {"BUILD_SOURCEBRANCH": "refs/heads/feature/tools"}, "feature/tools"),
    ],
)
def test_a_detached_head_in_ci_is_of_the_branch_that_the_job_names(
    repository: Path, monkeypatch: pytest.MonkeyPatch, commit: str, environ: dict[str, str], branch: str
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    git(repository, "checkout", "-q", "--detach")
    monkeypatch.setenv(commit, "1" * 40)  # the job runs for another commit than is checked out
    assert found(repository).branch is None
    monkeypatch.setenv(commit, found(repository).commit)
    assert found(repository).branch == branch
    git(repository, "checkout", "-q", "trunk")
    assert found(repository).branch == "trunk"


def test_no_commit_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert checkout(tmp_path) is None
    assert checkout(tmp_path / "missing") is None


def test_no_commit_without_git(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkout(repository) is None


def test_a_work_tree_that_takes_too_long_to_look_through_is_unknown(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("git")
    (tmp_path / "git").write_text(f'#!/bin/sh\ncase "$*" in *status*) exec sleep 600 ;; esac\nexec {real} "$@"\n')
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(module, "_STATUS_SECONDS", 0.1)
    assert checkout(repository) is None


def test_the_date_of_a_commit_is_in_utc(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-01-12T01:30:00+02:00")
    git(repository, "commit", "-q", "--allow-empty", "-m", "second")
    assert found(repository).commit_date == "2026-01-11T23:30:00+00:00"


def test_a_signature_that_git_is_told_to_show_is_no_date(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "signer").write_text(SIGNER)
    (tmp_path / "signer").chmod(0o755)
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-01-12T01:30:00+02:00")
    for name, value in (
        ("gpg.format", "openpgp"),
        ("gpg.program", str(tmp_path / "signer")),
        ("log.showSignature", "true"),
    ):
        git(repository, "config", name, value)
    git(repository, "commit", "-q", "--allow-empty", "-S", "-m", "signed")
    shown = subprocess.run(["git", "show", "-s", "--format=%ct"], cwd=repository, capture_output=True, check=True)
    assert shown.stdout.startswith(b"gpg: Good signature")
    assert found(repository).commit_date == "2026-01-11T23:30:00+00:00"


@pytest.mark.parametrize("told", ["", "gpg: Good signature", "9" * 40])
def test_what_is_no_time_is_no_date(repository: Path, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    real = module.git

    def changed(folder: Path, *arguments: str, **options: float) -> str:
        return told if arguments[0] == "show" else real(folder, *arguments, **options)

    monkeypatch.setattr(module, "git", changed)
    state = found(repository)
    assert (state.branch, state.commit_date) == ("trunk", None)
