"""The side of a revision: its files are checked out when a launch first needs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_ddpperf.against.revision_side import RevisionSide
from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.errors import LaunchError


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def revision(tmp_path: Path) -> Revision:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "a commit")
    return Revision("HEAD", git(tmp_path, "rev-parse", "HEAD").strip(), tmp_path)


def worktrees(revision: Revision) -> int:
    return len(git(revision.root, "worktree", "list").splitlines())


def test_a_side_that_no_launch_needs_checks_out_nothing(revision: Revision) -> None:
    side = RevisionSide(revision, None, ())
    side.keep(1)
    assert side.ranks_parents == ()
    assert worktrees(revision) == 1
    side.close()


def test_the_first_use_checks_out_and_close_removes(revision: Revision) -> None:
    side = RevisionSide(revision, None, ())
    target = Path(side.redirection.target)
    assert side.redirection is side.redirection
    assert (target.is_dir(), worktrees(revision)) == (True, 2)
    side.close()
    assert (target.is_dir(), worktrees(revision)) == (False, 1)


def test_a_failed_checkout_is_not_tried_again(revision: Revision, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[Revision] = []

    def fails(revision: Revision) -> None:
        attempts.append(revision)
        raise LaunchError("git cannot check it out")

    monkeypatch.setattr("pytest_ddpperf.against.revision_side.Worktree", fails)
    side = RevisionSide(revision, None, ())
    side.start()
    for _ in range(2):
        with pytest.raises(LaunchError, match="git cannot check it out"):
            side.launchers.wait(1)
    assert attempts == [revision]
    side.close()
