"""Paths in another checkout, import hooks of editable installs, and the files that were imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_ddpperf.errors import SameCode
from pytest_ddpperf.launch import redirection
from pytest_ddpperf.launch.redirection import Redirection, interpreter_folders, observed, within

MOVED = Redirection(root="/home/me/project", target="/var/x/checkout", kept=("/home/me/project/.venv",))


@pytest.mark.parametrize(
    ("entry", "there"),
    [
        ("/home/me/project", "/var/x/checkout"),
        ("/home/me/project/", "/var/x/checkout"),
        ("/home/me/project/src", "/var/x/checkout/src"),
        ("/home/me/project/perf/../src", "/var/x/checkout/src"),
        ("/home/me/project/.venv/lib/python3.11/site-packages", "/home/me/project/.venv/lib/python3.11/site-packages"),
        ("/home/me/project2/src", "/home/me/project2/src"),
        ("/home/me", "/home/me"),
        ("/var/x/checkout/src", "/var/x/checkout/src"),
        ("__editable__.demo-0.1.finder.__path_hook__", "__editable__.demo-0.1.finder.__path_hook__"),
    ],
)
def test_only_paths_within_the_project_are_redirected(entry: str, there: str) -> None:
    assert MOVED.path(entry) == there


def test_relative_paths_and_links_are_redirected_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, link = tmp_path / "project", tmp_path / "link"
    (root / "src").mkdir(parents=True)
    link.symlink_to(root)
    moved = Redirection(root=str(root), target="/other")
    monkeypatch.chdir(root)
    assert [moved.path(entry) for entry in ("", ".", "src", "absent")] == ["/other", "/other", "/other/src", "absent"]
    assert moved.path(str(link / "src")) == "/other/src"
    (root / "vendor").symlink_to(tmp_path)
    assert moved.path(str(root / "vendor")) == "/other/vendor", "the other checkout has the same link"
    assert Redirection(root=str(link), target="/other").path(str(root / "src")) == "/other/src"


def test_paths_of_another_checkout_within_the_project_are_not_redirected() -> None:
    nested = Redirection(root="/project", target="/project/old")
    assert nested.search_path(["/project/src", "/project/old/src"]) == ("/project/old/src", "/project/old/src")


def test_child_processes_of_ranks_import_from_the_redirected_paths_as_well() -> None:
    path = os.pathsep.join(("/home/me/project/src", "/opt/lib", ""))
    told = MOVED.environ({"PYTHONPATH": path, "HOME": "/home/me/project"})
    assert told == {"PYTHONPATH": os.pathsep.join(("/var/x/checkout/src", "/opt/lib", "")), "HOME": "/home/me/project"}
    assert MOVED.environ({"A": "b"}) == {"A": "b"}
    assert Redirection.loads(MOVED.dumps()) == MOVED


def test_only_environments_within_the_project_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("exec_prefix", "base_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, "/usr")
    monkeypatch.setattr(sys, "prefix", "/usr/src/app/.venv")
    monkeypatch.setattr(sys, "path", ["/usr/src/app/src", "/usr/src/app/.venv/lib/site-packages"])
    assert interpreter_folders("/usr/src/app") == ("/usr/src/app/.venv", "/usr/src/app/.venv/lib/site-packages")
    assert interpreter_folders("/usr/src/app/.venv") == ("/usr/src/app/.venv/lib/site-packages",)


def test_a_folder_is_not_within_another_one_whose_name_is_its_prefix() -> None:
    assert within("/a/b", "/a/b")
    assert within("/a/b/c", "/a/b")
    assert not within("/a/bc", "/a/b")
    assert within("/a", "/")


ROOT = str(Path(__file__).parents[2])
SCRIPT = """
import json, sys
sys.path[:0] = {path!r}
{before}
from pytest_ddpperf.launch.redirection import project_files, redirect
from pytest_ddpperf.launch.redirection import Redirection
moved = Redirection(root={root!r}, target={other!r})
redirect(moved)
import demo, demo.part
print(json.dumps([demo.SIDE, demo.part.SIDE, project_files(moved)]))
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


def imported(sides: tuple[Path, Path], path: list[str], before: str = "", script: str = SCRIPT) -> Any:
    here, there = sides
    code = script.format(path=[*path, ROOT], before=before, root=str(here), other=str(there))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    return json.loads(done.stdout)


def files(side: Path) -> dict[str, str]:
    return {"demo": str(side / "src/demo/__init__.py"), "demo.part": str(side / "src/demo/part.py")}


def test_a_project_on_the_path_is_redirected_unless_it_was_imported_before(sides: tuple[Path, Path]) -> None:
    here, there = sides
    path = [str(here / "src")]
    assert imported(sides, path) == ["there", "there", files(there)]
    assert imported(sides, path, "import demo, demo.part") == ["here", "here", files(here)]
    for side in sides:
        (side / "src/demo/__init__.py").unlink()
    part = {"demo.part": str(there / "src/demo/part.py")}
    assert imported(sides, path, script=SCRIPT.replace("demo.SIDE, ", "")) == ["there", part], "a namespace package"


def test_import_hooks_of_editable_installs_are_redirected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setuptools writes a module with two tables, and the package editables has one, for hatch and pdm."""
    here, there = "/home/me/project/src", "/var/x/checkout/src"
    setuptools: Any = SimpleNamespace(MAPPING={"demo": f"{here}/demo"}, NAMESPACES={"space": [f"{here}/space", "/opt"]})
    finder = SimpleNamespace(_redirections={"demo": f"{here}/demo/__init__.py", "other": "/opt/other.py"})
    editables: Any = SimpleNamespace(RedirectingFinder=finder)
    monkeypatch.setitem(sys.modules, "__editable___demo_0_1_finder", setuptools)
    monkeypatch.setitem(sys.modules, "editables.redirector", editables)
    monkeypatch.setattr(sys, "path", [here, "/opt"])
    monkeypatch.setattr(redirection, "_moved", [])
    redirection.redirect(MOVED)
    assert sys.path == [there, "/opt"]
    assert [setuptools.MAPPING, setuptools.NAMESPACES, finder._redirections] == [
        {"demo": f"{there}/demo"},
        {"space": [f"{there}/space", "/opt"]},
        {"demo": f"{there}/demo/__init__.py", "other": "/opt/other.py"},
    ]


@pytest.mark.parametrize(
    ("folder", "revision", "who"),
    [
        pytest.param("here", "3f2a1c0 (main)", r"3f2a1c0 \(main\)", id="a file of this checkout on the other side"),
        pytest.param("site", "3f2a1c0 (main)", r"3f2a1c0 \(main\)", id="an installed copy on the other side"),
        pytest.param("site", "", "this checkout", id="an installed copy on this side, before the other one begins"),
    ],
)
def test_a_module_that_both_sides_would_share_is_refused_at_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, revision: str, who: str
) -> None:
    copy = tmp_path / "site" / "shared_module.py"
    paths = {name: str(tmp_path / name) for name in ("here", "there")}
    moved = Redirection(root=paths["here"], target=paths["there"], copies=(str(copy),))
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "shared_module.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / folder))
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)  # is put back
    trained: list[int] = []

    def train(_: object) -> None:
        import_module("shared_module")
        trained.append(1)

    with pytest.raises(SameCode, match=f"the ranks of {who} imported shared_module from {tmp_path / folder}"):
        observed(None, moved, revision, train)
    assert trained == []
