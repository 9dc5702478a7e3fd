"""A virtual environment of the other revision's own, for what has to be built or installed before its import."""

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
    """The redirection, with the Python of a new environment in ``folder`` that ``command`` has been run for.

    The environment finds what is installed here after what is installed in it. The command runs in the other checkout,
    with the environment's ``python`` and ``pip`` first on PATH.

    Raises:
        LaunchError: the environment cannot be made, or the command failed.
    """
    environment = folder / guard.ENVIRONMENT
    _run([sys.executable, "-m", "venv", str(environment)], folder, {}, "cannot make a virtual environment")
    packages = environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    if (packages / "setuptools").is_dir() and importlib.util.find_spec("setuptools") is not None:
        # Until Python 3.12 an environment brings one as old as Python is; the one installed here is what builds here.
        remove = [str(environment / "bin" / "python"), "-m", "pip", "uninstall", "-q", "-y", "setuptools"]
        _run(remove, folder, {}, "cannot use the setuptools that is installed here")
    # Last by name: hooks of editable installs in the environment itself come first.
    (packages / "zz_installed_here.pth").write_text(_installed_here(), encoding="utf-8")
    binaries = environment / "bin"
    variables = {
        **redirection.environ(os.environ),
        "PATH": os.pathsep.join((str(binaries), os.environ.get("PATH", os.defpath))),
        "VIRTUAL_ENV": str(environment),  # also what the guard knows these processes by
    }
    variables.pop("PYTHONHOME", None)
    _run(["/bin/sh", "-c", command], Path(redirection.other), variables, f"{command!r} failed")
    python = str(binaries / "python")
    search = [python, "-c", "import sys; print(*sys.path, sep=chr(10))"]
    path = _run(search, Path(redirection.other), {**variables, "PYTHONPATH": ""}, "its python does not run")
    own = (str(environment), redirection.other)
    first = tuple(entry for entry in path.splitlines() if entry and any(within(entry, place) for place in own))
    return replace(redirection, python=python, first=first, environment=str(environment))


def _installed_here() -> str:
    """A ``.pth`` file that adds this interpreter's packages, with the hooks that they bring."""
    folders = [entry for entry in sys.path if Path(entry).name in PACKAGES]
    return "".join(f"import site; site.addsitedir({folder!r})\n" for folder in folders)


def _run(command: list[str], folder: Path, variables: dict[str, str], failed: str) -> str:
    """What a command prints. One that is cut short takes along what it has started."""
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
            start_new_session=True,  # a group of its own, to be killed as one
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
        said = "\n".join(printed.splitlines()[-_SHOWN_LINES:])
        raise LaunchError(f"--ddpperf-against-setup: {failed} with status {process.returncode}\n{said}".rstrip())
    return printed
