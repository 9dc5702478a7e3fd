"""Copies of a checkout's packages that are installed: ranks of both sides would import the same one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pytest_ddpperf.launch.redirection import PACKAGES, within

ORIGIN = "direct_url.json"  # PEP 610: what pip, uv and others write where they do not install from an index
LAYOUTS = ("", "src")  # where a checkout keeps its packages


def copies_of(root: str) -> tuple[str, ...]:
    """The files and folders, in site-packages, that would be imported in place of those of a checkout.

    They were installed from it, wherever it keeps them; or they look like its packages, wherever they are from: a wheel
    that another job has built, an index.
    """
    return tuple(sorted({*installed_from(root, distributions()), *namesakes(root, sys.path)}))


def installed_from(root: str, installed: Iterable[Distribution]) -> set[str]:
    """What was copied from ``root`` by installing it; nothing of editable installs.

    Of an archive that lies in the checkout, which may be anybody's, what the checkout has as well; of a repository
    within it, a submodule, nothing: it is no part of what is checked out elsewhere.

    Args:
        root: a checkout.
        installed: what to look at.
    """
    found = set()
    for one in installed:
        origin = _origin(one, os.path.realpath(root))
        if origin is not None:
            tops = (top for top in _tops(one) if origin.is_dir() or _own(root, top) is not None)
            found |= {os.path.realpath(str(one.locate_file(top))) for top in tops}
    return found


def namesakes(root: str, path: Iterable[str]) -> set[str]:
    """What looks like a package of ``root`` in a folder of ``path`` that things are installed into.

    It has the same name, and most of its modules are there too. Namespace packages are left out: others may have parts
    in them.
    """
    packages = {file.parent.name for layout in LAYOUTS for file in Path(root, layout).glob("*/__init__.py")}
    sites = {os.path.realpath(entry) for entry in path if Path(entry).name in PACKAGES}
    found = set()
    for place in (Path(site, name) for site in sites for name in packages):
        own = _own(root, place.name)
        if own is not None and (place / "__init__.py").is_file() and place.resolve() != own.resolve():
            its, mine = _modules(place), _modules(own)
            found |= {str(place)} if 2 * len(its & mine) > len(its) else set()
    return found


def _own(root: str, name: str) -> Path | None:
    """The package or module of the checkout that has this name."""
    places = (Path(root, layout, name) for layout in LAYOUTS)
    return next((place for place in places if place.exists()), None)


def _modules(package: Path) -> set[Path]:
    return {file.relative_to(package) for file in package.rglob("*.py")}


def _tops(installed: Distribution) -> set[str]:
    """The outermost packages of a distribution, and what lies in none: of a namespace only its own parts."""
    files = [file for file in installed.files or () if file.parts[0] != ".."]
    files = [file for file in files if not file.parts[0].endswith(".dist-info")]
    packages = {file.parent for file in files if file.name == "__init__.py"}
    return {str(next((one for one in reversed(file.parents) if one in packages), file)) for file in files}


def _origin(installed: Distribution, root: str) -> Path | None:
    """The folder or archive in ``root`` that was copied; None for an editable install and for all else."""
    try:
        told = json.loads(installed.read_text(ORIGIN) or "null")
        if told is None or told.get("dir_info", {}).get("editable", False):
            return None
        url = urlsplit(told["url"])
    except (ValueError, KeyError, AttributeError, OSError):
        return None  # broken metadata is none of ours to tell
    origin = Path(os.path.realpath(url2pathname(url.path)))
    if url.scheme != "file" or not within(str(origin), root):
        return None
    inside = [one for one in (origin, *origin.parents) if one != Path(root) and within(str(one), root)]
    return None if any((one / ".git").exists() for one in inside) else origin
