"""Environments with given packages: what may happen to the folder that keeps them, and to pip."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_ddpperf.cli.bisect import environments
from pytest_ddpperf.cli.bisect.environments import Environments
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.run.session.leases import Locks


def test_a_file_system_without_locks_keeps_environments_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    made: list[Path] = []
    monkeypatch.setattr(fcntl, "flock", no_locks)
    monkeypatch.setattr(Environments, "_make", lambda _, place, __: made.append(place))
    monkeypatch.setattr(environments, "other_interpreter", lambda python, _: python)
    python = Environments(folder=tmp_path).python({"torch": "torch==2.8"})
    assert [str(place / "bin" / "python") for place in made] == [str(python)]


def test_an_environment_that_another_process_makes_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins, environment, others = {"torch": "torch==2.8"}, Environments(folder=tmp_path), Locks(tmp_path)
    name = environment._key(pins)
    monkeypatch.setattr(environments, "_LOCK_SECONDS", 0.0)
    assert others.take([name]) is None
    told = rf"^--packages: .*process.* has been creating the environment {tmp_path / name} for 0 s: end that "
    with pytest.raises(SettingError, match=told):
        environment.python(pins)
    others.close()


def test_pip_that_waits_for_ever_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "_PIP_SECONDS", 0.05)
    told = r"^--packages: .*'sleep', '600'.* timed out after 0.05 seconds: run the command by hand to see why it hangs$"
    with pytest.raises(SettingError, match=told):
        environments._run(["sleep", "600"])
