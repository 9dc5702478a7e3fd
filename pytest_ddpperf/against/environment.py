"""A virtual environment of a revision's own, for a project that has to be built or installed."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from pytest_ddpperf.against import guard
from pytest_ddpperf.errors import LaunchError
from pytest_ddpperf.launch.redirection import PACKAGES, Redirection, within

_SHOWN_LINES = 20
_SECONDS = 3600.0  # compilers take their time


def prepared(redirection: Redirection, folder: Path, command: str) -> Redirection:
    """Make a virtual environment in ``folder``, run ``command`` in the target, and redirect ranks to its Python.

    The command finds the environment's ``python`` and ``pip`` first on PATH. Packages that are installed here can be
    imported in the environment; packages that are installed in it come first.
    """
    environment = folder / guard.ENVIRONMENT
    _run([sys.executable, "-m", "venv", str(environment)], folder, {}, "cannot make a virtual environment")
    packages = environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    if (packages / "setuptools").is_dir() and importlib.util.find_spec("setuptools") is not None:
        # Before Python 3.12 an environment brings a setuptools as old as Python; builds here use the installed one.
        remove = [str(environment / "bin" / "python"), "-m", "pip", "uninstall", "-q", "-y", "setuptools"]
        _run(remove, folder, {}, "cannot use the setuptools that is installed here")
    # The name sorts last, so import hooks of editable installs in the environment itself come first.
    (packages / "zz_installed_here.pth").write_text(_installed_here(), encoding="utf-8")
    binaries = environment / "bin"
    variables = {
        **redirection.environ(os.environ),
        "PATH": os.pathsep.join((str(binaries), os.environ.get("PATH", os.defpath))),
        "VIRTUAL_ENV": str(environment),  # the guard finds these processes by it
    }
    variables.pop("PYTHONHOME", None)
    _run(["/bin/sh", "-c", command], Path(redirection.target), variables, f"{command!r} failed")
    python = str(binaries / "python")
    search = [python, "-c", "import sys; print(*sys.path, sep=chr(10))"]
    path = _run(search, Path(redirection.target), {**variables, "PYTHONPATH": ""}, "its python does not run")
    own = (str(environment), redirection.target)
    first = tuple(entry for entry in path.splitlines() if entry and any(within(entry, folder) for folder in own))
    return replace(redirection, python=python, first=first, environment=str(environment))


def _installed_here() -> str:
    """Write a ``.pth`` file that adds this interpreter's packages, with their import hooks."""
    folders = [entry for entry in sys.path if Path(entry).name in PACKAGES]
    return "".join(f"import site; site.addsitedir({folder!r})\n" for folder in folders)


def _run(command: list[str], folder: Path, variables: dict[str, str], failed: str) -> str:
    """Run a command and return its output; an interrupted command ends with all processes that it has started."""
    try:
        with subprocess.Popen(  # noqa: S603  the user's own command
            command,
            cwd=folder,
            env=variables or None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a process group that can be killed as one
        ) as process:
            try:
                printed, _ = process.communicate(timeout=_SECONDS)
            except BaseException:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(f"--ddpperf-against-setup: {failed}: {error}") from None
    if process.returncode:
        tail = "\n".join(printed.splitlines()[-_SHOWN_LINES:])
        raise LaunchError(f"--ddpperf-against-setup: {failed} with status {process.returncode}\n{tail}".rstrip())
    return printed
