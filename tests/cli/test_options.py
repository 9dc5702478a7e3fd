from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_ddpperf.cli.options import ini_path, project
from pytest_ddpperf.errors import SettingError

SINCE_9 = pytest.mark.skipif(pytest.version_tuple < (9,), reason="pytest 8 does not read it")


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    os.truncate(tmp_path / "pyproject.toml", 1 << 40)
    with pytest.raises(SettingError, match=r"pyproject.toml cannot be read: .* more than 1e\+07 bytes.*; correct this"):
        project(tmp_path)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pytest.ini", "[pytest]\nddpperf_history = h.sqlite\naddopts = -k 100%\n"),
        ("tox.ini", "[testenv]\ndeps =\n    a\n[pytest]\nddpperf_history=h.sqlite\n"),
        ("setup.cfg", "[tool:pytest]\nddpperf_history = h.sqlite\n"),
        ("pyproject.toml", '[tool.pytest.ini_options]\nddpperf_history = "h.sqlite"\n'),
        pytest.param("pyproject.toml", '[tool.pytest]\nddpperf_history = "h.sqlite"\n', marks=SINCE_9),
        pytest.param("pytest.toml", '[pytest]\nddpperf_history = "h.sqlite"\n', marks=SINCE_9),
    ],
)
def test_every_configuration_file_of_pytest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str
) -> None:
    (tmp_path / file).write_text(text)
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert ini_path("ddpperf_history") == tmp_path / "h.sqlite"
    assert ini_path("ddpperf_other") is None


def test_the_nearest_file_with_a_section_decides(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nddpperf_history = far\n")
    near = tmp_path / "near"
    near.mkdir()
    (near / "pyproject.toml").write_text('[project]\nname = "a"\n')
    (near / "tox.ini").write_text("[tox]\n")
    root, settings = project(near)
    assert (root, settings["ddpperf_history"]) == (tmp_path, "far")
    (near / "tox.ini").write_text("[pytest]\n")
    assert not project(near)[1]


def test_an_empty_file_that_is_pytests_alone_makes_a_root(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    for name, root in (("tox.ini", tmp_path), ("pytest.ini", tmp_path / "near")):
        (tmp_path / "near").mkdir(exist_ok=True)
        (tmp_path / "near" / name).touch()
        assert project(tmp_path / "near")[0] == root


@pytest.mark.parametrize(
    ("file", "text"), [("pyproject.toml", "[tool"), ("pytest.ini", "a = 1\n"), ("pytest.toml", f"a = {'[' * 5000}")]
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(SettingError, match=rf"{file} cannot be read: .+"):
        project(tmp_path)
