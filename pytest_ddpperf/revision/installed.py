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

from pytest_ddpperf.revision.redirection import PACKAGES, within

ORIGIN = "direct_url.json"  # PEP 610: what pip, uv and others write where they do not install from an index
LAYOUTS = ("", "src")  # where a checkout keeps its packages


def copies_of(root: str) -> tuple[str, ...]:
    """The files and folders, in site-packages, that would be imported in place of those of a checkout.

    They were installed from it, wherever it keeps them; or they have the names of its packages, wherever they are from:
    a wheel that another job has built, an index.
    """
    return tuple(sorted({*installed_from(root, distributions()), *namesakes(root, sys.path)}))


def installed_from(root: str, installed: Iterable[Distribution]) -> set[str]:
    """What was copied from ``root`` by installing it; nothing of editable installs.

    Args:
        root: a checkout.
        installed: what to look at.
    """
    found = set()
    for one in installed:
        origin = _origin(one)
        if origin is not None and within(os.path.realpath(origin), os.path.realpath(root)):
            tops = {file.parts[0] for file in one.files or ()}
            places = (Path(str(one.locate_file(top))) for top in tops if top != ".." and not top.endswith(".dist-info"))
            found |= {os.path.realpath(place) for place in places}
    return found


def namesakes(root: str, path: Iterable[str]) -> set[str]:
    """What has the name of a package of ``root`` in a folder of ``path`` that things are installed into.

    Namespace packages are left out: others may have parts in them.
    """
    packages = {file.parent.name for layout in LAYOUTS for file in Path(root, layout).glob("*/__init__.py")}
    sites = {os.path.realpath(entry) for entry in path if Path(entry).name in PACKAGES}
    places = (Path(site, name) for site in sites for name in packages)
    return {str(place) for place in places if (place / "__init__.py").is_file() and not _in_checkout(place, root)}


def _in_checkout(place: Path, root: str) -> bool:
    """Whether it is a link to the checkout's own."""
    return os.path.realpath(place) in {os.path.realpath(Path(root, layout, place.name)) for layout in LAYOUTS}


def _origin(installed: Distribution) -> str | None:
    """The folder or archive that was copied; None for an editable install and for what came from an index."""
    try:
        told = json.loads(installed.read_text(ORIGIN) or "null")
        if told is None or told.get("dir_info", {}).get("editable", False):
            return None
        url = urlsplit(told["url"])
    except (ValueError, KeyError, AttributeError, OSError):
        return None  # broken metadata is none of ours to tell
    return url2pathname(url.path) if url.scheme == "file" else None
