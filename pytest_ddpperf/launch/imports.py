"""The ranks' side of a redirection: they search the target checkout, and report the files that they imported."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import operator
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from pytest_ddpperf.launch.redirection import Redirection, within

T = TypeVar("T")
TOOL = "pytest_ddpperf"  # both sides run this checkout's
_FINDER = re.compile(r"__editable__.*_finder")  # modules that setuptools writes, one for each editable install


@dataclass(frozen=True)
class Observed(Generic[T]):
    """A function's value on a rank, and the project's modules that the rank has imported, with their files."""

    value: T
    files: dict[str, str]


def observed(ctx: Any, redirection: Redirection, function: Callable[..., T], *args: object) -> Observed[T]:
    """Call a function on a rank and report the imported files of both checkouts."""
    value = function(ctx, *args)
    return Observed(value, project_files(redirection))


def observed_packed(ctx: Any, redirection: Redirection, packed: bytes) -> Observed[Any]:
    """Unpack a function and its arguments, with lookups of names in the target, and observe its call."""
    function, *args = pickle.loads(packed)
    return observed(ctx, redirection, function, *args)


def look_up(module: str, file: str, name: str) -> Any:
    """Import a test module of the target and return the object of this dotted name; "" means the module itself."""
    if not Path(file).is_file():
        raise LookupError(f"there is no {Path(file).name} in that revision")
    loaded = sys.modules.get(module)
    if loaded is None or getattr(loaded, "__file__", None) != file:
        loaded = _loaded(module, file)
    try:
        return operator.attrgetter(name)(loaded) if name else loaded
    except AttributeError:
        raise LookupError(f"{Path(file).name} of that revision has no {name}") from None


def _loaded(module: str, file: str) -> ModuleType:
    """Import ``file`` by the module's name where that leads to it, because it may have relative imports."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin == file:
            return importlib.import_module(module)
    spec = importlib.util.spec_from_file_location(module, file)
    if spec is None or spec.loader is None:
        raise LookupError(f"{file} is no Python module")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def redirect(redirection: Redirection) -> None:
    """Let this process import the project from the target, in whichever way the project is installed here."""
    sys.path[:] = redirection.search_path([entry for entry in sys.path if isinstance(entry, str)])
    for table in _editable_installs():
        for name, paths in table.items():
            one_path = isinstance(paths, str)
            table[name] = redirection.path(paths) if one_path else [redirection.path(path) for path in paths]
    importlib.invalidate_caches()


def _editable_installs() -> Iterator[dict[str, Any]]:
    """The tables of the import hooks of editable installs: the paths of each package."""
    for name, module in list(sys.modules.items()):
        if _FINDER.fullmatch(name):  # setuptools
            tables = [getattr(module, table, None) for table in ("MAPPING", "NAMESPACES")]
        elif name == "editables.redirector":  # hatch, pdm
            tables = [getattr(getattr(module, "RedirectingFinder", None), "_redirections", None)]
        else:
            continue
        yield from (table for table in tables if isinstance(table, dict))


def project_files(redirection: Redirection) -> dict[str, str]:
    """The imported modules of both checkouts and of the target's environment, with their files."""
    kept = (*redirection.kept, str(Path(__file__).resolve().parents[1]))
    roots = tuple(filter(None, (redirection.root, redirection.target, redirection.environment)))
    folders: dict[str, str] = {}
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not Path(file).is_absolute() or name.partition(".")[0] == TOOL:
            continue  # relative paths are made up, as that of torch.classes
        folder, base = os.path.split(file)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = str(Path(folders[folder], base))
        copied = any(within(real, copy) for copy in redirection.copies)
        if copied or (any(within(real, root) for root in roots) and not any(within(real, path) for path in kept)):
            found[name] = real
    return found
