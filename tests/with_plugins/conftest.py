"""Runs of suites with plugins that other tests leave out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.factories import without_plugins

Run = Callable[..., pytest.RunResult]


@pytest.fixture(autouse=True)
def _installed(other_plugins: None) -> None:
    """Loads those that are installed."""


@pytest.fixture
def run_with(inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the suite beside the plugin of this module; skips the test where it is not installed."""

    def run(module: str, *arguments: str) -> pytest.RunResult:
        pytest.importorskip(module, reason=f"{module} is not installed")
        monkeypatch.setenv("PYTEST_ADDOPTS", without_plugins(module))
        return inner.runpytest(*arguments)

    return run
