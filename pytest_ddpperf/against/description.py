"""Prints facts about the Python interpreter that runs this file, as JSON.

This file is run as a script. It needs only the standard library, and also runs on versions of Python that this plugin
does not support. The arguments are names of modules; the output lists the modules that cannot be imported.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any


def described(wanted: list[str]) -> dict[str, Any]:
    """Returns facts about this interpreter, among them the modules in ``wanted`` that cannot be imported."""
    path = [entry for entry in sys.path[1:] if entry]
    facts: dict[str, Any] = {
        "tag": getattr(sys.implementation, "cache_tag", None),
        "version": sys.version.split()[0],
        "prefixes": [sys.prefix, sys.base_prefix],
        "path": path,
    }
    sys.path[:] = path
    try:
        from importlib.metadata import distributions
        from importlib.util import find_spec
    except ImportError:  # before Python 3.8: the tag is enough to refuse it
        return facts
    packages: dict[str, str] = {}
    for one in distributions():
        name = one.metadata["Name"]
        if name:
            packages.setdefault(re.sub(r"[-_.]+", "-", name).lower(), one.version)  # the first one is imported
    return dict(facts, packages=packages, lacking=[name for name in wanted if find_spec(name) is None])


if __name__ == "__main__":
    sys.stdout.write(json.dumps(described(sys.argv[1:])))
