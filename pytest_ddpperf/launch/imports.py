"""The ranks' side of a redirection: they search another checkout, and tell which files they have imported."""

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
TOOL = "pytest_ddpperf"  # what measures is this side's on both sides
_FINDER = re.compile(r"__editable__.*_finder")  # a module that setuptools writes for each editable install


@dataclass(frozen=True)
class Observed(Generic[T]):
    """What a function returned on a rank, and the project's modules that were imported there by then, with files."""

    value: T
    files: dict[str, str]


def observed(ctx: Any, redirection: Redirection, function: Callable[..., T], *args: object) -> Observed[T]:
    """``function(ctx, *args)``, and what this rank has imported of either checkout."""
    value = function(ctx, *args)
    return Observed(value, project_files(redirection))


def observed_theirs(ctx: Any, redirection: Redirection, packed: bytes) -> Observed[Any]:
    """As ``observed``, of a function and its arguments that are still to be loaded, with what is to be found there."""
    function, *args = pickle.loads(packed)
    return observed(ctx, redirection, function, *args)


def found_there(module: str, file: str, name: str) -> Any:
    """An object of a test module of this checkout, by its dotted name; the module itself for an empty one.

    Args:
        module: the name that the module has here as well as there.
        file: where it is.
        name: of the object in it.

    Raises:
        LookupError: there is no such file, or nothing of that name in it.
    """
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
    """The module in ``file``: by its name, where that leads there, for it may import others relatively."""
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
    """Have this process import the project from the other checkout, whichever way it is installed here."""
    sys.path[:] = redirection.search_path([entry for entry in sys.path if isinstance(entry, str)])
    for places in _editable_installs():
        for name, place in places.items():
            places[name] = (
                redirection.path(place) if isinstance(place, str) else [redirection.path(one) for one in place]
            )
    importlib.invalidate_caches()


def _editable_installs() -> Iterator[dict[str, Any]]:
    """The tables, by package, of the import hooks that editable installs have put into this process."""
    for name, module in list(sys.modules.items()):
        if _FINDER.fullmatch(name):  # setuptools
            tables = [getattr(module, table, None) for table in ("MAPPING", "NAMESPACES")]
        elif name == "editables.redirector":  # hatch, pdm
            tables = [getattr(getattr(module, "RedirectingFinder", None), "_redirections", None)]
        else:
            continue
        yield from (table for table in tables if isinstance(table, dict))


def project_files(redirection: Redirection) -> dict[str, str]:
    """The imported modules that are either checkout's, or of the other one's environment, and their files."""
    kept = (*redirection.kept, str(Path(__file__).resolve().parents[1]))
    roots = tuple(filter(None, (redirection.root, redirection.other, redirection.environment)))
    folders: dict[str, str] = {}
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not Path(file).is_absolute() or name.partition(".")[0] == TOOL:
            continue  # relative ones are made up: torch.classes
        folder, base = os.path.split(file)
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        real = str(Path(folders[folder], base))
        copied = any(within(real, one) for one in redirection.copies)
        if copied or (any(within(real, root) for root in roots) and not any(within(real, one) for one in kept)):
            found[name] = real
    return found
