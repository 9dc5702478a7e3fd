"""Interpreters of other environments, and copies of a checkout by what installers write and by their names."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from pytest_ddpperf.against.interpreter import (
    _TORCH,
    differing,
    foreign_entries,
    installed_from,
    namesakes,
    other_interpreter,
    own_interpreter,
)
from pytest_ddpperf.against.revision_side import under
from pytest_ddpperf.against.worktree import reference
from pytest_ddpperf.errors import SettingError
from pytest_ddpperf.launch.redirection import Redirection
from pytest_ddpperf.settings import Settings
from tests.factories import virtual_environment

NEEDED = {"torch": "2.13.0", "cloudpickle": "3.1.3", "numpy": "2.4.6"}


def stand_in(folder: Path, **facts: Any) -> Path:
    """A file that answers as an interpreter with these facts would."""
    told = {"tag": own_interpreter().tag, "version": "3.9.1", "prefixes": ["/x", "/x"], "path": [], "packages": {}}
    (folder / "answer").write_text(json.dumps({**told, **facts}))
    script = folder / "python"
    script.write_text(f"#!/bin/sh\ncat {folder / 'answer'}\n")
    script.chmod(0o755)
    return script


def test_an_environment_reports_its_packages_and_its_path_without_pythonpath(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "mine"))
    python = virtual_environment(tmp_path / "new", {**NEEDED, "Some_Lib.x": "1.5"})
    found = other_interpreter("new/bin/python", tmp_path)
    site = next((tmp_path / "new").glob("lib/*/site-packages"))
    assert (found.given, found.python, found.tag) == ("new/bin/python", str(python), own_interpreter().tag)
    assert found.packages == {**NEEDED, "some-lib-x": "1.5"}
    assert found.path[-1] == str(site)
    assert not any("mine" in entry or "against" in entry for entry in found.path)
    assert found.folders(str(tmp_path)) == (str(tmp_path / "new"), str(site))
    assert found.folders("/elsewhere") == ()


def test_the_oldest_torch_is_the_one_in_the_metadata_of_the_package() -> None:
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"torch>={".".join(map(str, _TORCH))}"' in project


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ({}, "lacks modules that ranks need: run new/bin/python -m pip install torch cloudpickle numpy"),
        ({"torch": "2.13.0", "numpy": "2"}, "lacks modules that ranks need: run new/bin/python -m pip install cloud"),
        (
            {**NEEDED, "torch": "2.5.1+cpu"},
            r"has torch 2.5.1\+cpu, but ranks need 2.6 or newer: run new/bin/python -m pip install 'torch>=2.6'",
        ),
        ({**NEEDED, "cloudpickle": "2.2.1"}, "has cloudpickle 2.2.1, but pytest's environment has 3.*cloudpickle==3"),
    ],
)
def test_packages_that_ranks_need_are_checked_before_the_first_test(
    tmp_path: Path, packages: Mapping[str, str], said: str
) -> None:
    virtual_environment(tmp_path / "new", packages)
    with pytest.raises(SettingError, match=f"^--ddpperf-against-python=new/bin/python {said}"):
        other_interpreter("new/bin/python", tmp_path)


def test_a_torch_that_pythonpath_brings_to_both_sides_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of that name is no torch, and this environment's own packages never reach the other one."""
    virtual_environment(tmp_path / "new", NEEDED)
    (tmp_path / "harmless" / "torch").mkdir(parents=True)
    (tmp_path / "mine" / "torch").mkdir(parents=True)
    torch = tmp_path / "mine" / "torch" / "__init__.py"
    torch.touch()
    harmless = [str(tmp_path / "harmless"), *own_interpreter().path]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(harmless))
    assert other_interpreter("new/bin/python", tmp_path).packages == NEEDED
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*harmless, str(tmp_path / "mine")]))
    said = rf": because of PYTHONPATH, both environments import {torch} instead .*: remove {tmp_path / 'mine'} from PY"
    with pytest.raises(SettingError, match=f"^--ddpperf-against-python=new/bin/python{said}"):
        other_interpreter("new/bin/python", tmp_path)


def test_another_minor_version_is_refused(tmp_path: Path) -> None:
    stand_in(tmp_path, tag="cpython-39")
    ours = f"{sys.version.split()[0]} ({sys.implementation.cache_tag})".replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(SettingError, match=rf"Python 3.9.1 \(cpython-39\), but pytest runs on {ours}, .* -m venv NEW$"):
        other_interpreter("python", tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gone", "there is no such file; create an environment with .* -m venv NEW$"),
        ("new", "expected the interpreter of a virtual environment, but this is a folder: give new/bin/python$"),
        ("empty", "expected the interpreter .*: the folder has no bin/python$"),
        ("text", "this is not a working Python 3: Permission denied; it cannot be executed$"),
        ("false", "this is not a working Python 3: no interpreter here$"),
    ],
)
def test_a_path_that_is_not_an_interpreter_is_refused_with_the_reason(tmp_path: Path, given: str, said: str) -> None:
    virtual_environment(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no program")
    (tmp_path / "false").write_text("#!/bin/sh\necho no interpreter here >&2; exit 3\n")
    (tmp_path / "false").chmod(0o755)
    with pytest.raises(SettingError, match=f"^--ddpperf-against-python={given}: {said}"):
        other_interpreter(given, tmp_path)


def test_this_environment_is_no_other_one_unless_a_revision_runs_in_it(tmp_path: Path) -> None:
    settings = Settings(against_python=sys.executable)
    with pytest.raises(SettingError, match="is the environment that pytest itself runs in"):
        reference(settings, tmp_path, tmp_path)
    (tmp_path / "old").mkdir()
    both = reference(Settings(against="old", against_python=sys.executable), tmp_path, tmp_path)
    assert (both.label, both.python, both.here) == ("old", other_interpreter(sys.executable, tmp_path), False)


def test_packages_that_both_have_come_first_and_the_plugin_does_not_count() -> None:
    there = {"torch": "2.11.0", "a-lib": "1", "pytest-ddpperf": "0.1", "same": "3"}
    here = {"torch": "2.13.0", "b-lib": "2", "same": "3"}
    assert list(differing(there, here).items()) == [
        ("torch", ("2.11.0", "2.13.0")),
        ("a-lib", ("1", None)),
        ("b-lib", (None, "2")),
    ]


def test_ranks_of_another_environment_have_its_packages_and_the_project_s_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    virtual_environment(root / ".venv-new", NEEDED)
    python = other_interpreter(".venv-new/bin/python", root)
    found = under(python, Redirection(root=str(root), target=str(root)))
    own = own_interpreter().path
    path = found.search_path([str(root), "/from/pythonpath", *own])
    assert path == (str(root), "/from/pythonpath", *python.path)
    assert found.search_path(path) == path
    assert found.path(python.path[-1]) == python.path[-1]  # it lies in the project, and is none of it
    assert {entry for entry in own if Path(entry).name == "site-packages"} <= set(foreign_entries(str(root)))
    moved = under(python, Redirection(root=str(root), target="/other"))
    assert moved.search_path([str(root), *own]) == ("/other", *python.path)
    assert Redirection.loads(moved.dumps()) == moved


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
def test_an_installed_copy_of_a_checkout_is_recognised_by_its_recorded_origin(
    tmp_path: Path, root: Path, kind: dict[str, bool]
) -> None:
    """Of a namespace, in which others have parts, its own part alone."""
    site = tmp_path / "site"
    install(site, origin_of(root, dir_info=kind))
    found = installed_from(str(root), distributions(path=[str(site)]))
    assert found == {str(site / "demo"), str(site / "single.py"), str(site / "corp" / "train")}
    assert installed_from(str(tmp_path / "my"), distributions(path=[str(site)])) == set()


def test_a_package_from_an_archive_in_the_checkout_is_a_copy_only_if_the_checkout_has_it(
    tmp_path: Path, root: Path
) -> None:
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
def test_packages_with_another_origin_or_none_are_not_copies(tmp_path: Path, origin: str | None) -> None:
    install(tmp_path, origin)
    assert installed_from("/project", distributions(path=[str(tmp_path)])) == set()


@pytest.mark.parametrize("layout", ["", "src"])
def test_an_installed_package_named_like_one_of_the_checkout_is_a_copy(tmp_path: Path, layout: str) -> None:
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
