"""What is noted of imports while they are watched."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_ddpperf.launch.imports import ImportWatch


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that modules can be imported from."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_an_import_gets_variables_as_they_are_and_they_are_noted_with_what_was_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("import os", "MODE = os.environb[b'MODE_OF_IMPORT']", "GONE = os.environ.get('GONE_BEFORE_IMPORT')")
    (folder / "looks_up.py").write_text("\n".join((*lines, "HOME = os.getenv('HOME')", "os.get_exec_path()")))
    monkeypatch.setenv("GONE_BEFORE_IMPORT", "1")
    with ImportWatch() as watch:
        monkeypatch.setenv("MODE_OF_IMPORT", "fast")
        monkeypatch.delenv("GONE_BEFORE_IMPORT")
        module = __import__("looks_up")
    assert (module.MODE, module.GONE) == (b"fast", None)
    (found,) = watch.outer
    assert found.variables == {"MODE_OF_IMPORT", "GONE_BEFORE_IMPORT", "HOME", "PATH"}
    assert found.seen().changed == ("GONE_BEFORE_IMPORT", "MODE_OF_IMPORT")
