"""Virtual environments with given packages, kept from one bisection to the next."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_ddpperf.against.interpreter import Interpreter, other_interpreter
from pytest_ddpperf.cli.bisect.packages import Pins
from pytest_ddpperf.cli.bisect.processes import exit_status
from pytest_ddpperf.errors import DdpperfError, SettingError
from pytest_ddpperf.launch.redirection import PACKAGES

_COMPLETE, _LIST = "complete", "requirements.txt"


class PipRefused(DdpperfError):
    """Pip cannot install these packages together; the message is pip's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environments:
    """Makes environments in a folder, and finds those that are there."""

    folder: Path
    pip: Sequence[str] = ()  # further arguments of pip install
    base: bool = False  # whether environments also find the packages of this one

    def python(self, pins: Pins) -> Interpreter:
        """The interpreter of the environment with these packages, which is made where it is not there.

        Raises:
            PipRefused: pip cannot install them.
            SettingError: no environment can be made, or ranks need a package that is not among them.
        """
        place = self.folder / self._key(pins)
        self.folder.mkdir(parents=True, exist_ok=True)
        with place.with_suffix(".lock").open("wb") as lock:
            with contextlib.suppress(OSError):  # a file system without such locks, as NFS may be: nobody is kept out
                fcntl.flock(lock, fcntl.LOCK_EX)
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
            raise SettingError(
                f"--packages: {sys.executable} -m venv {place} fails, of which it says: {error}"
            ) from None
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
    """Run a command; PipRefused with its last error where it fails."""
    environ = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    with tempfile.TemporaryFile() as output:
        if exit_status(command, output, environ=environ) == 0:
            return
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    raise PipRefused(next(iter(errors or reversed(lines)), "it does not say why"))


def cache_folder() -> Path:
    """The folder of the environments of this user."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given if Path(given).is_absolute() else Path.home() / ".cache", "pytest-ddpperf", "environments")
