"""Virtual environments with given packages, kept from one bisection to the next."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpperf.against.interpreter import Interpreter, other_interpreter
from pytest_ddpperf.cli.bisect.packages import Pins
from pytest_ddpperf.errors import DdpperfError, SettingError
from pytest_ddpperf.launch.processes import finished
from pytest_ddpperf.launch.redirection import PACKAGES
from pytest_ddpperf.run.session.leases import Locks

_COMPLETE, _LIST = "complete", "requirements.txt"
_PIP_SECONDS = 3600.0  # compilers take their time
_LOCK_SECONDS, _POLL_SECONDS = 2 * _PIP_SECONDS + 60, 0.2  # in which another process has made an environment


class PipRefused(DdpperfError):
    """The error if pip cannot install these packages together; the message is pip's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environments:
    """The virtual environments in a folder, which are made when needed."""

    folder: Path
    pip: Sequence[str] = ()  # further arguments of pip install
    base: bool = False  # whether environments also find the packages of this one

    def python(self, pins: Pins) -> Interpreter:
        """Returns the interpreter of the environment with these packages, which is made if it does not exist.

        PipRefused if pip cannot install them; SettingError if the environment cannot be made, or lacks a package for
        ranks.
        """
        place = self.folder / self._key(pins)
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(Locks(self.folder)) as locks:
            deadline = time.monotonic() + _LOCK_SECONDS
            while (other := locks.take([place.name])) is not None:
                if time.monotonic() >= deadline:
                    raise SettingError(
                        f"--packages: {other} has been creating the environment {place} for {_LOCK_SECONDS:g} s: end "
                        "that process, or set XDG_CACHE_HOME to another folder"
                    )
                time.sleep(_POLL_SECONDS)
            if not (place / _COMPLETE).exists():
                shutil.rmtree(place, ignore_errors=True)
                self._make(place, pins)
        try:
            return other_interpreter(str(place / "bin" / "python"), Path.cwd())
        except SettingError as error:
            raise SettingError(f"{error}; list it in both files of --packages, or give --base-packages") from None

    def _key(self, pins: Pins) -> str:
        base = [sys.prefix, *_own()] if self.base else []
        facts = [sys.version, sys.base_prefix, base, list(self.pip), sorted(pins.values())]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    def _make(self, place: Path, pins: Pins) -> None:
        try:
            _run([sys.executable, "-m", "venv", str(place)])
        except PipRefused as error:
            raise SettingError(f"--packages: {sys.executable} -m venv {place} fails: {error}") from None
        if self.base:
            (site,) = (place / "lib").glob("python*/site-packages")
            lines = (f"import site; site.addsitedir({entry!r})\n" for entry in _own())
            (site / "zz_base.pth").write_text("".join(lines), encoding="utf-8")
        (place / _LIST).write_text("".join(f"{line}\n" for line in pins.values()), encoding="utf-8")
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        _run([*pip, *self.pip, "-r", str(place / _LIST)])
        (place / _COMPLETE).touch()


def _own() -> list[str]:
    return [entry for entry in sys.path if Path(entry).name in PACKAGES]


def _run(command: Sequence[str]) -> None:
    """Runs a command; if it fails, raises PipRefused with its last error."""
    environ = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    with tempfile.TemporaryFile() as output:
        try:
            done = finished(command, _PIP_SECONDS, env=environ, stdout=output, stderr=subprocess.STDOUT)
        except subprocess.TimeoutExpired as error:
            raise SettingError(f"--packages: {error}: run the command by hand to see why it hangs") from None
        if done.returncode == 0:
            return
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    raise PipRefused(next(iter(errors or reversed(lines)), "it does not say why"))


def cache_folder() -> Path:
    """Returns the folder of this user's environments."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given if Path(given).is_absolute() else Path.home() / ".cache", "pytest-ddpperf", "environments")
