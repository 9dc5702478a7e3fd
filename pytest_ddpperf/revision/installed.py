"""What was installed from a checkout by copying it: ranks of both sides would import the same copy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pytest_ddpperf.revision.redirection import within

ORIGIN = "direct_url.json"  # PEP 610: what pip, uv and others write where they do not install from an index


def copies_of(root: str, installed: Iterable[Distribution] | None = None) -> tuple[str, ...]:
    """The files and folders, in site-packages, of what was installed from ``root`` and is no editable install.

    Args:
        root: a checkout.
        installed: what to look at (default: all that this interpreter finds).
    """
    found = set()
    for one in distributions() if installed is None else installed:
        origin = _origin(one)
        if origin is not None and within(os.path.realpath(origin), os.path.realpath(root)):
            tops = {file.parts[0] for file in one.files or ()}
            places = (Path(str(one.locate_file(top))) for top in tops if top != ".." and not top.endswith(".dist-info"))
            found |= {os.path.realpath(place) for place in places}
    return tuple(sorted(found))


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
