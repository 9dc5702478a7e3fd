"""Copies of a checkout, by the metadata that installers write and by the names of its packages."""

from __future__ import annotations

import json
from importlib.metadata import distributions
from pathlib import Path

import pytest

from pytest_ddpperf.against.installed import installed_from, namesakes

FILES = ("demo/__init__.py", "demo/sub/part.py", "single.py", "corp/train/__init__.py")


def install(site: Path, origin: str | None) -> None:
    """A package, a module, a part of a namespace and their metadata as pip leaves them."""
    info = site / "demo-1.0.dist-info"
    info.mkdir(parents=True)
    for file in map(site.joinpath, FILES):  # importlib.metadata of Python 3.12 and newer lists what is there
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n", encoding="utf-8")
    names = (*FILES, "demo-1.0.dist-info/METADATA", "../../bin/demo")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names), encoding="utf-8")
    if origin is not None:
        (info / "direct_url.json").write_text(origin, encoding="utf-8")


def origin_of(place: Path, **kind: object) -> str:
    return json.dumps({"url": place.as_uri(), **kind})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout that has one of the packages that are installed."""
    root = tmp_path / "my project"
    (root / "src" / "demo").mkdir(parents=True)
    return root


@pytest.mark.parametrize("kind", [{}, {"editable": False}])
def test_a_copy_of_a_checkout_is_known_by_where_it_was_installed_from(
    tmp_path: Path, root: Path, kind: dict[str, bool]
) -> None:
    """Of a namespace, in which others have parts, its own part alone."""
    site = tmp_path / "site"
    install(site, origin_of(root, dir_info=kind))
    found = installed_from(str(root), distributions(path=[str(site)]))
    assert found == {str(site / "demo"), str(site / "single.py"), str(site / "corp" / "train")}
    assert installed_from(str(tmp_path / "my"), distributions(path=[str(site)])) == set()


def test_an_archive_in_the_checkout_may_be_anybodys(tmp_path: Path, root: Path) -> None:
    """Of a wheel what the checkout has too; of another one, such as torch's for machines without a network, nothing."""
    site = tmp_path / "site"
    install(site, origin_of(root / "dist" / "demo-1.0-py3-none-any.whl", archive_info={}))
    assert installed_from(str(root), distributions(path=[str(site)])) == {str(site / "demo")}


def test_a_submodule_is_no_part_of_the_checkout(tmp_path: Path, root: Path) -> None:
    site, submodule = tmp_path / "site", root / "third_party" / "demo"
    submodule.mkdir(parents=True)
    (submodule / ".git").touch()
    install(site, origin_of(submodule, dir_info={}))
    assert installed_from(str(root), distributions(path=[str(site)])) == set()


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
    for module in ("arrow.py", "load.py"):  # most of it is not the checkout's: another project of that name
        (site / "demo" / module).touch()
    assert namesakes(str(root), [str(site)]) == set()
