"""Files that users name: regular ones, links, devices, pipes and descriptors, and folders that others hold."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from pathlib import Path

import pytest

from pytest_ddpperf.baselines import files
from pytest_ddpperf.baselines.files import STANDARD_OUTPUT, located, locked, remove_drafts, require_writable, write_file
from pytest_ddpperf.errors import BaselineError


def test_a_file_is_replaced_and_nothing_else_left(tmp_path: Path) -> None:
    """A new one has the permissions that the umask gives, and a replaced one keeps its own."""
    path = tmp_path / "a.json"
    path.touch()
    ordinary = path.stat().st_mode
    path.unlink()
    write_file(path, "old")
    assert path.stat().st_mode == ordinary
    path.chmod(0o640)
    write_file(path, "new ä\n")
    assert path.read_text(encoding="utf-8") == "new ä\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "results" / "run.json", tmp_path / "latest.json"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to("middle.json")
    (tmp_path / "middle.json").symlink_to("results/run.json")
    write_file(link, "new")
    assert link.is_symlink()
    assert (target.read_text(), link.read_text()) == ("new", "new")
    assert not target.is_symlink()
    target.unlink()
    require_writable(link)
    write_file(link, "anew")
    assert (target.read_text(), link.is_symlink()) == ("anew", True)


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    require_writable(pipe)
    with pytest.raises(OSError, match="No such device or address"):
        write_file(pipe, "nobody reads")
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(pipe, "text" * 1000)
    assert os.read(reading, 10_000) == b"text" * 1000
    os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_an_open_descriptor_is_written_at_its_end(tmp_path: Path) -> None:
    """As with pytest --ddpperf-report=json:/dev/stdout > FILE: what was printed before stays."""
    printed = tmp_path / "printed"
    with printed.open("w") as file:
        file.write("before\n")
        file.flush()
        link = tmp_path / "stdout"
        link.symlink_to(f"/proc/self/fd/{file.fileno()}")
        write_file(link, "results\n")
        assert link.is_symlink()
    assert printed.read_text() == "before\nresults\n"


def test_a_dash_is_standard_output(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    require_writable(STANDARD_OUTPUT)
    write_file(located(tmp_path, Path("-")), "results\n")
    assert capsys.readouterr().out == "results\n"
    assert located(tmp_path, Path("a.json")) == tmp_path / "a.json"


def test_folders_and_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="this is a folder"):
        require_writable(tmp_path)
    first, second = tmp_path / "first", tmp_path / "second"
    first.symlink_to(second)
    second.symlink_to(first)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        require_writable(first)
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        write_file(first, "text")


def test_a_file_that_is_read_only_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write to any file
    with pytest.raises(PermissionError, match="the file is read-only"):
        require_writable(path)
    with pytest.raises(PermissionError, match="the file is read-only"):
        write_file(path, "new")
    assert path.read_text() == "old"


def test_a_file_that_cannot_be_replaced_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that is mounted into a container."""

    def busy(_: Path, __: Path) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    path = tmp_path / "a.json"
    path.write_text("a longer old text")
    monkeypatch.setattr(Path, "replace", busy)
    write_file(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_drafts_of_killed_processes_are_removed(tmp_path: Path) -> None:
    for name in (".a.json.1234abcd.tmp", ".b.json.1234abcd.tmp", "a.json"):
        (tmp_path / name).touch()
    remove_drafts(tmp_path / "a.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.json.1234abcd.tmp", "a.json"]


def test_if_a_folder_cannot_be_locked_no_other_user_can_keep_the_lock_that_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS. Any user can lock the folder of temporary files, and keeps it here."""
    temporary, stored = tmp_path / "tmp", tmp_path / "baselines"
    temporary.mkdir()
    stored.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.1)
    flock = fcntl.flock

    def refusing(descriptor: int, how: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == stored:
            raise OSError(errno.ENOLCK, "No locks available")
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", refusing)
    holder = os.open(temporary, os.O_RDONLY)
    flock(holder, fcntl.LOCK_EX)
    with locked(stored), pytest.raises(BaselineError, match="another process has locked it"), locked(stored):
        pass
    os.close(holder)


def test_a_lock_that_another_process_keeps_is_waited_for_and_then_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LOCK_SECONDS", 0.1)
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    with pytest.raises(BaselineError, match=r"another process has locked it for 0\.1 s; end that process"):  # noqa: SIM117
        with locked(tmp_path):
            pass
    os.close(holder)
    with locked(tmp_path):
        pass
