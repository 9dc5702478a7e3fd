"""Environments with given packages: where the folder that keeps them is on a file system without locks."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_ddpperf.cli.bisect import environments
from pytest_ddpperf.cli.bisect.environments import Environments


def test_a_file_system_without_locks_keeps_environments_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    made: list[Path] = []
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(Environments, "_make", lambda _, place, __: made.append(place))
    monkeypatch.setattr(environments, "other_interpreter", lambda python, _: python)
    python = Environments(folder=tmp_path).python({"torch": "torch==2.8"})
    assert [str(place / "bin" / "python") for place in made] == [str(python)]
