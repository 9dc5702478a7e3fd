"""What pytest's ini file says, read without pytest: for the command line."""

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
    "pytest.toml": ("pytest",),
    ".pytest.toml": ("pytest",),
    "pytest.ini": ("pytest",),
    ".pytest.ini": ("pytest",),
    "pyproject.toml": ("tool.pytest.ini_options", "tool.pytest"),
    "tox.ini": ("pytest",),
    "setup.cfg": ("tool:pytest",),
}


def ini_value(name: str, folder: Path) -> tuple[str, Path] | None:
    """A setting of pytest, as a run in a folder would find it: in the next file upwards with a section for pytest."""
    for parent in (folder.absolute(), *folder.absolute().parents):
        for file, sections in _FILES.items():
            if (parent / file).is_file():
                settings = _settings(parent / file, sections)
                if settings is not None:
                    value = settings.get(name)
                    return None if value in (None, "") else (str(value), parent)
    return None


def _settings(file: Path, sections: tuple[str, ...]) -> Mapping[str, Any] | None:
    """The settings in the first of the sections that is there."""
    try:
        content = _toml(file, sections) if file.suffix == ".toml" else _ini(file)
    except (OSError, ValueError, configparser.Error) as error:
        raise SettingError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    return next((content[section] for section in sections if section in content), None)


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


def _ini(file: Path) -> Mapping[str, Mapping[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=False, allow_no_value=True)
    parser.read_string(file.read_text(encoding="utf-8"))
    return parser
