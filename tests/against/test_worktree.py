"""Revisions are found, checked out here and on other nodes, and gone afterwards, in small repositories."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.against import guard, worktree
from pytest_ddpperf.against.worktree import PREFIX, Revision, Worktree, check_out, remove_left_over, resolve
from pytest_ddpperf.errors import LaunchError, SettingError
from pytest_ddpperf.launch.redirection import Redirection
from tests.factories import commit_all, git

ROOT = str(Path(__file__).parents[2])
HOLDER = """
import sys, signal
sys.path.insert(0, {package!r})
from pathlib import Path
from pytest_ddpperf.against import guard, worktree
from pytest_ddpperf.against.worktree import Worktree, resolve
here = Path.cwd()
print(Worktree(resolve("HEAD", here, here)).folder, flush=True)
signal.pause()
"""


@pytest.fixture(autouse=True)
def _temporary_files_are_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits on main, the first of them tagged ``v1``."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "-q")
    for number in ("1", "2"):
        (root / "number").write_text(number)
        commit_all(root, number)
        if number == "1":
            git(root, "tag", "v1")
    return root


def checkouts(root: Path) -> int:
    """How many other work trees git knows of."""
    return len(git(root, "worktree", "list").splitlines()) - 1


def test_a_revision_is_resolved_from_tag_branch_hash_or_merge_base(repository: Path) -> None:
    first, second = git(repository, "rev-parse", "v1"), git(repository, "rev-parse", "main")
    git(repository, "checkout", "-q", "-b", "other", "v1")
    git(repository, "commit", "-q", "--allow-empty", "-m", "3")
    named = {given: resolve(given, repository, repository) for given in ("v1", "main", second[:9], "merge-base:main")}
    assert {given: one.commit for given, one in named.items()} == {
        "v1": first,
        "main": second,
        second[:9]: second,
        "merge-base:main": first,
    }
    assert named["v1"].label == f"{first[:7]} (v1)"
    assert named[second[:9]].label == second[:7]
    assert {one.root for one in named.values()} == {repository}


def shallow(repository: Path) -> Path:
    git(repository.parent, "clone", "-q", "--depth=1", repository.as_uri(), "shallow")
    return repository.parent / "shallow"


def partial_and_offline(repository: Path) -> Path:
    git(repository, "config", "uploadpack.allowFilter", "true")
    git(repository.parent, "clone", "-q", "--filter=blob:none", repository.as_uri(), "partial")
    repository.rename(repository.parent / "unreachable")
    return repository.parent / "partial"


def bare(repository: Path) -> Path:
    git(repository.parent, "clone", "-q", "--bare", str(repository), "bare")
    return repository.parent / "bare"


def linked(repository: Path) -> Path:
    git(repository, "worktree", "add", "-q", "--detach", "../linked", "main")
    return repository.parent / "linked"


def linked_to_nothing(repository: Path) -> Path:
    folder = linked(repository)
    repository.rename(repository.parent / "moved")
    return folder


def submodule(repository: Path) -> Path:
    """A project that is a submodule of another one."""
    outer = repository.parent / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "-q", "add", repository.as_uri(), "inner")
    return outer / "inner"


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (shallow, SettingError, "this is a shallow clone: fetch the rest with git fetch --unshallow"),
        (
            partial_and_offline,
            LaunchError,
            "this is a partial clone, which gets files from its remote at a checkout: fetch them with git fetch --ref",
        ),
        (
            bare,
            SettingError,
            "bare is in a bare repository, which has no files: run pytest in a work tree of this repository",
        ),
        (linked, None, ""),
        (linked_to_nothing, SettingError, "linked is a work tree of a repository that is gone or was moved, "),
        (submodule, None, ""),
    ],
)
def test_a_revision_of_any_kind_of_repository_is_checked_out_or_refused_with_its_cure(
    repository: Path, made: Callable[[Path], Path], error: type[Exception] | None, words: str
) -> None:
    folder = made(repository)
    if error is None:
        tree = Worktree(resolve("v1", folder, folder))
        assert (tree.path / "number").read_text() == "1"
        tree.close()
        return
    with pytest.raises(error) as caught:
        Worktree(resolve("v1", folder, folder))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--ddpperf-against" in str(caught.value)


def test_a_repository_of_another_user_is_refused_with_the_cure(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    cure = "project, which belongs to another user: run git config --global --add safe.dir"
    with pytest.raises(SettingError, match=cure):
        resolve("v1", repository, repository)


def test_a_folder_is_another_checkout(repository: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "-q", str(repository), "copy")
    found = resolve("../copy", repository, repository)
    assert found == Revision("../copy", git(repository, "rev-parse", "HEAD"), repository, tmp_path / "copy")
    tree = Worktree(found)
    assert tree.path == tmp_path / "copy"
    tree.close()
    assert not tree.folder.exists()
    assert (tmp_path / "copy" / "number").exists()


def test_a_part_of_this_checkout_is_none_of_another(repository: Path) -> None:
    """A folder may be called like the branch that was meant, which is not fetched."""
    (repository / "src" / "deep").mkdir(parents=True)
    for given in ("src", "src/deep", str(repository / "src")):
        with pytest.raises(
            SettingError,
            match=f"--ddpperf-against={given}: there is no such branch, tag or commit, and the folder of that name is "
            "a part of this checkout; this repository has no remote: add one with git remote add; or name",
        ):
            resolve(given, repository, repository)
    git(repository, "branch", "src", "v1")
    assert resolve("src", repository, repository).commit == git(repository, "rev-parse", "v1")


def test_a_checkout_inside_this_one_is_another(repository: Path) -> None:
    git(repository, "worktree", "add", "-q", "--detach", "trees/first", "v1")
    git(repository, "clone", "-q", ".", "copy")
    first, second = git(repository, "rev-parse", "v1"), git(repository, "rev-parse", "main")
    for given, commit in (("trees/first", first), ("copy", second)):
        assert resolve(given, repository, repository) == Revision(given, commit, repository, repository / given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "gone",
            "--ddpperf-against=gone: there is no such branch, tag, commit or folder in .*; this repository has no rem",
        ),
        ("merge-base:gone", "there is no such branch, tag or commit in .*; this repository has no remote"),
        (".", "that folder contains this checkout"),
        ("..", "that folder contains this checkout"),
        ("--help", "there is no such branch"),
    ],
)
def test_an_invalid_revision_is_refused_with_the_cure(repository: Path, given: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        resolve(given, repository, repository)


@pytest.mark.parametrize("given", ["merge-base:origin/mian", "mian"])
def test_a_mistyped_branch_of_a_shallow_clone_is_refused_with_the_branch_that_exists(
    repository: Path, tmp_path: Path, given: str
) -> None:
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repository}", "shallow")
    with pytest.raises(SettingError, match=r"there is no such branch.* in .*; did you mean (origin/)?main\?$"):
        resolve(given, tmp_path / "shallow", tmp_path)


def test_a_repository_that_git_may_not_write_is_refused_with_the_cure(repository: Path) -> None:
    (repository / ".git" / "worktrees").write_text("no folder: as if nobody might write")
    with pytest.raises(LaunchError, match=r"could not create .*; let git write into the repository"):
        Worktree(resolve("v1", repository, repository))


def test_a_shallow_clone_without_the_common_commit_is_refused_with_the_cure(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "-q", "-b", "work", "v1")
    git(repository, "commit", "-q", "--allow-empty", "-m", "3")
    git(tmp_path, "clone", "-q", "--depth=1", "--no-single-branch", f"file://{repository}", "shallow")
    with pytest.raises(SettingError, match=r"HEAD and origin/main have no common commit here; .*--unshallow"):
        resolve("merge-base:origin/main", tmp_path / "shallow", tmp_path)


def test_without_a_repository_or_git_another_checkout_is_given_by_its_folder(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(repository / ".git")
    (tmp_path / "copy").mkdir()
    with pytest.raises(SettingError, match="is in no git repository; name the folder of another checkout"):
        resolve("main", repository, repository)
    assert resolve("../copy", repository, repository) == Revision("../copy", None, repository, tmp_path / "copy")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SettingError, match="git is not installed"):
        resolve("main", repository, repository)


def test_the_checkout_exists_until_it_is_closed(repository: Path) -> None:
    (repository / "number").write_text("not committed")
    tree = Worktree(resolve("v1", repository, repository))
    assert (tree.path / "number").read_text() == "1"
    assert (repository / "number").read_text() == "not committed"
    remove_left_over()  # another session begins: this one is in use
    assert checkouts(repository) == 1
    tree.close()
    tree.close()
    assert checkouts(repository) == 0
    assert not tree.folder.exists()
    assert git(repository, "status", "--porcelain") == "M number"


def test_a_revision_that_git_cannot_check_out_leaves_no_folder(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="git cannot check out 0000000 "):
        Worktree(Revision("gone", "0" * 40, repository))
    assert not list(tmp_path.glob("ddpperf-against-*"))


def until(met: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not met() and time.monotonic() < deadline:
        time.sleep(0.02)
    return met()


def test_a_worktree_is_removed_when_its_process_ends(repository: Path) -> None:
    code = HOLDER.format(package=ROOT)
    with subprocess.Popen([sys.executable, "-c", code], cwd=repository, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        assert checkouts(repository) == 1
        holder.kill()
        assert until(lambda: not folder.exists() and checkouts(repository) == 0)


def test_a_worktree_is_removed_although_its_guard_was_killed(repository: Path) -> None:
    tree = Worktree(resolve("v1", repository, repository))
    tree._guard.kill()
    tree.close()
    assert not tree.folder.exists()
    assert checkouts(repository) == 0


def test_a_later_session_removes_the_worktree_of_a_session_that_was_killed_with_its_guard(repository: Path) -> None:
    tree = Worktree(resolve("v1", repository, repository))
    tree._guard.kill()
    tree._guard.communicate()
    assert tree.folder.exists()
    os.utime(tree.folder, (0, 0))
    later = Worktree(resolve("main", repository, repository))
    assert not tree.folder.exists()
    assert checkouts(repository) == 1
    later.close()


def test_a_guard_that_takes_long_is_shown_and_left_to_itself(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tree = Worktree(resolve("v1", repository, repository))
    monkeypatch.setattr(worktree, "_REMOVAL_SECONDS", 0.01)
    tree._guard.send_signal(signal.SIGSTOP)
    tree.close()
    shown = capfd.readouterr().err
    assert re.search(
        r"^ddpperf: Command .*guard\.py.* timed out after 0\.01 seconds; the stacks of", shown, re.MULTILINE
    )
    assert "in test_a_guard_that_takes_long" in shown
    assert tree._guard.returncode is None
    assert tree.folder.exists()
    tree._guard.send_signal(signal.SIGCONT)
    assert tree._guard.wait(20) == 0
    assert not tree.folder.exists()


def test_git_that_hangs_keeps_nothing_from_being_removed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder" / "checkout").mkdir(parents=True)
    (tmp_path / "git").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(guard, "_GIT_SECONDS", 0.1)
    told: list[str] = []
    guard.remove(tmp_path / "folder" / "checkout", repository, told.append)
    assert not (tmp_path / "folder").exists()
    (late,) = told
    assert re.fullmatch(r"Command .*'worktree', 'remove'.* timed out after 0\.\d* seconds", late)


@contextmanager
def shell(code: str, ready: Path, name: str = "/bin/sh", **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A shell that has made the file ``ready``; it is killed in the end."""
    with subprocess.Popen([name, "-c", code, str(ready)], stderr=subprocess.DEVNULL, **options) as process:
        try:
            deadline = time.monotonic() + 20
            while not ready.exists():
                assert time.monotonic() < deadline
            yield process
        finally:
            process.kill()


def test_processes_left_by_a_setup_command_are_ended_with_its_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what does not end if it is asked to."""
    monkeypatch.setattr(guard, "_TERM_SECONDS", 0.5)
    folder = tmp_path / f"{worktree.PREFIX}a"
    environ = {"VIRTUAL_ENV": str(folder / "environment"), "PATH": os.environ["PATH"]}
    stubborn = "trap '' TERM; touch $0; while :; do read nothing; done"
    with (
        subprocess.Popen(["/bin/sleep", "600"], env=environ) as command,
        shell(stubborn, tmp_path / "ready", env=environ) as other,
    ):
        guard.remove(folder / "checkout", tmp_path)
        assert [command.wait(20), other.wait(20)] == [-signal.SIGTERM, -signal.SIGKILL]


def test_a_git_that_outlives_a_killed_run_is_ended_before_its_checkout_is_removed(tmp_path: Path) -> None:
    """It would make the folder again that is removed meanwhile."""
    tree = tmp_path / f"{worktree.PREFIX}a" / "checkout"
    (tmp_path / "git").symlink_to("/bin/sh")
    makes = 'trap "exit 7" TERM; while :; do mkdir -p "$0"; done'
    with shell(makes, tree, str(tmp_path / "git")) as process:
        guard.remove(tree, tmp_path)
        assert process.wait(20) == 7
    assert not tree.parent.exists()


def test_work_trees_of_the_user_are_not_removed(repository: Path, tmp_path: Path) -> None:
    names = ("ddpperf-against-demo/checkout", "demo/checkout", "elsewhere/ddpperf-against-12345678/checkout")
    for name in names:
        git(repository, "worktree", "add", "-q", "--detach", str(tmp_path / name))
        os.utime((tmp_path / name).parent, (0, 0))
    remove_left_over()
    assert [(tmp_path / name / "number").read_text() for name in names] == ["2", "2", "2"]
    assert checkouts(repository) == 3


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of other users")


@AS_ROOT
@pytest.mark.parametrize(
    "plant",
    [os.mkfifo, lambda lock: lock.symlink_to("/dev/zero"), lambda lock: lock.write_text("1")],
    ids=["a pipe", "endless zeros", "a file"],
)
@pytest.mark.parametrize("linked", [False, True])
def test_the_folder_of_another_user_is_left_alone(
    repository: Path, tmp_path: Path, plant: Callable[[Path], object], *, linked: bool
) -> None:
    """Whoever reads the pipe waits for ever, and whoever reads the zeros runs out of memory."""
    named = tmp_path / f"{worktree.PREFIX}anothers"
    folder = tmp_path / "elsewhere" if linked else named
    folder.mkdir()
    plant(folder / "lock")
    if linked:
        named.symlink_to(folder)
    os.chown(named, 65534, 65534, follow_symlinks=False)
    os.utime(named, (0, 0), follow_symlinks=False)
    remove_left_over()
    assert folder.exists()


def test_the_time_of_a_folder_shows_that_its_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_SIGN_SECONDS", 0.01)
    os.utime(tmp_path, (0, 0))
    read, written = os.pipe()
    with os.fdopen(read) as of_run, os.fdopen(written, "w") as run:
        waiting = threading.Thread(target=guard.await_end, args=(tmp_path / "checkout", of_run))
        waiting.start()
        assert until(lambda: tmp_path.stat().st_mtime > 0)
        assert waiting.is_alive()
        run.close()
        waiting.join(20)
        assert not waiting.is_alive()


def test_without_a_folder_for_temporary_files_the_message_has_the_cure(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revision = resolve("v1", repository, repository)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(LaunchError, match=r"=v1: .*gone.*; set TMPDIR to"):
        Worktree(revision)


@pytest.fixture
def wanted(tmp_path: Path) -> Redirection:
    """The first of two commits, as the controller names it to a node that does not have it at that path."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    git(root, "init", "-q")
    git(root, "config", "core.hooksPath", "hooks")
    (root / "hooks").mkdir()
    (root / "hooks" / "post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/hook\n")
    (root / "hooks" / "post-checkout").chmod(0o755)
    (root / ".gitattributes").write_text("*.txt eol=crlf\n")
    (root / "src" / "a.txt").write_text("1\n")
    git(root, "add", ".gitattributes", "src")
    git(root, "commit", "-q", "-m", "1")
    first = git(root, "rev-parse", "HEAD")
    (root / ".gitattributes").write_text("")  # those of the commit hold
    git(root, "rm", "-q", "src/a.txt")
    git(root, "commit", "-q", "-a", "-m", "2")
    target = tmp_path / f"{PREFIX}a_folder" / "checkout"
    return Redirection(root=str(root), target=str(target), revision=first)


def test_a_node_has_the_files_of_the_commit_until_they_are_closed(wanted: Redirection, tmp_path: Path) -> None:
    root, target = Path(wanted.root), Path(wanted.target)
    before = git(root, "status", "--porcelain")
    made = check_out(wanted)
    assert made is not None
    assert (target / "src" / "a.txt").read_bytes() == b"1\r\n"
    assert sorted(path.name for path in target.iterdir()) == [".gitattributes", "src"]
    assert not (tmp_path / "hook").exists()
    assert git(root, "status", "--porcelain") == before
    assert len(git(root, "worktree", "list").splitlines()) == 1
    remove_left_over()  # another session begins: these are in use
    assert target.is_dir()
    assert check_out(wanted) is None
    made()
    assert not target.parent.exists()


def test_files_that_a_controller_has_made_on_a_shared_file_system_are_left_to_it(wanted: Redirection) -> None:
    Path(wanted.target).mkdir(parents=True)
    assert check_out(wanted) is None
    assert list(Path(wanted.target).iterdir()) == []


def test_a_folder_that_others_may_write_in_is_refused(wanted: Redirection, tmp_path: Path) -> None:
    folder = Path(wanted.target).parent
    Path(wanted.target).mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(LaunchError, match=f"{folder} is not a folder that only you own and can write to: remove it"):
        check_out(wanted)
    folder.chmod(0o700)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LaunchError, match="not a folder that only you own"):
        check_out(wanted)


@AS_ROOT
def test_the_checkout_of_another_user_is_refused(wanted: Redirection) -> None:
    """Ranks would run its code."""
    Path(wanted.target).mkdir(parents=True)
    os.chown(Path(wanted.target).parent, 65534, 65534)
    with pytest.raises(LaunchError, match="not a folder that only you own and can write to: remove it, or set TMPDIR"):
        check_out(wanted)


@pytest.mark.parametrize("part", [False, True])
def test_files_are_removed_with_their_process_or_by_a_session_of_a_later_day(
    wanted: Redirection, *, part: bool
) -> None:
    """A node that is killed together with its guard leaves them."""
    code = (
        "import os, sys\nfrom pytest_ddpperf.against import worktree\n"
        "from pytest_ddpperf.launch.redirection import Redirection\n"
        "def die(*_): made[0]._guard.kill(); made[0]._guard.wait(); os._exit(1)\n"
        "made, real = [], worktree.Guarded\n"
        "worktree.Guarded = lambda *given: made.append(real(*given)) or made[0]\n"
        f"if {part}: worktree.Path.rename = die\n"
        "worktree.check_out(Redirection.loads(sys.argv[1])); die()\n"
    )
    subprocess.run([sys.executable, "-c", code, wanted.dumps()], check=False)
    folder = Path(wanted.target).parent
    assert (folder / ("part" if part else "checkout")).is_dir()
    os.utime(folder, (0, 0))
    remove_left_over()
    assert not folder.exists()


def test_a_commit_or_folder_that_a_node_lacks_is_named_with_the_cure(wanted: Redirection, tmp_path: Path) -> None:
    given = {
        f"there is no commit 0000000 in {wanted.root}; this repository has no remote": {"revision": "0" * 40},
        f"{tmp_path} is in no git repository": {"root": str(tmp_path)},
        "cannot create a folder for checkouts: No such file .*; set TMPDIR": {"target": f"{tmp_path}/a/b/checkout"},
        "--ddpperf-against-setup made /e on the node of rank 0 only: set TMPDIR": {"environment": "/e"},
        f"{wanted.target} does not exist on this node: put the checkout there on each node": {"revision": None},
        "/no/python does not exist on this node: create that environment on each node": {"python": "/no/python"},
    }
    for words, fields in given.items():
        with pytest.raises(LaunchError, match=words):
            check_out(replace(wanted, **fields))  # type: ignore[arg-type]
    assert not list(tmp_path.glob(f"{PREFIX}*"))
