"""Installed copies of a checkout's packages, which ranks would import instead of the files in the checkouts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pytest_ddpperf.launch.redirection import PACKAGES, within

# PEP 610: pip, uv and others write it for an install from a folder, an archive or a repository.
ORIGIN = "direct_url.json"
LAYOUTS = ("", "src")  # the folders of a checkout that may hold its packages


def copies_of(root: str, path: Sequence[str] | None = None) -> tuple[str, ...]:
    """Returns the files and folders in site-packages that Python would import instead of the checkout's files.

    These copies were installed from the checkout, or are packages with the same name and modules from a wheel. ``path``
    is an interpreter's search path, by default this interpreter's.
    """
    path = sys.path if path is None else list(path)
    return tuple(sorted({*installed_from(root, distributions(path=path)), *namesakes(root, path)}))


def installed_from(root: str, installed: Iterable[Distribution]) -> set[str]:
    """Returns the copies that an install from ``root`` has made; editable installs make none.

    An archive in the checkout may contain another project, so its packages count only if the checkout has them, too. A
    submodule does not count, because no other checkout of the project contains it.
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
    """Returns a distribution's outermost packages, and its files outside of packages."""
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
    origin = Path(os.path.realpath(url2pathname(url.path)))
    if url.scheme != "file" or not within(str(origin), root):
        return None
    inside = [folder for folder in (origin, *origin.parents) if folder != Path(root) and within(str(folder), root)]
    return None if any((folder / ".git").exists() for folder in inside) else origin
