"""Copies of a checkout, by the metadata that installers write and by the names of its packages."""

from __future__ import annotations

import json
from importlib.metadata import distributions
from pathlib import Path

import pytest

from pytest_ddpperf.revision.installed import installed_from, namesakes


def install(site: Path, origin: str | None) -> None:
    """A package, a module and their metadata as pip leaves them."""
    info = site / "demo-1.0.dist-info"
    (site / "demo").mkdir(parents=True)
    info.mkdir()
    (site / "demo" / "__init__.py").touch()
    (site / "single.py").touch()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n", encoding="utf-8")
    names = ("demo/__init__.py", "demo/part.py", "single.py", "demo-1.0.dist-info/METADATA", "../../bin/demo")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names), encoding="utf-8")
    if origin is not None:
        (info / "direct_url.json").write_text(origin, encoding="utf-8")


@pytest.mark.parametrize(
    "origin",
    [
        {"url": "file:///home/me/my%20project", "dir_info": {}},
        {"url": "file:///home/me/my%20project", "dir_info": {"editable": False}},
        {"url": "file:///home/me/my%20project/dist/demo-1.0-py3-none-any.whl", "archive_info": {}},
    ],
)
def test_a_copy_of_a_checkout_is_known_by_where_it_was_installed_from(tmp_path: Path, origin: object) -> None:
    install(tmp_path, json.dumps(origin))
    found = installed_from("/home/me/my project", distributions(path=[str(tmp_path)]))
    assert found == {str(tmp_path / "demo"), str(tmp_path / "single.py")}
    assert installed_from("/home/me/my", distributions(path=[str(tmp_path)])) == set()


@pytest.mark.parametrize(
    "origin",
    [
        None,  # from an index
        '{"url": "file:///project", "dir_info": {"editable": true}}',
        '{"url": "https://example.org/project.git", "vcs_info": {}}',
        '{"dir_info": {}}',
        "[]",
        "{",
    ],
)
def test_all_else_is_no_copy(tmp_path: Path, origin: str | None) -> None:
    install(tmp_path, origin)
    assert installed_from("/project", distributions(path=[str(tmp_path)])) == set()


@pytest.mark.parametrize("layout", ["", "src"])
def test_what_has_the_name_of_a_package_of_the_checkout_is_a_copy_wherever_it_is_from(
    tmp_path: Path, layout: str
) -> None:
    root, site = tmp_path / "project", tmp_path / "venv" / "site-packages"
    for place in (root / layout / "demo", root / layout / "linked", site / "demo", site / "other"):
        place.mkdir(parents=True)
        (place / "__init__.py").touch()
    (root / layout / "namespace").mkdir()
    (site / "namespace").mkdir()
    (site / "linked").symlink_to(root / layout / "linked")
    assert namesakes(str(root), [str(site), str(tmp_path)]) == {str(site / "demo")}
    assert namesakes(str(root), [str(site.parent)]) == set()
