"""Maps the paths of a project to another checkout, so that ranks import the project from that checkout."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import operator
import os
import pickle
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from pytest_ddpperf.errors import SameCode

PACKAGES = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Redirection:
    """The mapping of a project's paths to another checkout, the target, from which ranks then import the project."""

    root: str  # the project here
    target: str  # the project there
    kept: tuple[str, ...] = ()  # folders inside root that belong to the interpreter, such as a virtual environment
    python: str | None = None  # the interpreter of the ranks; None for this one
    first: tuple[str, ...] = ()  # folders of the target's own environment, which the ranks search first
    environment: str | None = None  # the folder of that environment; None if there is none
    copies: tuple[str, ...] = ()  # files and folders in site-packages that are copies of the project's
    without: tuple[str, ...] = ()  # entries of this process's search path that ranks do not get
    last: tuple[str, ...] = ()  # what ranks search last: the packages of another interpreter
    revision: str | None = None  # the commit that other nodes can check out as the target
    untracked: tuple[str, ...] = ()  # what lies in root and git does not track, relative to it

    def path(self, entry: str) -> str:
        """Maps a file or folder of the project to the target, and returns any other entry unchanged.

        A relative path starts from the current folder and must exist: some entries of ``sys.path`` are no paths.
        """
        if not Path(entry).is_absolute() and not Path(entry).exists():
            return entry
        absolute = os.path.abspath(entry)  # noqa: PTH100 - it needs no current folder, which may be gone, and keeps links, which the target has, too
        real = os.path.realpath(absolute)
        if any(within(place, folder) for place in (absolute, real) for folder in (*self.kept, self.target)):
            return entry
        for place, root in ((absolute, self.root), (absolute, os.path.realpath(self.root)), (real, self.root)):
            if within(place, root):
                return os.path.normpath(Path(self.target, os.path.relpath(place, root)))
        return entry

    def search_path(self, path: Sequence[str]) -> tuple[str, ...]:
        """Returns the entries of ``sys.path`` for ranks, with the project's paths mapped to the target."""
        others = {*self.first, *self.without, *self.last}
        return (*self.first, *(self.path(entry) for entry in path if entry not in others), *self.last)

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns ``environ`` with PYTHONPATH mapped to the target, for processes that ranks start."""
        mapped = dict(environ)
        if mapped.get("PYTHONPATH"):
            entries = mapped["PYTHONPATH"].split(os.pathsep)
            mapped["PYTHONPATH"] = os.pathsep.join(self.path(entry) if entry else entry for entry in entries)
        return mapped

    def dumps(self) -> str:
        """Returns the redirection as a short text for a command line, without the field ``untracked``."""
        return json.dumps(asdict(replace(self, untracked=())))

    @classmethod
    def loads(cls, text: str) -> Redirection:
        """Parses the text of ``dumps``."""
        fields = json.loads(text)
        return cls(**{**fields, **{name: tuple(value) for name, value in fields.items() if isinstance(value, list)}})


def within(path: str, folder: str) -> bool:
    """Returns whether a normalised, absolute path is ``folder`` or lies in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


@functools.cache
def installed_folders() -> tuple[str, ...]:
    """Returns the folders of the standard library and of packages, and their real paths, all ending with a slash."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {entry for entry in sys.path if isinstance(entry, str) and Path(entry).name in PACKAGES}
    return tuple(f"{folder}/" for folder in {*folders, *map(os.path.realpath, folders)})


def interpreter_folders(root: str) -> tuple[str, ...]:
    """Returns the folders inside ``root`` that belong to this interpreter, such as a virtual environment."""
    candidates = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    candidates |= {entry for entry in sys.path if Path(entry).name in PACKAGES}
    inside = (os.path.normpath(folder) for folder in candidates)
    return tuple(sorted(folder for folder in inside if folder != root and within(folder, root)))


T = TypeVar("T")
TOOL = "pytest_ddpperf"  # reference and candidate both run this checkout's
_FINDER = re.compile(r"__editable__.*_finder")  # modules that setuptools writes, one for each editable install


def observed(
    ctx: Any, redirection: Redirection, revision: str, function: Callable[..., T], *args: object
) -> tuple[T, dict[str, str]]:
    """Calls a function on a rank; returns its value, and the files of the project's modules that the rank imported.

    ``revision``: the revision's name in reports; empty for this checkout. Raises SameCode if the two compared revisions
    would import a module from the same file.
    """
    load = SourceFileLoader.get_code

    def own_code(loader: SourceFileLoader, module: str) -> Any:
        _require_own(redirection, revision, module, told(os.path.realpath(loader.path)))
        return load(loader, module)

    SourceFileLoader.get_code = own_code  # type: ignore[method-assign,assignment]
    value = function(ctx, *args)
    files = project_files(redirection)
    for module, file in files.items():  # those that something else has loaded
        _require_own(redirection, revision, module, file)
    return value, files


def run_packed(ctx: Any, packed: bytes) -> Any:
    """Unpickles a ``Call`` whose functions are in the target checkout, and runs it."""
    call = pickle.loads(packed)
    return call.function(ctx, *call.arguments)


def _require_own(redirection: Redirection, revision: str, module: str, file: str) -> None:
    """Raises SameCode if the two compared revisions would import the module from the same file."""
    if revision:
        own = tuple(filter(None, (redirection.target, redirection.environment)))
        foreign = _is_of_project(redirection, file) and not any(within(file, folder) for folder in own)
    else:  # the other side would import the same copy, unless it has separate packages
        shared = redirection.environment is redirection.python is None
        foreign = shared and any(within(file, copy) for copy in redirection.copies)
    if foreign and module.partition(".")[0] != TOOL:
        why = "which is not part of that revision" if revision else "an installed copy"
        raise SameCode(
            f"the ranks of {revision or 'this checkout'} imported {module} from {file}, {why}: both sides would run "
            "the same code. Install the project with pip install -e. If that install builds on import (meson-python, "
            "scikit-build-core), install only the revision, by --ddpperf-against-setup='pip install .'"
        )


def look_up(module: str, file: str, name: str) -> Any:
    """Imports a test module of the target checkout; returns its object ``name``, or the module if ``name`` is ""."""
    file = own(file)
    if not Path(file).is_file():
        raise LookupError(f"the reference revision has no file {Path(file).name}")
    loaded = sys.modules.get(module)
    if loaded is None or getattr(loaded, "__file__", None) != file:
        loaded = _loaded(module, file)
    try:
        return operator.attrgetter(name)(loaded) if name else loaded
    except AttributeError:
        raise LookupError(f"{Path(file).name} of the reference revision has no {name}") from None


def _loaded(module: str, file: str) -> ModuleType:
    """Imports ``file`` as ``module``. If ``sys.path`` leads to ``file``, relative imports in ``file`` work."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin == file:
            return importlib.import_module(module)
    spec = importlib.util.spec_from_file_location(module, file)
    if spec is None or spec.loader is None:
        raise LookupError(f"{file} is not a Python module")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def redirect(redirection: Redirection) -> None:
    """Makes this process import the project from the target, even if the project is installed in this environment."""
    sys.path[:] = redirection.search_path([entry for entry in sys.path if isinstance(entry, str)])
    for table in _editable_installs():
        for name, paths in table.items():
            one_path = isinstance(paths, str)
            table[name] = redirection.path(paths) if one_path else [redirection.path(path) for path in paths]
    importlib.invalidate_caches()
    _moved.insert(0, redirection)


_moved: list[Redirection] = []  # redirections of this process, the last one first
_own: tuple[Redirection, ...] = ()  # some of them, which lead to the launch's folder
_get_code = SourceFileLoader.get_code


def enter(files: tuple[Redirection, ...], directory: str) -> None:
    """Makes this rank run in a copy of ``directory``, and import modules from copies of the project's files.

    ``files`` maps the project's paths to the launch's copies. Reports and debuggers show the paths of the project.
    """
    global _own  # noqa: PLW0603  a rank has one launch
    _own = files
    for each in reversed(files):
        redirect(each)
        os.environ.update(each.environ(os.environ))
        SourceFileLoader.get_code = _code_of_project  # type: ignore[method-assign,assignment]
        os.environ["PWD"] = own(directory)
    os.chdir(own(directory))


def own(path: str, *, code: bool = False) -> str:
    """Returns the path of the launch's copy of ``path``; with ``code``, the path from which ranks import ``path``."""
    moved = (each.path(path) for each in (_moved if code else _own) if path.startswith(os.sep))
    return next((new for new in moved if new != path), path)


def told(text: str) -> str:
    """Returns ``text`` with paths of the project in place of paths of the copies that ``enter`` made this rank use."""
    for each in _own:
        text = text.replace(each.target, each.root)
    return text


def _code_of_project(loader: SourceFileLoader, module: str) -> Any:
    path, first = loader.path, told(loader.path)
    with contextlib.suppress(OSError):  # the project does not have it
        if loader.path_stats(first) == loader.path_stats(path):
            loader.path = first
    try:
        return _get_code(loader, module)
    finally:
        loader.path = path


def editable_folders(root: str) -> tuple[str, ...]:
    """Returns the folders in ``root`` that contain packages of editable installs with import hooks."""
    found: dict[str, None] = {}
    for name, paths in [item for table in _editable_installs() for item in table.items()]:
        for given in [paths] if isinstance(paths, str) else paths:
            place = Path(given).parent if Path(given).name == "__init__.py" else Path(given)
            if place.stem == name and within(os.path.realpath(place), root):
                found[str(place.parent)] = None
    return tuple(found)


def _editable_installs() -> Iterator[dict[str, Any]]:
    """Yields, for each editable install with an import hook, the paths of its packages by package name."""
    for name, module in list(sys.modules.items()):
        if _FINDER.fullmatch(name):  # setuptools
            tables = [getattr(module, table, None) for table in ("MAPPING", "NAMESPACES")]
        elif name == "editables.redirector":  # hatch, pdm
            tables = [getattr(getattr(module, "RedirectingFinder", None), "_redirections", None)]
        else:
            continue
        yield from (table for table in tables if isinstance(table, dict))


def project_files(redirection: Redirection) -> dict[str, str]:
    """Returns {module: file} for imported modules in this project, the other checkout or its environment."""
    folders: dict[str, str] = {}
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not Path(file).is_absolute() or name.partition(".")[0] == TOOL:
            continue  # relative paths are made up, as for torch.classes
        folder, base = os.path.split(file)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = told(str(Path(folders[folder], base)))
        if _is_of_project(redirection, real):
            found[name] = real
    return found


def _is_of_project(redirection: Redirection, file: str) -> bool:
    kept = (*redirection.kept, str(Path(__file__).resolve().parents[1]))
    roots = tuple(filter(None, (redirection.root, redirection.target, redirection.environment)))
    inside = any(within(file, root) for root in roots) and not any(within(file, folder) for folder in kept)
    return inside or any(within(file, copy) for copy in redirection.copies)
