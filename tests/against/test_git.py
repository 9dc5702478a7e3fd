from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_ddpperf.against.git import Checkout, GitError, checkout, code_of, lacking, unknown
from tests.factories import commit_all, git

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


def test_changed_code_is_dirty_and_new_files_are_not(repository: Path) -> None:
    (repository / "baseline.json").write_text("{}")
    state = found(repository)
    assert (state.branch, state.dirty, len(state.commit)) == ("trunk", False, 40)
    (repository / "code.py").write_text("new\n")
    assert found(repository).dirty


def test_stored_baselines_do_not_make_a_work_tree_dirty(repository: Path) -> None:
    """Baselines that were saved are no change of the code; below a folder of the project, too."""
    project = repository / "project"
    (project / "perf *").mkdir(parents=True)
    (project / "perf *" / "a.json").write_text("{}")
    commit_all(repository, "second")
    (project / "perf *" / "a.json").write_text("{ }")
    places = (project / "perf *", project / "other", repository.parent / "x")
    assert [found(project, place).dirty for place in places] == [False, True, True]

    (repository / "code.py").write_text("new\n")
    assert found(project, project / "perf *").dirty


def test_git_variables_of_a_hook_do_not_change_the_state_of_a_work_tree(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one, git takes the folder that it is run in for the whole work tree."""
    project = repository / "project"
    project.mkdir()
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert not found(project).dirty


def test_a_detached_head_in_ci_has_the_branch_that_the_job_names(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = found(repository).commit
    monkeypatch.setenv("GITHUB_REF_NAME", "12/merge")
    monkeypatch.setenv("GITHUB_SHA", head)
    assert found(repository).branch == "trunk"
    git(repository, "checkout", "-q", "--detach")
    assert found(repository).branch == "12/merge"
    monkeypatch.setenv("GITHUB_SHA", "1" * 40)  # the job runs for another commit than is checked out
    assert found(repository).branch is None
    for commit, name, value, branch in (
        ("CI_COMMIT_SHA", "CI_COMMIT_BRANCH", "main", "main"),
        ("CI_COMMIT_SHA", "CI_MERGE_REQUEST_REF_PATH", "refs/merge-requests/1/head", "refs/merge-requests/1/head"),
        ("GIT_COMMIT", "BRANCH_NAME", "PR-12", "PR-12"),
        ("BUILD_SOURCEVERSION", "BUILD_SOURCEBRANCH", "refs/heads/feature/tools", "feature/tools"),
    ):
        with monkeypatch.context() as job:
            job.setenv(commit, head)
            job.setenv(name, value)
            assert found(repository).branch == branch


def test_no_commit_outside_of_a_repository_or_without_git(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert checkout(tmp_path) is None
    assert checkout(tmp_path / "missing") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkout(repository) is None


def test_the_state_of_a_work_tree_is_unknown_if_git_status_takes_too_long(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("git")
    (tmp_path / "git").write_text(f'#!/bin/sh\ncase "$*" in *status*) exec sleep 600 ;; esac\nexec {real} "$@"\n')
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(module, "_STATUS_SECONDS", 0.1)
    assert checkout(repository) is None
    with pytest.raises(GitError, match=r"^git status did not end within 0.1 s$"):
        module.git(repository, "-c", "color.ui=false", "status", seconds=0.1)


def test_a_remote_that_asks_for_a_password_asks_nobody(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh, told = tmp_path / "ssh", tmp_path / "told"
    terminal = "(: < /dev/tty) 2>/dev/null && echo terminal >> "
    ssh.write_text(f'#!/bin/sh\necho "$GIT_TERMINAL_PROMPT $SSH_ASKPASS_REQUIRE" > {told}\n{terminal}{told}\nexit 1\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("GIT_SSH", str(ssh))
    git(repository, "remote", "add", "origin", "ssh://localhost/nowhere")
    module.fetch(repository, "0" * 40)
    assert told.read_text() == "0 never\n"


@pytest.mark.parametrize("hanging", [["backup"], ["backup", "mirror"], []])
def test_a_remote_that_hangs_leaves_time_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: list[str]
) -> None:
    """A remote that fails at once takes none, so that the last one has all that is left."""
    now, given = 0.0, dict[str, float]()

    def answer(_: Path, verb: str, *arguments: str, seconds: float = 0.0) -> str:
        nonlocal now
        if verb == "remote":
            return "backup\nmirror\norigin"
        name = arguments[-2]
        given[name] = seconds
        if name != "origin":
            now += seconds if name in hanging else 0.0
            raise GitError(f"{name} has no such commit")
        return ""

    monkeypatch.setattr(module, "git", answer)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    module.fetch(tmp_path, "0" * 40)
    assert list(given) == ["backup", "mirror", "origin"]
    assert given["origin"] == pytest.approx(module._FETCH_SECONDS * (1 - len(hanging) / 3))


def test_a_signature_that_git_prints_with_a_commit_is_not_taken_for_its_date(
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


@pytest.mark.parametrize("told", ["", "9" * 40])
def test_a_commit_date_that_cannot_be_parsed_is_none(
    repository: Path, monkeypatch: pytest.MonkeyPatch, told: str
) -> None:
    real = module.git

    def changed(folder: Path, *arguments: str, **options: float) -> str:
        return told if arguments[0] == "show" else real(folder, *arguments, **options)

    monkeypatch.setattr(module, "git", changed)
    state = found(repository)
    assert (state.branch, state.commit_date) == ("trunk", None)


@pytest.fixture
def project(repository: Path) -> Path:
    """A repository with all kinds of files that a project has beside its code."""
    (repository / "package").mkdir()
    for name in ("package/module.py", "package/kernel.cu", "pyproject.toml", "config.yaml"):
        (repository / name).write_text(f"{name}\n")
    (repository / "README.md").write_text("words\n")
    (repository / ".gitignore").write_text("ignored*\n")
    commit_all(repository, "second")
    return repository


def test_the_code_hash_of_a_clean_work_tree_equals_the_hash_of_its_commit(project: Path) -> None:
    """In whatever folder of it one asks."""
    assert code_of(project) == code_of(project, "HEAD") == code_of(project / "package")
    assert code_of(project, "HEAD~1") != code_of(project)


def test_files_that_a_sparse_checkout_omits_count_as_committed(project: Path) -> None:
    (project / "config.yaml").unlink()
    (project / "config.yaml").symlink_to("README.md")
    git(project, "commit", "-q", "-a", "-m", "a link")
    git(project, "sparse-checkout", "set", "--no-cone", "/README.md")
    assert not (project / "package").exists()
    assert code_of(project) == code_of(project, "HEAD")


def test_files_that_are_not_code_do_not_change_the_code_hash(project: Path) -> None:
    before = code_of(project)
    folder = project / "kept" / "cpu-intel-xeon-2c-t1-gloo-w2-torch2.13"
    folder.mkdir(parents=True)
    for name in (folder / "a.json", "README.md", "run.log", "ignored.py", "notes.txt"):
        (project / name).write_text("new\n")
    assert code_of(project) == before
    commit_all(project, "words and baselines")
    assert code_of(project) == code_of(project, "HEAD") == before


def test_json_is_configuration_if_git_tracks_it(project: Path) -> None:
    """A report that a run writes is none."""
    config, before = project / "ds_config.json", code_of(project)
    config.write_text("{}\n")
    assert code_of(project) == before
    commit_all(project, "configured")
    configured = code_of(project)
    assert configured == code_of(project, "HEAD") != before
    config.write_text('{"zero": 3}\n')
    assert code_of(project) not in {configured, before}


@pytest.mark.parametrize("name", ["package/kernel.cu", "config.yaml", "package/new.py"])
def test_a_file_of_code_or_configuration_that_changes_or_comes_counts(project: Path, name: str) -> None:
    """Whether git tracks it or not."""
    before = code_of(project)
    (project / name).write_text("changed\n")
    changed = code_of(project)
    assert changed != before
    commit_all(project, "changed")
    assert code_of(project, "HEAD") == changed
    assert code_of(project, "HEAD~1") == before


def test_a_file_that_goes_or_gets_another_name_counts(project: Path) -> None:
    before = code_of(project)
    (project / "code.py").rename(project / "other.py")
    renamed = code_of(project)
    (project / "other.py").unlink()
    assert len({before, renamed, code_of(project)}) == 3


def test_names_with_spaces_and_letters_of_all_kinds_do_not_break_it(project: Path) -> None:
    for name in ("a b.py", "ä.py", "x\ny.py", "'quoted'.py"):
        (project / name).write_text("code\n")
    commit_all(project, "names")
    assert code_of(project) == code_of(project, "HEAD")


def test_links_and_submodules_do_not_break_it(project: Path) -> None:
    """Even one whose folder has the name of a file, and links to files, folders and nothing."""
    for name, target in (("link.py", "code.py"), ("folder.py", "package"), ("broken.py", "nothing")):
        (project / name).symlink_to(target)
    git(project, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", f"file://{project}", "sub.py")
    commit_all(project, "third")
    assert (project / "sub.py" / "code.py").exists()
    assert code_of(project) == code_of(project, "HEAD")
    git(project, "clone", "-q", f"file://{project}", str(project.parent / "clone"))  # without the submodule's files
    assert code_of(project.parent / "clone") == code_of(project)


def test_a_checkout_with_other_line_ends_has_the_same_code(project: Path) -> None:
    git(project.parent, "clone", "-q", "-c", "core.autocrlf=true", f"file://{project}", "clone")
    clone = project.parent / "clone"
    assert (clone / "code.py").read_bytes() == b"old\r\n"
    assert code_of(clone) == code_of(project)
    (clone / "code.py").write_bytes(b"new\r\n")
    assert code_of(clone) != code_of(project)


def test_the_advice_for_files_that_are_missing_is_to_fetch_them(repository: Path) -> None:
    missing = GitError("fatal: unable to read tree")
    assert lacking(repository, missing) == "this repository has no remote: add one with git remote add"
    git(repository, "remote", "add", "origin", ".")
    assert lacking(repository, missing) == "git fetch may bring the commit"
    for failed in ("a.bin: smudge filter lfs failed", "the remote end hung up unexpectedly"):  # both without Git LFS
        assert lacking(repository, GitError(f"fatal: {failed}")).startswith(
            "a git filter of the repository's files fails: for Git "
        )
    git(repository, "clone", "-q", "--depth=1", repository.as_uri(), "../shallow")
    shallow = repository.parent / "shallow"
    assert lacking(shallow, missing).startswith("this is a shallow clone: fetch the rest with git fetch --unshallow")
    git(repository, "init", "-q", "../empty")
    assert unknown(repository.parent / "empty", "main") == "this repository has no commit: make one with git commit"


def test_a_commit_that_is_not_there_has_no_code(repository: Path, tmp_path: Path) -> None:
    """An empty one has a digest."""
    git(repository, "rm", "-q", "code.py")
    git(repository, "commit", "-q", "-m", "nothing")
    assert code_of(repository) == code_of(repository, "HEAD")
    with pytest.raises(GitError):
        code_of(repository, "b" * 40)
    with pytest.raises(GitError, match="not a git repository"):
        code_of(tmp_path)
