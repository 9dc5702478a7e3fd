"""A node has the files of a revision at the controller's path, from its own repository, and leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_ddpperf.against.node_files import check_out
from pytest_ddpperf.against.worktree import PREFIX, remove_left_over
from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.redirection import Redirection
from tests.factories import git


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Redirection:
    """The first of two commits, as the controller names it to a node that does not have it at that path."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
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


def test_the_files_are_those_of_the_commit_until_they_are_closed(wanted: Redirection, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("part", [False, True])
def test_files_go_with_their_process_or_with_a_session_of_a_later_day(wanted: Redirection, *, part: bool) -> None:
    """A node that is killed together with its guard leaves them."""
    code = (
        "import os, sys\nfrom pytest_ddpperf.against import node_files\n"
        "from pytest_ddpperf.launch.redirection import Redirection\n"
        "def die(*_): made[0]._guard.kill(); made[0]._guard.wait(); os._exit(1)\n"
        "made, real = [], node_files.Guarded\n"
        "node_files.Guarded = lambda *given: made.append(real(*given)) or made[0]\n"
        f"if {part}: node_files.Path.rename = die\n"
        "node_files.check_out(Redirection.loads(sys.argv[1])); die()\n"
    )
    subprocess.run([sys.executable, "-c", code, wanted.dumps()], check=False)
    folder = Path(wanted.target).parent
    assert (folder / ("part" if part else "checkout")).is_dir()
    os.utime(folder, (0, 0))
    remove_left_over()
    assert not folder.exists()


def test_what_a_node_lacks_is_told_with_the_cure(wanted: Redirection, tmp_path: Path) -> None:
    given = {
        f"there is no commit 0000000 in {wanted.root}; git fetch may bring it": {"revision": "0" * 40},
        f"{tmp_path} is in no git repository": {"root": str(tmp_path)},
        "cannot create a folder for its files: No such file .*; set TMPDIR": {"target": f"{tmp_path}/a/b/checkout"},
        "--ddpperf-against-setup made /e on the controller's node only: set TMPDIR": {"environment": "/e"},
        f"{wanted.target} does not exist on this node: put the checkout there on each node": {"revision": None},
        "/no/python does not exist on this node: create this environment on each node": {"python": "/no/python"},
    }
    for words, fields in given.items():
        with pytest.raises(LaunchError, match=words):
            check_out(replace(wanted, **fields))  # type: ignore[arg-type]
    assert not list(tmp_path.glob(f"{PREFIX}*"))
