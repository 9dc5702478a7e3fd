"""Options of the command line, and the settings in pytest's ini file."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from _pytest.config.findpaths import load_config_dict_from_file

from pytest_ddpperf.baselines.files import require_regular
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.parsers import argument
from pytest_ddpperf.settings import KNOBS, Settings

# The files that pytest looks for, in its order.
_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")


def add_option(
    parser: argparse.ArgumentParser, name: str, parse: Callable[[object], Any], metavar: str, text: str, **more: Any
) -> None:
    """Declares an option; ``parse`` converts its value, and ``text`` is its help, with the default if there is one."""
    default = " (default: %(default)s)" if "default" in more else ""
    parser.add_argument(name, type=argument(parse), metavar=metavar, help=f"{text}{default}", **more)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Declares the option for the folder of the stored baselines, which the command gets as ``folder``."""
    default = f"{KNOBS['baseline_dir'].ini} of the ini file, else {Settings().baseline_dir}"
    text = f"folder of the stored baselines (default: {default})"
    parser.add_argument("--baselines", type=Path, metavar="DIR", help=text)


def ini_path(name: str) -> Path | None:
    """Returns the path that a setting names in pytest's ini file for the current folder; None if it is not set."""
    root, settings = project(Path.cwd())
    return root / str(settings[name]) if settings.get(name) else None


def project(folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Returns the root of the project around a folder, as pytest finds it, and pytest's settings in its ini file."""
    parents = (folder.absolute(), *folder.absolute().parents)
    for file in (parent / name for parent in parents for name in _FILES):
        if file.is_file() and (settings := _settings(file)) is not None:
            return file.parent, settings
    for file in (parent / name for name in ("pyproject.toml", "setup.py") for parent in parents):
        if file.is_file():
            return file.parent, {}
    return folder.absolute(), {}


def _settings(file: Path) -> Mapping[str, Any] | None:
    try:
        require_regular(file, most=1e7)
        found = load_config_dict_from_file(file)
    except (OSError, ValueError, AttributeError, RecursionError, pytest.UsageError, pytest.fail.Exception) as error:
        raise SettingError(f"{file} cannot be read: {' '.join(str(error).split())}; correct this file") from None
    return None if found is None else {name: getattr(value, "value", value) for name, value in found.items()}
