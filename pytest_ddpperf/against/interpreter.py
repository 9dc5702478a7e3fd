"""The interpreter of another virtual environment, and installed copies of the checkout's packages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import urlsplit

from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.processes import finished
from pytest_ddpperf.launch.redirection import PACKAGES, TOOL, interpreter_folders, within
from pytest_ddpperf.settings import KNOBS

_NEEDED = ("torch", "cloudpickle", "numpy")  # packages that ranks need there; this package comes from here
_TORCH = (2, 6)  # the oldest that this package runs on
_ANSWER_SECONDS = 60.0
_TOOL = TOOL.replace("_", "-")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """The Python of an environment, and the packages that are installed there."""

    given: str  # as the user named it
    python: str  # the absolute path; links are kept, because they lead to the environment
    tag: str  # such as cpython-311
    version: str
    prefixes: tuple[str, ...]
    path: tuple[str, ...]  # that it searches by itself
    packages: Mapping[str, str] = field(default_factory=dict)  # version by name
    lacking: tuple[str, ...] = ()  # modules that were asked for and cannot be imported there

    def folders(self, root: str) -> tuple[str, ...]:
        """Returns folders inside ``root`` that belong to this interpreter, such as its virtual environment."""
        candidates = {*self.prefixes, *(entry for entry in self.path if Path(entry).name in PACKAGES)}
        return tuple(sorted(folder for folder in candidates if folder != root and within(folder, root)))


def other_interpreter(given: str, invoked: Path, needed: Iterable[str] = ()) -> Interpreter:
    """Returns the interpreter at the path ``given``; raises SettingError if ranks cannot use this interpreter.

    A relative path starts from the folder ``invoked``. The interpreter needs the minor version of Python that runs
    here, torch, cloudpickle, numpy and the modules ``needed``.
    """
    said = f"{KNOBS['against_python'].option}={given}"
    python = os.path.abspath(invoked / Path(given).expanduser())  # noqa: PTH100 - a link is followed by resolve
    if Path(python).is_dir():
        inside = Path(python, "bin", "python")
        hint = f"give {Path(given, 'bin', 'python')}" if inside.exists() else "the folder has no bin/python"
        raise SettingError(f"{said}: expected the interpreter of a virtual environment, but this is a folder: {hint}")
    make = f"{Path(sys.executable).name} -m venv NEW"
    if not Path(python).exists():
        raise SettingError(f"{said}: there is no such file; create an environment with {make}")
    found, own = _asked(given, python, (*_NEEDED, *needed)), own_interpreter()
    if found.tag != own.tag:
        raise SettingError(
            f"{said} is Python {found.version} ({found.tag}), but pytest runs on {own.version} ({own.tag}), and both "
            f"need the same minor version; create the other environment with {make}"
        )
    if found.lacking:
        names = " ".join(found.lacking)
        raise SettingError(f"{said} lacks modules that ranks need: run {given} -m pip install {names}")
    shared = _torch_of_both(own)
    if shared is not None:
        reason = f"{said}: because of PYTHONPATH, both environments import {shared} instead of their own torch"
        raise SettingError(f"{reason}: remove {Path(shared).parents[1]} from PYTHONPATH")
    torch = found.packages.get("torch", "")
    numbers = re.match(r"(\d+)\.(\d+)", torch)
    if numbers is not None and tuple(map(int, numbers.groups())) < _TORCH:
        oldest = ".".join(map(str, _TORCH))
        raise SettingError(
            f"{said} has torch {torch}, but ranks need {oldest} or newer: run {given} -m pip install 'torch>={oldest}'"
        )
    (here, there) = (one.packages.get("cloudpickle", "") for one in (own, found))
    if here.partition(".")[0] != there.partition(".")[0]:
        raise SettingError(
            f"{said} has cloudpickle {there}, but pytest's environment has {here}, and one cannot read functions that "
            f"the other pickled: run {given} -m pip install cloudpickle=={here}"
        )
    return found


def _torch_of_both(own: Interpreter) -> str | None:
    """Returns torch's file if PYTHONPATH makes both environments import the same torch; else None."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    specs = (PathFinder.find_spec("torch", [entry]) for entry in entries if entry and entry not in own.path)
    return next((spec.origin for spec in specs if spec is not None and spec.origin is not None), None)


@cache
def own_interpreter() -> Interpreter:
    """Returns this interpreter and its packages, as a new process of this interpreter reports them."""
    return _asked(sys.executable, sys.executable, ())


def _asked(given: str, python: str, wanted: tuple[str, ...]) -> Interpreter:
    environ = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    command, problem = [python, str(Path(__file__).with_name("description.py")), *wanted], ""
    try:
        pipe = subprocess.PIPE
        done = finished(command, _ANSWER_SECONDS, env=environ, cwd="/", stdout=pipe, stderr=pipe)
        facts = json.loads(done.stdout)
        tag, lists = str(facts["tag"]), {name: tuple(each) for name, each in facts.items() if isinstance(each, list)}
        return Interpreter(given=given, python=python, **{**facts, **lists, "tag": tag})
    except OSError as error:
        problem = str(error.strerror)
    except subprocess.SubprocessError as error:
        problem = str(error)
    except (ValueError, KeyError, TypeError):
        problem = next(iter(reversed(done.stderr.strip().splitlines())), "the program does not answer")
    hint = "" if shutil.which(python) else "; it cannot be executed"
    raise SettingError(f"{KNOBS['against_python'].option}={given}: this is not a working Python 3: {problem}{hint}")


def foreign_entries(root: str) -> tuple[str, ...]:
    """Returns the entries of ``sys.path`` that belong to this environment and not to the project at ``root``."""
    kept = interpreter_folders(root)
    return tuple(
        entry
        for entry in own_interpreter().path
        if not within(os.path.realpath(entry), root) or any(within(entry, folder) for folder in kept)
    )


def differing(there: Mapping[str, str], here: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Returns the packages whose versions differ: for each, its version ``there`` and ``here``, None if it is missing.

    Packages that both environments have come first. This plugin is omitted, because all ranks use the same plugin.
    """
    pairs = {name: (there.get(name), here.get(name)) for name in sorted({*there, *here} - {_TOOL})}
    changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return dict(sorted(changed.items(), key=lambda item: None in item[1]))


# PEP 610: pip, uv and others write it for an install from a folder, an archive or a repository.
ORIGIN = "direct_url.json"
LAYOUTS = ("", "src")  # the folders of a checkout that may hold its packages


def copies_of(root: str, path: Sequence[str] | None = None) -> tuple[str, ...]:
    """Returns the files and folders in site-packages that Python would import instead of the checkout's files.

    Such files come from an install of the checkout, or from a wheel with the same packages. ``path`` is the search path
    of an interpreter (default: this interpreter's).
    """
    path = sys.path if path is None else list(path)
    return tuple(sorted({*installed_from(root, distributions(path=path)), *namesakes(root, path)}))


def installed_from(root: str, installed: Iterable[Distribution]) -> set[str]:
    """Returns the files and folders that an install from ``root`` has copied; editable installs copy none.

    An archive in ``root`` may contain another project, so its packages count only if ``root`` has the same packages.
    Installs from a git submodule do not count, because no other checkout of the project contains the submodule.
    """
    found = set()
    for distribution in installed:
        origin = _origin(distribution, os.path.realpath(root))
        if origin is not None:
            tops = (top for top in _tops(distribution) if origin.is_dir() or _own(root, top) is not None)
            found |= {os.path.realpath(str(distribution.locate_file(top))) for top in tops}
    return found


def namesakes(root: str, path: Iterable[str]) -> set[str]:
    """Returns the packages in site-packages that share their name and most modules with a package of ``root``.

    Namespace packages do not count, because they may have parts of other projects.
    """
    packages = {file.parent.name for layout in LAYOUTS for file in Path(root, layout).glob("*/__init__.py")}
    sites = {os.path.realpath(entry) for entry in path if Path(entry).name in PACKAGES}
    found = set()
    for installed in (Path(site, name) for site in sites for name in packages):
        own = _own(root, installed.name)
        if own is not None and (installed / "__init__.py").is_file() and installed.resolve() != own.resolve():
            modules = _modules(installed)
            if 2 * len(modules & _modules(own)) > len(modules):
                found.add(str(installed))
    return found


def _own(root: str, name: str) -> Path | None:
    paths = (Path(root, layout, name) for layout in LAYOUTS)
    return next((path for path in paths if path.exists()), None)


def _modules(package: Path) -> set[Path]:
    return {file.relative_to(package) for file in package.rglob("*.py")}


def _tops(installed: Distribution) -> set[str]:
    """Returns a distribution's top-level packages, and its files outside of packages."""
    files = [file for file in installed.files or () if file.parts[0] != ".."]
    files = [file for file in files if not file.parts[0].endswith(".dist-info")]
    packages = {file.parent for file in files if file.name == "__init__.py"}
    return {str(next((folder for folder in reversed(file.parents) if folder in packages), file)) for file in files}


def _origin(installed: Distribution, root: str) -> Path | None:
    """Returns the folder or archive in ``root`` that was installed as a copy; None for any other install."""
    try:
        record = json.loads(installed.read_text(ORIGIN) or "null")
        if record is None or record.get("dir_info", {}).get("editable", False):
            return None
        url = urlsplit(record["url"])
    except (ValueError, KeyError, AttributeError, OSError):
        return None  # broken metadata
    from urllib.request import url2pathname  # loads ssl

    origin = Path(os.path.realpath(url2pathname(url.path)))
    if url.scheme != "file" or not within(str(origin), root):
        return None
    inside = [folder for folder in (origin, *origin.parents) if folder != Path(root) and within(str(folder), root)]
    return None if any((folder / ".git").exists() for folder in inside) else origin
