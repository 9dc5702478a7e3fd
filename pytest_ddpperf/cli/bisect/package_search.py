"""The search for a package: makes virtual environments, compares two of them in each probe, and names the change."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_ddpperf.against.interpreter import Interpreter, other_interpreter
from pytest_ddpperf.cli.bisect.bisector import Bisector, RunProbe
from pytest_ddpperf.cli.bisect.processes import run_probe
from pytest_ddpperf.cli.bisect.ranges import ALONE, PackageRange, Pins, packages_between, read_pins
from pytest_ddpperf.errors import DdpperfError, SettingError
from pytest_ddpperf.instruments.clock import system_time as time
from pytest_ddpperf.instruments.deadlines import late
from pytest_ddpperf.launch.processes import printed_by
from pytest_ddpperf.launch.redirection import PACKAGES
from pytest_ddpperf.reports.phrases import first_of
from pytest_ddpperf.run.session.leases import Locks
from pytest_ddpperf.run.session.probe import Outcome, Probe

_COMPLETE, _LIST = "complete", "requirements.txt"
_PIP_SECONDS = 3600.0  # compilers take their time
_LOCK_SECONDS, _POLL_SECONDS = 2 * _PIP_SECONDS + 60, 0.2  # in which another process has made an environment


class PipRefused(DdpperfError):
    """Raised if pip cannot install certain packages together; the message is pip's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Environments:
    """The virtual environments in a folder, which are made when needed."""

    folder: Path
    pip: Sequence[str] = ()  # further arguments of pip install
    base: bool = False  # whether environments also find the packages of this one

    def python(self, pins: Pins) -> Interpreter:
        """Returns the interpreter of an environment with these packages; makes the environment if there is none.

        Raises PipRefused if pip cannot install the packages. Raises SettingError if the environment cannot be made, or
        if it lacks a package that ranks need.
        """
        place = self.folder / self._key(pins)
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(Locks(self.folder)) as locks:
            deadline = time.monotonic() + _LOCK_SECONDS
            while (other := locks.take([place.name])) is not None:
                if time.monotonic() >= deadline:
                    reason = f"{other} has been creating the environment {place} for {_LOCK_SECONDS:g} s"
                    cure = "end that process, or set XDG_CACHE_HOME to another folder"
                    raise late(SettingError(f"--packages: {reason}: {cure}"))
                time.sleep(_POLL_SECONDS)
            if not (place / _COMPLETE).exists():
                shutil.rmtree(place, ignore_errors=True)
                self._make(place, pins)
        try:
            return other_interpreter(str(place / "bin" / "python"), Path.cwd())
        except SettingError as error:
            cure = "list the missing package in both files of --packages, or give --base-packages"
            raise SettingError(f"{error}; {cure}") from None

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
    """Runs a command; if it fails, raises PipRefused with the last error that the command printed."""
    environ = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    try:
        status, printed = printed_by(command, _PIP_SECONDS, env=environ)
    except subprocess.TimeoutExpired as error:
        raise SettingError(f"--packages: {error}: run the command by hand to see why it hangs") from None
    if status == 0:
        return
    lines = printed.splitlines()
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    raise PipRefused(next(iter(errors or reversed(lines)), "the command gave no reason"))


def cache_folder() -> Path:
    """Returns the folder in which this user's environments are kept."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given if Path(given).is_absolute() else Path.home() / ".cache", "pytest-ddpperf", "environments")


def prepared(
    files: tuple[str, str], pip: Sequence[str], arguments: Sequence[str], *, base: bool
) -> tuple[PackageRange, RunProbe]:
    """Returns the changes of packages from one file to the other, and a function that runs probes.

    ``arguments`` are for pytest. With ``base``, probes also find the packages of this environment. Raises SettingError
    if a file cannot be read, or if pip cannot install its packages.
    """
    environments = Environments(folder=cache_folder(), pip=pip, base=base)
    old, new = (read_pins(Path(given), given) for given in files)
    if old == new:
        raise SettingError(f"--packages {' '.join(files)}: both files list the same packages; name files that differ")
    sides = []
    for given, pins in zip(files, (old, new), strict=True):
        try:
            sides.append(environments.python(pins).path)
        except PipRefused as error:  # noqa: PERF203 - two files
            raise SettingError(f"--packages {given}: pip refuses this list: {error}; see --pip-args") from None
    packages = packages_between(old, new, files, sides)

    def run(probe: Probe, against: str) -> Outcome:
        try:
            python = environments.python(packages.pins(probe.measured))
        except PipRefused as error:
            return Outcome((), {"pip": f"pip refuses: {error}"})
        reference = environments.python(packages.pins(against))
        return run_probe(replace(probe, python=python), reference.python, arguments)

    return packages, run


def conclusion(bisector: Bisector, packages: PackageRange) -> tuple[list[str], bool]:
    """Returns lines that name the responsible change or all suspects, and whether a single change is responsible.

    If other changes were made before the responsible one, a probe measures the responsible change alone.
    """
    *others, found = packages.suspects
    if others:
        changes = [packages.changes(state) for state in (*others, found)]
        return ["one of these changes makes the difference:", *(f"  {line}" for line in first_of(changes))], False
    step, text = packages.steps[int(found) - 1], packages.changes(found)
    lines = [f"{text} makes the difference"]
    if len(step) > 1:
        lines.append("  pip cannot change one of these packages alone: they need each other's versions")
    earlier = [name for before in packages.steps[: int(found) - 1] for name in before]
    if not earlier:
        return [*lines, f"  this change alone makes {packages.names[0]} worse"], True
    alone = bisector.classified(ALONE + found)
    if alone.answer == "bad":
        return [*lines, f"  this change alone makes {packages.names[0]} worse: {alone.text}".rstrip(", ")], True
    changed = ", ".join(first_of(earlier))
    if alone.answer == "good":
        told = f"  this change matters only together with changes of {changed}; alone: {alone.text}".rstrip(", ")
    else:
        told = f"  no probe shows whether this change makes a difference without changes of {changed}: {alone.text}"
    return [*lines, told], False
