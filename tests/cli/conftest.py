"""What the tests of the command share."""

from __future__ import annotations

import pytest

from pytest_ddpperf.cli.command import main
from tests.cli.running import Run


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are as wide as their text, whatever terminal the tests run in."""
    monkeypatch.setenv("COLUMNS", "")  # not delenv: readline may have set it for child processes alone


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command and gives back its standard output."""

    def run(*words: object, status: int = 0) -> str:
        capsys.readouterr()
        assert main([*map(str, words)]) == status
        return capsys.readouterr().out

    return run


@pytest.fixture
def complaint(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the command and gives back its error messages."""

    def run(*words: object, status: int = 2) -> str:
        capsys.readouterr()
        assert main([*map(str, words)]) == status
        return capsys.readouterr().err

    return run
