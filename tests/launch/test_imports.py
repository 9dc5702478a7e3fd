"""Import hooks of editable installs, and the files that were imported: in fresh interpreters, as ranks are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = str(Path(__file__).parents[2])
SCRIPT = """
import json, sys
sys.path[:0] = {path!r}
{before}
from pytest_ddpperf.launch.imports import project_files, redirect
from pytest_ddpperf.launch.redirection import Redirection
moved = Redirection({root!r}, {other!r})
redirect(moved)
import demo, demo.part
print(json.dumps([demo.SIDE, demo.part.SIDE, project_files(moved)]))
"""
# As setuptools writes it, cut down to what finds a package.
SETUPTOOLS = """
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path

MAPPING = {"demo": %r}
NAMESPACES = {}


class _EditableFinder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in MAPPING:
            return spec_from_file_location(fullname, Path(MAPPING[fullname], "__init__.py"))


sys.meta_path.append(_EditableFinder)
"""
# As the package editables does it, for hatch and pdm.
EDITABLES = """
import importlib.util


class RedirectingFinder:
    _redirections = {"demo": %r}

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in cls._redirections:
            return importlib.util.spec_from_file_location(fullname, cls._redirections[fullname])
"""


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """Two checkouts of a project in ``src``, which say which one they are."""
    sides = tmp_path / "here", tmp_path / "there"
    for side in sides:
        package = side / "src" / "demo"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f"SIDE = {side.name!r}\n")
        (package / "part.py").write_text(f"SIDE = {side.name!r}\n")
    return sides


def imported(sides: tuple[Path, Path], path: list[str], before: str = "") -> Any:
    here, there = sides
    code = SCRIPT.format(path=[*path, ROOT], before=before, root=str(here), other=str(there))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return json.loads(done.stdout)


def files(side: Path) -> dict[str, str]:
    return {"demo": str(side / "src/demo/__init__.py"), "demo.part": str(side / "src/demo/part.py")}


def test_a_project_on_the_path_comes_from_there(sides: tuple[Path, Path]) -> None:
    assert imported(sides, [str(sides[0] / "src")]) == ["there", "there", files(sides[1])]


def test_so_does_a_namespace_package(sides: tuple[Path, Path]) -> None:
    for side in sides:
        (side / "src/demo/__init__.py").unlink()
    code = SCRIPT.replace("demo.SIDE, ", "")
    here, there = sides
    code = code.format(path=[str(here / "src"), ROOT], before="", root=str(here), other=str(there))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert json.loads(done.stdout) == ["there", {"demo.part": str(there / "src/demo/part.py")}]


@pytest.mark.parametrize("build_backend", ["setuptools", "hatch"])
def test_so_does_one_that_an_import_hook_finds(sides: tuple[Path, Path], tmp_path: Path, build_backend: str) -> None:
    hooks = tmp_path / "site"
    (hooks / "editables").mkdir(parents=True)
    (hooks / "__editable___demo_0_1_finder.py").write_text(SETUPTOOLS % str(sides[0] / "src/demo"))
    (hooks / "editables" / "__init__.py").touch()
    (hooks / "editables" / "redirector.py").write_text(EDITABLES % str(sides[0] / "src/demo/__init__.py"))
    before = {
        "setuptools": "import __editable___demo_0_1_finder",
        "hatch": "import editables.redirector as r; sys.meta_path.append(r.RedirectingFinder)",
    }
    assert imported(sides, [str(hooks)], before[build_backend]) == ["there", "there", files(sides[1])]


def test_what_was_imported_from_here_all_the_same_is_told(sides: tuple[Path, Path]) -> None:
    before = "import demo, demo.part"
    assert imported(sides, [str(sides[0] / "src")], before) == ["here", "here", files(sides[0])]
