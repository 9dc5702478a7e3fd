"""Where the files of a project lie in another checkout of it. Pure; imported by controller, zygote and ranks."""

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
    """How ranks import a project from another checkout.

    Attributes:
        root: the project here.
        other: the same project elsewhere.
        kept: folders inside ``root`` that belong to the interpreter and not to the project: a virtual environment.
        python: the interpreter of the ranks; None for this one.
        first: folders that the ranks search before all others: of an environment of the other checkout's own.
        environment: the folder of that environment; None where there is none.
        copies: files and folders in site-packages that are copies of the project's: no path leads elsewhere from them.
    """

    root: str
    other: str
    kept: tuple[str, ...] = ()
    python: str | None = None
    first: tuple[str, ...] = ()
    environment: str | None = None
    copies: tuple[str, ...] = ()

    def path(self, entry: str) -> str:
        """A file or folder of the project in the other checkout; anything else as it is.

        A relative one is taken from the current folder if it is there; what is no path at all, such as the placeholder
        that setuptools puts on the search path for an editable install, is left alone.
        """
        if not Path(entry).is_absolute() and not Path(entry).exists():
            return entry
        absolute = os.path.normpath(Path.cwd() / entry)  # as written: a link in the project has its like in the other
        real = os.path.realpath(absolute)
        if any(within(place, folder) for place in (absolute, real) for folder in (*self.kept, self.other)):
            return entry
        for place, root in ((absolute, self.root), (absolute, os.path.realpath(self.root)), (real, self.root)):
            if within(place, root):
                return os.path.normpath(Path(self.other, os.path.relpath(place, root)))
        return entry

    def search_path(self, path: Sequence[str]) -> tuple[str, ...]:
        """``sys.path`` for the other checkout."""
        return (*self.first, *(self.path(entry) for entry in path if entry not in self.first))

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Environment variables for the other checkout: PYTHONPATH, which processes that ranks start go by."""
        told = dict(environ)
        if told.get("PYTHONPATH"):
            entries = told["PYTHONPATH"].split(os.pathsep)
            told["PYTHONPATH"] = os.pathsep.join(self.path(entry) if entry else entry for entry in entries)
        return told

    def dumps(self) -> str:
        """As text, for the command line of a process; ``loads`` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Redirection:
        """What was dumped."""
        told = json.loads(text)
        return cls(**{**told, **{name: tuple(told[name]) for name in ("kept", "first", "copies")}})


def within(path: str, folder: str) -> bool:
    """Whether a normal, absolute path is that of ``folder`` or of something in it."""
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def interpreter_folders(root: str) -> tuple[str, ...]:
    """The folders inside ``root`` that belong to this interpreter: a virtual environment within the project."""
    candidates = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    candidates |= {entry for entry in sys.path if Path(entry).name in PACKAGES}
    inside = (os.path.normpath(folder) for folder in candidates)
    return tuple(sorted(folder for folder in inside if folder != root and within(folder, root)))
