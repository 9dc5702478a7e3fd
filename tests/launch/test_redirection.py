"""Where paths of a project lie in another checkout; folders exist only where links and relative paths need them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_ddpperf.launch.redirection import Redirection, interpreter_folders, within

MOVED = Redirection("/home/me/project", "/var/x/checkout", ("/home/me/project/.venv",))


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
def test_what_lies_in_the_project_moves_and_nothing_else(entry: str, there: str) -> None:
    assert MOVED.path(entry) == there


def test_relative_entries_and_links_move_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, link = tmp_path / "project", tmp_path / "link"
    (root / "src").mkdir(parents=True)
    link.symlink_to(root)
    moved = Redirection(str(root), "/other")
    monkeypatch.chdir(root)
    assert [moved.path(entry) for entry in ("", ".", "src", "absent")] == ["/other", "/other", "/other/src", "absent"]
    assert moved.path(str(link / "src")) == "/other/src"
    assert Redirection(str(link), "/other").path(str(root / "src")) == "/other/src"


def test_a_link_in_the_project_has_its_like_in_the_other_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "vendor").symlink_to(tmp_path / "elsewhere")
    assert Redirection(str(tmp_path / "project"), "/other").path(str(tmp_path / "project/vendor")) == "/other/vendor"


def test_another_checkout_within_the_project_stays_what_it_is() -> None:
    nested = Redirection("/project", "/project/old")
    assert nested.search_path(["/project/src", "/project/old/src"]) == ("/project/old/src", "/project/old/src")


def test_processes_of_the_ranks_search_there_as_well() -> None:
    path = os.pathsep.join(("/home/me/project/src", "/opt/lib", ""))
    told = MOVED.environ({"PYTHONPATH": path, "HOME": "/home/me/project"})
    assert told == {"PYTHONPATH": os.pathsep.join(("/var/x/checkout/src", "/opt/lib", "")), "HOME": "/home/me/project"}
    assert MOVED.environ({"A": "b"}) == {"A": "b"}


def test_it_travels_as_text() -> None:
    assert Redirection.loads(MOVED.dumps()) == MOVED


def test_only_environments_within_the_project_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("exec_prefix", "base_prefix", "base_exec_prefix"):
        monkeypatch.setattr(sys, name, "/usr")
    monkeypatch.setattr(sys, "prefix", "/usr/src/app/.venv")
    monkeypatch.setattr(sys, "path", ["/usr/src/app/src", "/usr/src/app/.venv/lib/site-packages"])
    assert interpreter_folders("/usr/src/app") == ("/usr/src/app/.venv", "/usr/src/app/.venv/lib/site-packages")
    assert interpreter_folders("/usr/src/app/.venv") == ("/usr/src/app/.venv/lib/site-packages",)


def test_a_folder_is_not_within_one_that_its_name_starts_with() -> None:
    assert within("/a/b", "/a/b")
    assert within("/a/b/c", "/a/b")
    assert not within("/a/bc", "/a/b")
    assert within("/a", "/")
