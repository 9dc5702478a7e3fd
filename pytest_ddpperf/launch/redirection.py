"""The paths of a project in another checkout of it. Controller, zygote and ranks import this module."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGES = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True)
class Redirection:
    """The way in which ranks import a project from another checkout, the target."""

    root: str  # the project here
    target: str  # the project there
    kept: tuple[str, ...] = ()  # folders inside root that belong to the interpreter, such as a virtual environment
    python: str | None = None  # the interpreter of the ranks; None for this one
    first: tuple[str, ...] = ()  # folders that the ranks search first: those of the target's own environment
    environment: str | None = None  # the folder of that environment; None where there is none
    copies: tuple[str, ...] = ()  # files and folders in site-packages that are copies of the project's

    def path(self, entry: str) -> str:
        """Map a file or folder of the project to the target, and return any other entry as it is.

        A relative path counts from the current folder and has to exist there: setuptools puts placeholders on the
        search path that are no paths.
        """
        if not Path(entry).is_absolute() and not Path(entry).exists():
            return entry
        absolute = os.path.normpath(Path.cwd() / entry)  # links are kept: the target has the same ones
        real = os.path.realpath(absolute)
        if any(within(place, folder) for place in (absolute, real) for folder in (*self.kept, self.target)):
            return entry
        for place, root in ((absolute, self.root), (absolute, os.path.realpath(self.root)), (real, self.root)):
            if within(place, root):
                return os.path.normpath(Path(self.target, os.path.relpath(place, root)))
        return entry

    def search_path(self, path: Sequence[str]) -> tuple[str, ...]:
        """Map ``sys.path`` to the target."""
        return (*self.first, *(self.path(entry) for entry in path if entry not in self.first))

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Map PYTHONPATH to the target, for processes that ranks start."""
        mapped = dict(environ)
        if mapped.get("PYTHONPATH"):
            entries = mapped["PYTHONPATH"].split(os.pathsep)
            mapped["PYTHONPATH"] = os.pathsep.join(self.path(entry) if entry else entry for entry in entries)
        return mapped

    def dumps(self) -> str:
        """Write the redirection as text for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Redirection:
        """Read the text of ``dumps``."""
        fields = json.loads(text)
        return cls(**{**fields, **{name: tuple(fields[name]) for name in ("kept", "first", "copies")}})


def within(path: str, folder: str) -> bool:
    """Whether a normal, absolute path is ``folder`` or lies in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def interpreter_folders(root: str) -> tuple[str, ...]:
    """The folders inside ``root`` that belong to this interpreter, such as a virtual environment."""
    candidates = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    candidates |= {entry for entry in sys.path if Path(entry).name in PACKAGES}
    inside = (os.path.normpath(folder) for folder in candidates)
    return tuple(sorted(folder for folder in inside if folder != root and within(folder, root)))
