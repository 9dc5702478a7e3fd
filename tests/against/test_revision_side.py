"""The side of a revision: files that are checked out when a launch needs them, and the command that sets them up."""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_ddpperf.against import revision_side
from pytest_ddpperf.against.revision_side import RevisionSide, alike
from pytest_ddpperf.against.worktree import Revision
from pytest_ddpperf.errors import LaunchError
from tests.factories import commit_all, git

ENDED_MS = 20_000


@pytest.fixture
def revision(tmp_path: Path) -> Revision:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "a commit")
    return Revision("HEAD", git(tmp_path, "rev-parse", "HEAD").strip(), tmp_path)


def worktrees(revision: Revision) -> int:
    return len(git(revision.root, "worktree", "list").splitlines())


def test_the_first_use_checks_out_and_close_removes(revision: Revision) -> None:
    side = RevisionSide(revision, None, ())
    side.launchers.keep(1)
    assert (side.launchers.parents, worktrees(revision)) == ((), 1)
    target = Path(side.redirection.target)
    assert side.redirection is side.redirection
    assert (target.is_dir(), worktrees(revision)) == (True, 2)
    side.close()
    assert (target.is_dir(), worktrees(revision)) == (False, 1)


@pytest.mark.slow
def test_the_opposite_side_starts_like_its_side_runs_this_checkout_and_ends_with_it(
    revision: Revision, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = RevisionSide(revision, None, ())
    assert (own.opposite, own.every) == (None, (own.launchers,))
    (revision.root / "code_of_side.py").write_text("VALUE = 'committed'")
    commit_all(revision.root, "code")
    (revision.root / "code_of_side.py").write_text("VALUE = 'here'")
    monkeypatch.syspath_prepend(revision.root)
    commit = git(revision.root, "rev-parse", "HEAD").strip()
    side = RevisionSide(Revision("HEAD", commit, revision.root), None, ("json",), tests=True, opposite=True)
    assert side.opposite is not None
    there, here = (launchers[0].run(code_and_imports, world_size=1).values[0] for launchers in side.every)
    assert (there, here) == (("committed", ["json", "pytest"]), ("here", ["json", "pytest"]))
    assert len({launchers[0].pid for launchers in side.every} - {None}) == 2
    assert worktrees(revision) == 2
    side.close()
    assert [launchers[0].pid for launchers in side.every] == [None, None]
    assert worktrees(revision) == 1


def code_and_imports(_ctx: object) -> tuple[str, list[str]]:
    imports = sorted({"json", "pytest"} & sys.modules.keys())
    return importlib.import_module("code_of_side").VALUE, imports


@pytest.mark.parametrize(("setup", "lacking"), [(None, True), ("true", False)])
def test_submodules_are_lacking_unless_a_command_sees_to_them(
    revision: Revision, monkeypatch: pytest.MonkeyPatch, setup: str | None, *, lacking: bool
) -> None:
    monkeypatch.setattr(revision_side, "_with_environment", lambda plain, *_: plain)
    side = RevisionSide(revision, setup, ())
    assert not side.lacks_submodules
    Path(side.redirection.target, ".gitmodules").touch()
    assert side.lacks_submodules is lacking
    side.close()


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


def setup(command: str, folder: Path) -> str:
    return revision_side._run(["/bin/sh", "-c", command], folder, None, "it failed", ": it has to work")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[int]:
    """The reading end of the pipe ``held`` in the folder; it hangs up when nobody is left who has opened the other."""
    os.mkfifo(tmp_path / "held")
    reading = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    os.close(os.open(tmp_path / "held", os.O_WRONLY))
    yield reading
    os.close(reading)


def hung_up(pipe: int) -> bool:
    waiting = select.poll()
    waiting.register(pipe, select.POLLHUP)
    return bool(waiting.poll(ENDED_MS))


def test_the_output_of_the_setup_command_is_returned_and_quoted_if_it_fails(tmp_path: Path) -> None:
    assert setup("echo one; echo two >&2", tmp_path) == "one\ntwo\n"
    with pytest.raises(
        LaunchError, match=r"--ddpperf-against-setup: it failed with status 3: it has to work\nno compiler$"
    ):
        setup("echo no compiler; exit 3", tmp_path)


def test_ctrl_c_ends_the_processes_that_the_setup_command_started(
    tmp_path: Path, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "waiting")

    def communicate(_process: subprocess.Popen[str], _words: None, timeout: float) -> tuple[None, None]:
        del timeout
        assert (tmp_path / "waiting").read_text() == "started\n"
        signal.raise_signal(signal.SIGINT)  # here and now: one from outside may come at any place
        return None, None

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    with pytest.raises(KeyboardInterrupt):
        setup("exec 3> held; sleep 600 & echo started > waiting; wait", tmp_path)
    assert hung_up(held)


def test_the_deadline_ends_the_processes_that_the_setup_command_started(
    tmp_path: Path, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revision_side, "_SETUP_SECONDS", 0.5)
    with pytest.raises(LaunchError, match=r"--ddpperf-against-setup: it failed: it had not ended after 0.5 s; run"):
        setup("exec 3> held; sleep 600 & wait", tmp_path)
    assert hung_up(held)


def test_a_server_that_the_setup_command_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    """As a cache of compilers does, which holds what the command prints to."""
    os.mkfifo(tmp_path / "stop")
    try:
        assert setup("(read nothing < stop) & echo done", tmp_path) == "done\n"
    finally:
        (tmp_path / "stop").write_text("\n")


def test_line_endings_do_not_make_files_different(tmp_path: Path) -> None:
    """Git may check a file out with other line ends than the user's work tree has."""
    contents = {"here": b"a\r\nb\n", "there": b"a\nb\n", "other": b"a\nc\n"}
    here, there, other = (tmp_path / name for name in contents)
    for path in (here, there, other):
        path.write_bytes(contents[path.name])
    assert [alike(str(here), str(path)) for path in (there, other, tmp_path / "gone")] == [True, False, False]
