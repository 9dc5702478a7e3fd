"""The settings in pytest's ini file, read without pytest, for the command line."""

from __future__ import annotations

import configparser
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_ddpperf.errors import SettingError

# The files that pytest looks for, in its order, and the sections that hold its settings.
_FILES = {
    **dict.fromkeys(("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"), ("pytest",)),
    "pyproject.toml": ("tool.pytest.ini_options", "tool.pytest"),
    "tox.ini": ("pytest",),
    "setup.cfg": ("tool:pytest",),
}


def ini_path(name: str) -> Path | None:
    """Returns the path that a setting names in pytest's ini file for the current folder; None if it is not set."""
    root, settings = project(Path.cwd())
    return root / str(settings[name]) if settings.get(name) else None


def project(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Returns the root of the project around a folder, as pytest finds it, and pytest's settings in its ini file."""
    parents = (folder.absolute(), *folder.absolute().parents)
    for parent in parents:
        for file, sections in _FILES.items():
            if (parent / file).is_file():
                settings = _settings(parent / file, sections)
                if settings is not None:
                    return parent, settings
    for marker in ("pyproject.toml", "setup.py"):
        for parent in parents:
            if (parent / marker).is_file():
                return parent, {}
    return folder.absolute(), {}


def _settings(file: Path, sections: tuple[str, ...]) -> Mapping[str, Any] | None:
    try:
        content: Mapping[str, Mapping[str, Any]]
        if file.suffix == ".toml":
            content = _toml(file, sections)
        else:
            content = parser = configparser.ConfigParser(interpolation=None, strict=False, allow_no_value=True)
            parser.read_string(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, configparser.Error) as error:
        raise SettingError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    of_pytest = file.name.lstrip(".").startswith("pytest.")  # what is pytest's alone counts if it is empty, too
    return next((content[section] for section in sections if section in content), {} if of_pytest else None)


def _toml(file: Path, sections: tuple[str, ...]) -> dict[str, Mapping[str, Any]]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # tomli comes with pytest
    found: dict[str, Mapping[str, Any]] = {}
    for section in sections:
        table: Any = toml.loads(file.read_text(encoding="utf-8"))
        for name in section.split("."):
            table = table.get(name) if isinstance(table, dict) else None
        if isinstance(table, dict):
            found[section] = table
    return found
